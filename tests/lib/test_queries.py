"""Statistical queries and exact polynomials: identities, closed forms, and two independent routes to each number."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.polynomial import HermiteE, hermite_e

from lowdim import functions, hermite, links, polynomials, queries, targets
from lowdim.polynomials import Polynomial
from tests.lib.test_trainers import NoHostReads

SINGLE = [name for name in targets.names() if targets.get(name).directions == 1]


# ------------------------------------------------------------------------------------------------- exact polynomials


def by_quadrature(coefficients, i, k):
    """E[f^i He_k] of f = Σ a_k He_k by Gauss–Hermite quadrature with NumPy's polynomials."""
    z, w = hermite.gauss(60)
    return w @ (hermite_e.hermeval(z, [float(a) for a in coefficients]) ** i * hermite_e.hermeval(z, [0] * k + [1]))


@pytest.mark.parametrize("seed", range(6))
def test_exact_moments_agree_with_quadrature(seed):
    rng = np.random.default_rng(seed)
    a = [Fraction(int(p), int(q)) for p, q in zip(rng.integers(-5, 6, 6), rng.integers(1, 7, 6), strict=True)]
    f = Polynomial(tuple(a))
    for i in (1, 2, 3):
        for k in (0, 1, 2, 5):
            expected = by_quadrature(a, i, k)
            assert abs(float(f.moment(i, k)) - expected) <= 1e-9 * max(1.0, abs(expected))


def test_hermite_polynomials_are_orthogonal_exactly():
    for j in range(8):
        f = Polynomial((0,) * j + (1,))
        assert [f.moment(1, k) for k in range(8)] == [math.factorial(j) if k == j else 0 for k in range(8)]
        assert f.moment(2, 2) == 2 * j * math.factorial(j)  # E[He_j² He_2]


def test_sensitivity_bounds_the_effect_of_relative_errors():
    rng = np.random.default_rng(1)
    f = Polynomial((0, 1, Fraction(-1, 3), 2, Fraction(1, 7)))
    for i, k in ((2, 1), (3, 2)):
        for _ in range(5):
            nudges = [1 + Fraction(int(s), 10**9) for s in rng.choice([-1, 1], 5)]
            moved = Polynomial(tuple(a * nudge for a, nudge in zip(f.coefficients, nudges, strict=True)))
            assert abs(moved.moment(i, k) - f.moment(i, k)) <= Fraction(101, 100) * f.sensitivity(i, k) / 10**9


POWERS = {
    "He3": ("He3", [3, 2, 1, 2]),
    "h3": ("h3", [3, 2, 1, 2]),
    "He4": ("He4", [4, 2, 2, 2]),
    "He2+He3": ("He2+He3", [2, 1, 1, 1]),
    "He3+He4": (HermiteE([0, 0, 0, 1, 1]), [3, 1, 1, 1]),
    "monomials": (np.polynomial.Polynomial([0, -3, 0, 1]), [3, 2, 1, 2]),
    "callable": (lambda z: z**4 - 6 * z**2 + 3, [4, 2, 2, 2]),
    "torch callable": (lambda z: torch.pow(z, 3) / 7 - 3 * z / 7, [3, 2, 1, 2]),
    "not a polynomial, odd": (lambda z: np.sin(z) - np.exp(-0.5) * z, [3, 2, 1, 2]),
    "not a polynomial, even": (lambda z: np.cos(z) + np.exp(-0.5) / 2 * (z**2 - 1), [4, 2, 2, 2]),
    "constant": (lambda z: 0 * z + 2.0, [math.inf] * 4),
    "superorthogonal, rounded to floats": ("superorthogonal", [4, 4, 2, 2]),
}


@pytest.mark.parametrize("name", POWERS)
def test_transformed_exponents(name):
    f, expected = POWERS[name]
    assert queries.transformed_exponents(f, [1, 2, 3, 4]) == dict(zip((1, 2, 3, 4), expected, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_exact_exponents_agree_with_quadrature_on_random_polynomials(seed):
    rng = np.random.default_rng(seed)
    a = [0, *rng.integers(-2, 3, 4)]
    f = HermiteE([float(v) for v in a])
    if not any(a):
        return
    for i, exponent in queries.transformed_exponents(f, (1, 2, 3)).items():
        assert exponent == hermite.information_exponent(lambda z, i=i: f(z) ** i)


def test_a_tiny_coefficient_counts_when_it_is_exact():
    """Quadrature would call 1e-12 zero; fractions do not."""
    assert queries.transformed_exponents(Polynomial((0, Fraction(1, 10**12), 0, 1)), [1]) == {1: 1}


def test_polynomials_are_recognised():
    assert polynomials.recognise(np.tanh) is None
    assert polynomials.recognise(links.he(3)).coefficients == (0, 0, 0, 1)
    assert polynomials.recognise(lambda z: z**3 - 3 * z) == polynomials.recognise(targets.get("He3"))
    rounded = polynomials.recognise(links.polynomial([0.0, 0.0, math.pi, 1.0]))
    assert rounded.rounding > 0 and rounded.exponent(1) == 2
    z = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(polynomials.recognise(lambda z: 0.3 * z**2 + z)(z), 0.3 * z**2 + z, atol=1e-12)


# --------------------------------------------------------------------------------------- superorthogonal polynomials


def relative(g, i, k):
    """|E[g^i He_k]| over the sum of the absolute values of its terms, in whole numbers."""
    moment = g.moment(i, k)
    return float(abs(moment) / g.sensitivity(i, k)) if moment else 0.0


CONSTRUCTED = [(1, 1), (4, 1), (1, 5), (2, 2), (3, 2), (2, 3), (3, 3)]


@pytest.mark.parametrize(("top", "powers"), CONSTRUCTED)
def test_superorthogonal_moments_vanish(top, powers):
    g = queries.superorthogonal(top, powers)
    assert g.degree >= 1
    for i in range(1, powers + 1):
        for k in range(1, top + 1):
            assert relative(g, i, k) < 1e-8
        assert g.exponent(i) > top


@pytest.mark.parametrize("powers", [1, 2, 3])
def test_the_next_power_helps(powers):
    g = queries.superorthogonal(3, powers)
    assert relative(g, powers + 1, 2) > 1e-3 and g.exponent(powers + 1) == 2


def test_the_polynomial_of_the_talk():
    """Its published coefficients, the number under its square root, and its moments by an independent route."""
    g = queries.superorthogonal(2, 2)
    published = {4: "1", 6: "-4/15", 8: "11/280", 10: "-19/4725", 12: "311/997920"}
    assert {k: str(g.coefficients[k]) for k in published} == published
    assert g.degree == 20 and not any(g.coefficients[1::2]) and not g.coefficients[2]
    a18, a20 = g.coefficients[18], g.coefficients[20]
    # a_20 = −a_18 (1 ± √(11163552839/38) / (2 · 35369)) / 40
    assert a18.numerator == -35369
    assert (((40 * a20 + a18) / a18) ** 2 * 4 * 38 * 35369**2).limit_denominator(10**6) == 11163552839
    for i in (1, 2):
        assert abs(by_quadrature(g.coefficients, i, 2)) < 1e-8 * by_quadrature(g.coefficients, 2, 0)


def test_a_superorthogonal_polynomial_is_a_link():
    g = queries.superorthogonal(2, 2)
    z = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(g(z), hermite_e.hermeval(z, [float(a) for a in g.coefficients]), rtol=1e-10)
    assert math.isclose(sum(alpha**2 for alpha in g.scaled().parameters), 1)
    assert targets.get("superorthogonal").link.parameters == g.scaled().parameters


# ----------------------------------------------------------------------------------------------- generative exponents


@pytest.mark.parametrize("name", SINGLE)
def test_generative_exponents_of_the_catalogue(name):
    assert queries.generative_exponent(name) == targets.get(name).generative_exponent


TWO_VALUED = 1.6083105988157398  # a φ(a) = b φ(b) for a = 1/2
GENERATIVE = {
    "staircase": (lambda z: np.floor(3 * z), 1),
    "even staircase": (lambda z: np.round(2 * np.abs(z)), 2),
    "torch relu with a bias": (lambda z: torch.relu(z - 0.3), 1),
    "hat": (lambda z: np.maximum(1 - np.abs(z), 0), 2),
    "shifted hat": (lambda z: np.maximum(1 - np.abs(z - 0.4), 0), 1),
    "integers": (lambda z: (z > 0.2).astype(int), 1),
    "bump, rescaled and shifted": (lambda z: 5 - 3 * z**2 * np.exp(-(z**2)), 4),
    "function of the bump": (lambda z: np.exp(3 * z**2 * np.exp(-(z**2))), 4),
    "two values": (lambda z: np.where((np.abs(z) > 0.5) & (np.abs(z) < TWO_VALUED), 1.0, -1.0), 4),
    "wave": (lambda z: np.cos(2 * z), 2),
    "cubic with two humps": (lambda z: z**3 - 3 * z + 0.2 * z**2, 1),
    "large and small": (lambda z: 1e6 + 1e3 * z**2, 2),
    "tiny": (lambda z: 1e-15 * z**2, 2),
    "constant": (lambda z: 0 * z + 1.0, math.inf),
}


@pytest.mark.parametrize("name", GENERATIVE)
def test_generative_exponent(name):
    f, exponent = GENERATIVE[name]
    assert queries.generative_exponent(f) == exponent


@pytest.mark.parametrize("name", [name for name in GENERATIVE if name != "constant"])
def test_generative_exponent_is_the_least_exponent_over_transformations(name):
    """The other route: quadrature of cos(ty + φ) for a few t and φ, without level sets."""
    f, exponent = GENERATIVE[name]
    function = functions.vectorised(f, "f").numpy
    size = np.ptp(function(np.linspace(-2, 2, 101)))
    least = min(
        hermite.information_exponent(lambda z, t=t: np.cos(t * (function(z) - function(np.zeros(1))) / size + 0.4), 6)
        for t in (1.3, 2.9)
    )
    assert least == exponent


@pytest.mark.parametrize("name", ["tanh", "He3", "He4", "abs", "bump", "sign"])
@pytest.mark.parametrize("noise", [0.3, 1.5])
def test_gaussian_noise_leaves_the_exponent_and_weakens_the_signal(name, noise):
    k = targets.get(name).generative_exponent
    assert queries.generative_exponent(name, max_degree=4, noise=noise) == k
    clean = queries.label_moments(name, 4).strength[k]
    assert queries.label_moments(name, 4, noise=noise, bins=48).strength[k] < clean


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda z: z**4 - 6 * z**2 + 1e-8 * z, "cannot be decided"),
        (lambda z: np.sin(1e6 * z), "level sets that keep changing"),
        (lambda z: np.random.default_rng(0).standard_normal(z.shape), "level sets that keep changing"),
        (lambda z: np.where(z > 1, np.nan, z), "not finite"),
        (math.tanh, "must be vectorised"),
    ],
)
def test_what_cannot_be_decided_is_said(f, words):
    with pytest.raises(ValueError, match=words):
        queries.generative_exponent(f)


# ------------------------------------------------------------------------------------------------------ label moments


def test_label_moments_of_an_invertible_link_are_the_hermite_polynomials():
    """y = tanh(z) determines z: E[h_k | y] = h_k(z), so λ_k = 1."""
    moments = queries.label_moments("tanh", 4)
    assert (moments.strength > 0.999).all() and (moments.strength <= 1 + 1e-12).all()
    z = np.arctanh((moments.edges[150:250] + moments.edges[151:251]) / 2)
    np.testing.assert_allclose(moments.means[151:251], hermite.basis(z, 4), atol=2e-3)


def test_label_moments_of_the_absolute_value():
    moments = queries.label_moments("abs", 4)
    middle = (moments.edges[1:] + moments.edges[:-1]) / 2
    inner = middle < 3
    np.testing.assert_allclose(moments.means[1:-1][inner][:, 2], hermite.basis(middle, 2)[inner][:, 2], atol=0.01)
    assert np.abs(moments.means[:, [1, 3]]).max() < 1e-12
    assert math.isclose(moments.threshold, 0.5, rel_tol=1e-3)


def test_label_moments_of_the_sign():
    """E[z | z > 0] = √(2/π) and E[h_3 | z > 0] = −2 φ(0)/√6."""
    moments = queries.label_moments("sign", 3)
    np.testing.assert_allclose(moments.mass, [0.5, 0.5], atol=1e-13)
    np.testing.assert_allclose(
        moments.means[1], [1, math.sqrt(2 / math.pi), 0, -1 / math.sqrt(3 * math.pi)], atol=1e-12
    )


@pytest.mark.parametrize("name", ["sign", "tanh", "He3", "bump"])
def test_middle_labels_lie_in_their_bins(name):
    moments = queries.label_moments(name, 2)
    assert (np.digitize(moments.labels, moments.edges, right=True) == np.arange(len(moments.mass))).all()
    if name == "sign":
        assert moments.labels.tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("noise", [0.25, 1.0])
def test_label_moments_of_a_noisy_linear_link(noise):
    """y = z + sξ: E[h_k(z) | y] = ρ^k h_k(y/√(1+s²)), hence λ_k² = ρ^{2k} with ρ² = 1/(1 + s²)."""
    moments = queries.label_moments("linear", 4, noise=noise, bins=160)
    np.testing.assert_allclose(moments.strength, (1 + noise**2) ** -np.arange(5.0), rtol=5e-3)


def test_noise_inside_the_link():
    """y = sign(z + sξ): E[z | y = 1] = √(2/π)/√(1 + s²)."""
    moments = queries.label_moments("noisy_sign", 2)
    assert math.isclose(moments.means[1, 1], math.sqrt(2 / math.pi / 1.25), rel_tol=1e-12)


@pytest.mark.parametrize("name", ["He3", "h4", "sin", "bump", "superorthogonal"])
def test_label_moments_against_samples(name):
    target = targets.get(name)
    z = np.random.default_rng(3).standard_normal(400_000)
    y = target(z)
    cuts = np.quantile(y, np.linspace(0.1, 0.9, 9))
    moments = queries.label_moments(name, 4, bins=cuts)
    place = np.digitize(y, cuts)
    np.testing.assert_allclose(moments.mass, np.bincount(place) / len(z), atol=0.004)
    for b in range(1, 9):
        h = hermite.basis(z[place == b], 4)
        assert (np.abs(h.mean(axis=0) - moments.means[b]) <= 5 * h.std(axis=0) / math.sqrt(len(h)) + 1e-12).all()


def test_strength_rises_with_finer_bins_and_falls_with_lost_information():
    coarse, fine = (queries.label_moments("He3", 3, bins=b).strength for b in (20, 400))
    assert (coarse <= fine + 1e-3).all() and coarse[3] < fine[3]
    finest = queries.label_moments("He3", 3, bins=4000).strength
    assert np.abs(fine - finest).max() < 1e-3
    squared = queries.label_moments(lambda z: (z**3 - 3 * z) ** 2, 3).strength
    assert (squared <= fine + 1e-3).all()


def test_the_best_transformation_attains_the_strength():
    moments = queries.label_moments("He3", 2)
    T = moments.transform(2)
    z = np.random.default_rng(4).standard_normal(1_000_000)
    t, h = T(targets.get("He3")(z)), hermite.basis(z, 2)[:, 2]
    ratio = np.mean(t * h) ** 2 / np.mean(t**2)
    assert abs(ratio - moments.strength[2]) < 0.01
    worse = np.mean(np.tanh(t) * h) ** 2 / np.mean(np.tanh(t) ** 2)
    assert worse < ratio


# ---------------------------------------------------------------------------------------------------------- the oracle


def direction_with_overlap(oracle, m, seed=0):
    """A unit vector with the overlap m to the hidden direction (tests may look)."""
    w = oracle._w
    u = np.random.default_rng(seed).standard_normal(len(w))
    u -= (u @ w) * w
    return m * w + math.sqrt(1 - m**2) * u / np.linalg.norm(u)


@pytest.mark.parametrize("m", [-0.7, 0.1, 0.4, 0.95])
def test_true_answers_in_closed_form(m):
    """E[y h_3(h)] = m³ for y = h_3(z); E[y² h²] = E[y²] + m² E[y² (z² − 1)] = 1 + 6m²."""
    csq = queries.Oracle("h3", 20, 1e-13, kind="CSQ", answers="random")
    v = direction_with_overlap(csq, m)
    assert math.isclose(csq.ask(targets.get("h3"), v), m**3, abs_tol=1e-10)
    sq = queries.Oracle("h3", 20, 1e-13, answers="random")
    assert math.isclose(sq.ask(lambda h, y: y**2 * h**2, v), 1 + 6 * m**2, abs_tol=1e-8)


def test_a_bounded_query_against_samples():
    exact = queries.Oracle("h3", 10, 1e-12, answers="random", seed=5)
    sampled = queries.Oracle("h3", 10, 1e-3, answers="sample", seed=5)
    vectors = np.stack([direction_with_overlap(exact, m) for m in (0.2, 0.6)])

    def phi(h, y):
        return np.tanh(y) * np.abs(h - 0.3)

    np.testing.assert_allclose(exact.ask(phi, vectors), sampled.ask(phi, vectors), atol=5e-3)


@pytest.mark.parametrize("answers", ["lazy", "random"])
@pytest.mark.parametrize("kind", queries.KINDS)
def test_answers_are_within_the_tolerance(answers, kind):
    phi = (lambda h: h) if kind == "CSQ" else (lambda h, y: h * y)
    for tolerance in (0.3, 0.01):
        oracle = queries.Oracle("tanh", 30, tolerance, kind=kind, answers=answers, seed=1)
        m = oracle._w
        size = math.sqrt(hermite.coefficients(lambda z: np.tanh(z) ** 2, 0)[0])
        truth = hermite.coefficients(np.tanh, 1)[1] * m
        gap = np.abs(oracle.ask(phi, np.eye(30)) - truth)
        assert gap.max() <= tolerance * size * (1 + 1e-9)
        assert oracle.asked == 30


def test_the_lazy_oracle_says_as_little_as_it_may():
    oracle = queries.Oracle("h3", 50, 0.5, kind="CSQ", seed=2)
    assert oracle.ask(targets.get("h3"), direction_with_overlap(oracle, 0.7)) == 0.0  # 0.7³ < 0.5
    assert math.isclose(oracle.ask(targets.get("h3"), direction_with_overlap(oracle, 0.9)), 0.9**3 - 0.5, rel_tol=1e-9)
    assert (oracle.ask(lambda h: h, np.eye(50)) == 0).all()  # h_3 has no linear part
    assert oracle.overlap(np.zeros(50)) == 0.0 and math.isclose(oracle.overlap(-3 * oracle._w), 1.0)


def test_sampled_answers_err_like_one_over_the_root_of_n():
    errors = []
    for n in (400, 40_000):
        oracle = queries.Oracle("tanh", 200, n**-0.5, kind="CSQ", answers="sample", seed=3)
        truth = hermite.coefficients(np.tanh, 1)[1] * oracle._w
        assert oracle.samples == n
        errors.append(np.sqrt(np.mean((oracle.ask(lambda h: h, np.eye(200)) - truth) ** 2)))
    assert 7 < errors[0] / errors[1] < 14


def test_the_count_of_the_lower_bound():
    """M (τ² − ε^k) with the best M, by brute force over a coarser grid; none left beyond d^{k/2}."""
    d, k, n = 1000, 3, 500.0
    log_m = np.linspace(0.01, d / 4, 50_000)
    with np.errstate(invalid="ignore"):
        bound = np.nanmax(log_m + np.log(1 / n - (4 * log_m / d) ** (k / 2)))
    assert math.isclose(queries.csq_queries_needed(d, k, n), max(0.0, bound), rel_tol=1e-3)
    needed = [queries.csq_queries_needed(10**6, 3, n) for n in (1e3, 1e5, 1e6, 1e9)]
    assert needed == sorted(needed, reverse=True) and needed[0] > 100 and needed[-1] == 0.0


def test_powers_of_the_map():
    table = {
        method: [queries.sample_power(method, k, generative_exponent=2) for k in range(1, 5)]
        for method in queries.METHODS
    }
    assert table["kernel"] == [1, 2, 3, 4] and table["online SGD"] == [1, 1, 2, 3]
    assert table["CSQ"] == table["smoothing"] == [1, 1, 1.5, 2]
    assert table["SQ"] == table["information"] == [1, 1, 1, 1]
    assert queries.sample_power("SQ", 4, generative_exponent=4) == 2
    assert queries.sample_power("kernel", 2, degree=5) == 5


# ------------------------------------------------------------------------------------------------- spectral estimators


def samples(link, d, n, runs=None, seed=0):
    x = np.random.default_rng(seed).standard_normal((n, d) if runs is None else (runs, n, d))
    return x, targets.get(link)(x[..., 0])


def squash(y):
    return y**2 / (1 + y**2)


def test_the_mean_of_the_matrix():
    """E[T(y) (x xᵀ − I)] = √2 E[T h_2] w* w*ᵀ: the top eigenvalue at large n."""
    x, y = samples("h4", 4, 400_000)
    link = targets.get("h4")
    expected = math.sqrt(2) * hermite.coefficients(lambda z: squash(link(z)), 2)[2]
    for centre in (True, False):
        estimate = queries.spectral_estimate(x, y, squash, centre=centre)
        assert abs(estimate.eigenvalues[-1] - expected) < 0.02 and estimate.overlap(np.eye(4)[0]) > 0.99


def test_estimates_rotate_with_the_data():
    x, y = samples("h3", 12, 300)
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((12, 12)))[0]
    for estimate in (
        lambda x: queries.spectral_estimate(x, y, squash),
        lambda x: queries.unfolded_estimate(x, y, 3),
    ):
        straight, turned = estimate(x), estimate(x @ rotation.T)
        np.testing.assert_allclose(straight.eigenvalues, turned.eigenvalues, atol=1e-10)
        assert math.isclose(abs(turned.direction @ (rotation @ straight.direction)), 1, rel_tol=1e-9)


@pytest.mark.parametrize("end", ["both", "top"])
def test_the_runs_axis_is_a_loop(end):
    x, y = samples("h4", 10, 80, runs=3)
    together = queries.spectral_estimate(x, y, squash, end=end)
    for run in range(3):
        alone = queries.spectral_estimate(x[run], y[run], squash, end=end)
        np.testing.assert_allclose(together.eigenvalues[run], alone.eigenvalues, atol=1e-12)
        np.testing.assert_allclose(together.overlap(np.eye(10)[0])[run], alone.overlap(np.eye(10)[0]), atol=1e-9)
    together, alone = queries.unfolded_estimate(x, y, 4), queries.unfolded_estimate(x[2], y[2], 4)
    np.testing.assert_allclose(together.eigenvalues[2], alone.eigenvalues, atol=1e-9)


def test_both_ends_of_the_spectrum():
    """With the opposite transformation the signal moves to the other end: "both" finds it, "top" does not."""
    x, y = samples("h4", 60, 2400)
    w = np.eye(60)[0]
    assert queries.spectral_estimate(x, y, lambda y: -squash(y)).overlap(w) > 0.8
    assert queries.spectral_estimate(x, y, lambda y: -squash(y), end="top").overlap(w) < 0.5


def test_numpy_and_torch_agree():
    x, y = samples("h3", 8, 60)
    a = queries.spectral_estimate(x, y, np.tanh)
    b = queries.spectral_estimate(torch.tensor(x), torch.tensor(y), torch.tanh)
    np.testing.assert_allclose(a.eigenvalues, b.eigenvalues, atol=1e-12)


def hermite_tensor(x, order):
    """He_1, He_2 or He_3 of a vector as a full tensor: products minus all contractions."""
    eye = np.eye(len(x))
    if order == 1:
        return x
    if order == 2:
        return np.einsum("i,j->ij", x, x) - eye
    pairs = ("ij,k->ijk", "ik,j->ijk", "jk,i->ijk")
    return np.einsum("i,j,k->ijk", x, x, x) - sum(np.einsum(pair, eye, x) for pair in pairs)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_unfolding_with_explicit_tensors(k):
    x, y = samples("h4", 4, 15)
    centred = y - y.mean()
    rows = [c * np.outer(v, hermite_tensor(v, k - 1)) for c, v in zip(centred, x, strict=True)]
    total = np.sum(rows, axis=0)
    matrix = (total @ total.T - sum(r @ r.T for r in rows)) / 15**2
    np.testing.assert_allclose(queries.unfolded_estimate(x, y, k).eigenvalues, np.linalg.eigvalsh(matrix), atol=1e-9)


def test_unfolding_finds_what_correlations_show():
    x, y = samples("h3", 40, 1500, runs=6)
    assert np.median(queries.unfolded_estimate(x, y, 3).overlap(np.eye(40)[0])) > 0.8
    assert np.median(queries.spectral_estimate(x, y).overlap(np.eye(40)[0])) < 0.6


def test_predicted_overlaps_of_phase_retrieval():
    """y = z² with the best transformation: overlap² = .206, .370, .486 at n/d = 1, 1.5, 2, and 0 below 1/2."""
    moments = queries.label_moments("square", 2)
    for alpha, squared in ((1, 0.206), (1.5, 0.370), (2, 0.486)):
        T = moments.spectral_transform(alpha)
        assert abs(moments.spectral_overlap(T, alpha, centre=False) ** 2 - squared) < 0.006
    assert moments.spectral_overlap(moments.spectral_transform(0.4), 0.4, centre=False) == 0.0


@pytest.mark.parametrize("link", ["h3", "h4"])
def test_predicted_overlaps_against_simulation(link):
    moments = queries.label_moments(link, 2)
    x, y = samples(link, 200, 1600, runs=8, seed=6)
    w = np.eye(200)[0]
    best = moments.spectral_transform(8)
    for T, centre in ((squash, True), (best, False)):
        found = np.median(queries.spectral_estimate(x, y, T, centre=centre, end="top").overlap(w))
        assert abs(found - moments.spectral_overlap(T, 8, centre=centre)) < 0.06
    assert moments.spectral_overlap(best, 8, centre=False) >= moments.spectral_overlap(squash, 8)


@pytest.mark.parametrize("estimator", ["spectral", "unfolded"])
def test_estimators_stay_on_their_device(estimator):
    x, y = torch.zeros(3, 20, 6, device="meta"), torch.zeros(3, 20, device="meta")
    with NoHostReads():
        if estimator == "spectral":
            result = queries.spectral_estimate(x, y, torch.tanh)
        else:
            result = queries.unfolded_estimate(x, y, 3)
    assert result.direction.device.type == "meta" and tuple(result.direction.shape) == (3, 6)


# ---------------------------------------------------------------------------------------------------------- bad input

X, Y = samples("h3", 3, 10)

BAD = [
    (lambda: queries.Oracle("h3", 1, 0.1), "d is 1"),
    (lambda: queries.Oracle("h3", 9, 0), "tolerance is 0"),
    (lambda: queries.Oracle("h3", 9, 0.1, kind="XSQ"), "kind is 'XSQ'"),
    (lambda: queries.Oracle("h3", 9, 0.1, answers="wise"), "answers is 'wise'"),
    (lambda: queries.Oracle("parity2", 9, 0.1), "2 directions"),
    (lambda: queries.Oracle("noisy_sign", 9, 0.1), "noisy labels"),
    (lambda: queries.Oracle("h3", 9, 0.1).ask(lambda h, y: h, np.eye(4)), r"v has shape \(4, 4\)"),
    (lambda: queries.Oracle("h3", 9, 0.1).ask(lambda h, y: h, 2 * np.eye(9)), "row of norm 2"),
    (lambda: queries.Oracle("h3", 9, 0.1).ask(lambda h: h, np.eye(9)), "phi could not be evaluated"),
    (lambda: queries.Oracle("h3", 9, 0.1).ask(lambda h, y: 1.0, np.eye(9)), "phi returns shape"),
    (lambda: queries.transformed_exponents("h3", [0]), "powers is 0"),
    (lambda: queries.transformed_exponents(np.tanh, [1.5]), "powers is 1.5"),
    (lambda: queries.transformed_exponents("parity3", [1]), "3 directions"),
    (lambda: queries.generative_exponent("tanh", max_degree=0), "max_degree is 0"),
    (lambda: queries.generative_exponent("tanh", noise=-1), "noise is -1"),
    (lambda: queries.generative_exponent("parity2"), "2 directions"),
    (lambda: queries.label_moments("tanh", bins=1), "bins is 1"),
    (lambda: queries.label_moments("tanh", bins=[1.0, 0.0]), "bins is not an increasing list"),
    (lambda: queries.label_moments("tanh", 2).transform(3), "k is 3"),
    (lambda: queries.label_moments("sign", 2).spectral_transform(2), "vanishes"),
    (lambda: queries.label_moments("sign", 1).spectral_overlap(np.tanh, 2), "needs degree ≥ 2"),
    (lambda: queries.superorthogonal(0, 1), "K is 0"),
    (lambda: queries.superorthogonal(4, 2), "K is 4 and I is 2"),
    (lambda: queries.superorthogonal(2, 4), "constructs one only for"),
    (lambda: queries.sample_power("magic", 2), "method is 'magic'"),
    (lambda: queries.sample_power("kernel", 3, degree=2), "degree is 2"),
    (lambda: queries.csq_queries_needed(10, 0, 5), "k is 0"),
    (lambda: queries.spectral_estimate(X, Y[:5]), "x has shape"),
    (lambda: queries.spectral_estimate(X[:1], Y[:1]), "n = 1 samples"),
    (lambda: queries.spectral_estimate(X, Y, lambda y: 1 / (0 * y)), "not finite"),
    (lambda: queries.spectral_estimate(X, Y, end="left"), "end is 'left'"),
    (lambda: queries.unfolded_estimate(X, Y, 5), "k is 5"),
    (lambda: Polynomial(()), "coefficients is empty"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
