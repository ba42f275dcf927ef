"""AMP: thresholds against closed forms, denoisers against brute force, runs against state evolution, bad input."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import erf, k0, k1
from scipy.stats import norm

from lowdim import amp, queries, targets, thresholds


def rotated(f, r, seed=0):
    """f of rotated fields."""
    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((r, r)))[0]
    return lambda h: f(np.asarray(h) @ q)


def parity(h):
    return np.sign(np.prod(h, axis=-1))


def staircase(h):
    return h[..., 0] ** 2 + parity(h)


# -------------------------------------------------------------------------------------------- thresholds, one direction


def indicator(b):
    """α_c of 1{|h| > b}: E[h² − 1 | y] is 2bφ(b)/p or −2bφ(b)/(1 − p) with p = P(|h| > b)."""
    p = 2 * norm.sf(b)
    return p * (1 - p) / (2 * b * norm.pdf(b)) ** 2


def with_noise(f, t):
    """α_c of f(h) + tξ for an even f: 1/∫ q(y)²/p(y) dy with p, q the integrals of 1, h² − 1 against the likelihood."""
    z, dz = np.linspace(-9, 9, 6001, retstep=True)
    weight, values = norm.pdf(z) * dz, f(z)
    y, dy = np.linspace(values[np.abs(z) < 6].min() - 8 * t, values[np.abs(z) < 6].max() + 8 * t, 3000, retstep=True)
    likelihood = norm.pdf((y[:, None] - values) / t) / t
    p, q = likelihood @ weight, likelihood @ (weight * (z**2 - 1))
    return 1 / (np.sum(q[p > 1e-200] ** 2 / p[p > 1e-200]) * dy)


SINGLE = {
    "h²": ("square", 0.0, 0.5),
    "|h|": ("abs", 0.0, 0.5),
    "|h| with a jump": (lambda h: np.abs(h) + (np.abs(h) > 1), 0.0, 0.5),
    "heavy tails": (lambda h: np.exp(h**2 / 4), 0.0, 0.5),
    "decreasing, torch": (lambda h: 1 / (1 + torch.square(h)), 0.0, 0.5),
    "1{|h| > 1}": (lambda h: np.abs(h) > 1, 0.0, indicator(1.0)),
    "1{|h| > 2.5}": (lambda h: (np.abs(h) > 2.5) * 3.0, 0.0, indicator(2.5)),
    "h², noise 0.1": ("square", 0.1, partial(with_noise, np.square, 0.1)),
    "h², noise 1": ("square", 1.0, partial(with_noise, np.square, 1.0)),
    "|h|, noise 0.3": ("abs", 0.3, partial(with_noise, np.abs, 0.3)),
    "cos 2h, noise 0.3": (lambda h: np.cos(2 * h), 0.3, partial(with_noise, lambda z: np.cos(2 * z), 0.3)),
    "1{|h| > 1}, noise 0.3": (lambda h: (np.abs(h) > 1) * 1.0, 0.3, None),
}


@pytest.mark.parametrize("name", SINGLE)
def test_thresholds_of_single_index_links(name):
    f, noise, exact = SINGLE[name]
    exact = exact() if callable(exact) else exact
    if exact is None:  # a label with two values and noise: the mixture of two Gaussians, by adaptive quadrature
        p, g = 2 * norm.sf(1), 2 * norm.pdf(1)

        def density(y):
            up, down = norm.pdf((y - 1) / noise), norm.pdf(y / noise)
            return (g * (up - down)) ** 2 / (p * up + (1 - p) * down) / noise

        exact = 1 / quad(density, -3, 4, limit=200)[0]
    assert amp.weak_recovery_threshold(f, noise=noise) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("name", ["sign", "He3", "tanh", "relu", "noisy_sign", "He2+He3", "committee", "linear+abs"])
def test_trivial_targets(name):
    assert amp.weak_recovery_threshold(name) == 0.0


def test_a_small_tilt_makes_a_link_trivial():
    assert amp.weak_recovery_threshold(lambda h: h**2 + 1e-3 * h) == 0.0


@pytest.mark.parametrize(("target", "r"), [("bump", 1), ("parity3", 3), (rotated(parity, 3), 3), (lambda h: 0 * h, 1)])
def test_hard_targets(target, r):
    found = amp.classify(target, r=r)
    assert found.kind == "hard" and found.alpha_c == math.inf == amp.weak_recovery_threshold(target, r=r)
    assert found.subspace.shape[1] == 0 and len(found.chain) == 1


# ------------------------------------------------------------------------------------------ thresholds, more directions


def staircase_threshold():
    """α_c of h_1² + sign(h_1 h_2 h_3): y = u ± 1 with u of density c, G_11 = E[u | y] − 1 (y = −1 + s², no pole)."""

    def c(u):
        return math.exp(-u / 2) / math.sqrt(2 * math.pi * u) if u > 0 else 0.0

    def density(s):
        y = s**2 - 1
        up, down = c(y - 1) / 2, c(y + 1) / 2
        return (up * (y - 2) + down * y) ** 2 / (up + down) * 2 * s

    return 1 / quad(density, 0, 9, points=[math.sqrt(2)], limit=400)[0]


def product_threshold():
    """α_c of h_1 h_2 = u with density K_0(|u|)/π: E[h_1² | u] = |u| K_1/K_0; G has eigenvalues that − 1 ± u."""

    def density(u):
        return k0(u) / math.pi * sum((u * k1(u) / k0(u) - 1 + s * u) ** 2 for s in (1, -1))

    return 1 / quad(density, 0, 60, limit=200)[0]


SEVERAL = {
    "sign(h1 h2)": ("parity2", None, 0.0, math.pi**2 / 4),
    "sign(h1 h2), rotated": (rotated(parity, 2), 2, 0.0, math.pi**2 / 4),
    "staircase": ("square+parity3", None, 0.0, staircase_threshold()),
    "staircase, rotated": (rotated(staircase, 3), 3, 0.0, staircase_threshold()),
    "h1 h2": (lambda h: h[..., 0] * h[..., 1], 2, 0.0, product_threshold()),
    "exp(h1 h2), torch": (lambda h: torch.exp(h[..., 0] * h[..., 1]), 2, 0.0, product_threshold()),
    "radius, r = 2": (lambda h: np.sqrt((h**2).sum(-1)), 2, 0.0, 1.0),
    "radius², r = 3": (lambda h: (h**2).sum(-1), 3, 0.0, 1.5),
    "1{radius² > 2}": (lambda h: (h**2).sum(-1) > 2, 2, 0.0, math.e - 1),
    "h1² among three": (lambda h: h[..., 0] ** 2, 3, 0.0, 0.5),
    "h1², rotated, noisy": (rotated(lambda h: h[..., 0] ** 2, 2), 2, 0.5, partial(with_noise, np.square, 0.5)),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_thresholds_of_multi_index_targets(name):
    f, r, noise, exact = SEVERAL[name]
    exact = exact() if callable(exact) else exact
    assert amp.weak_recovery_threshold(f, r=r, noise=noise) == pytest.approx(exact, rel=0.01)


def test_the_work_for_a_threshold_is_bounded():
    """Counted in evaluated points, not in seconds: the answer and its cost are the same on every machine."""
    points = 0

    def counting(h):
        nonlocal points
        points += h[..., 0].size
        return rotated(staircase, 3)(h)

    amp.weak_recovery_threshold(counting, r=3)
    replicate = 2**thresholds.POINTS * 2**3
    assert replicate * thresholds.REPLICATES < points < replicate * (thresholds.REPLICATES_OF_A_STEP + 1)


def test_noisy_parity():
    """G is E[sign | y] times that without noise, so that α_c grows by 1/E[E[s | y]²], s = ±1 in Gaussian noise."""
    share = quad(lambda y: norm.pdf(y - 1) * math.tanh(y), -9, 9)[0]
    assert amp.weak_recovery_threshold("parity2", noise=1.0) == pytest.approx(math.pi**2 / 4 / share, rel=0.01)


@pytest.mark.parametrize("f", [lambda h: np.abs(h).max(-1), lambda h: h[..., 0] ** 2 + np.abs(h[..., 1])])
def test_thresholds_against_monte_carlo(f):
    """Bins of a plain sample, without any of the library's symmetries or quasi-random points: 2 %."""
    h = np.random.default_rng(0).standard_normal((2_000_000, 2))
    order = np.argsort(f(h))
    parts = np.array_split(h[order], 1000)
    G = np.array([p.T @ p / len(p) - np.eye(2) for p in parts])
    operator = np.einsum("nac,nbd->abcd", G, G).reshape(4, 4) / len(G)
    assert amp.weak_recovery_threshold(f, r=2) == pytest.approx(1 / np.linalg.eigvalsh(operator)[-1], rel=0.02)


def test_permutations_and_label_transformations_change_nothing():
    def f(h):
        return h[..., 0] ** 2 + np.abs(h[..., 1])

    expected = amp.weak_recovery_threshold(f, r=2)
    for g in (lambda h: f(h[..., ::-1]), lambda h: -f(h), lambda h: np.log(1e-3 + f(h)), lambda h: f(-h)):
        assert amp.weak_recovery_threshold(g, r=2) == pytest.approx(expected, rel=0.005)


# ------------------------------------------------------------------------------------------------------- classification


def spans(basis, expected):
    return np.allclose(basis @ basis.T, np.asarray(expected) @ np.asarray(expected).T, atol=0.02)


def test_the_chain_of_a_grand_staircase():
    found = amp.classify("square+parity3")
    first, second = found.chain
    assert found.kind == first.kind == second.kind == "easy" and len(found.chain) == 2
    assert found.alpha_c == first.threshold == pytest.approx(staircase_threshold(), rel=0.01)
    assert second.threshold == pytest.approx(math.pi**2 / 4, rel=0.01)
    assert spans(found.subspace, np.eye(3)[:, :1]) and spans(second.subspace, np.eye(3)[:, 1:])


def test_the_chain_turns_with_the_target():
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    first, second = amp.classify(rotated(staircase, 3), r=3).chain
    assert spans(first.subspace, q[:, :1]) and spans(second.subspace, q[:, 1:])
    assert second.threshold == pytest.approx(math.pi**2 / 4, rel=0.01)


def test_known_directions_become_part_of_the_label():
    first, second = amp.classify("linear+abs").chain
    assert (first.kind, first.threshold, second.kind) == ("trivial", 0.0, "easy")
    assert second.threshold == pytest.approx(0.5, rel=0.01)
    # h1² + h1h2 = a u² − b v² on its principal axes, at 22.5°: once u is known, v² is read off.
    first, second = amp.classify(lambda h: h[..., 0] ** 2 + h[..., 0] * h[..., 1], r=2).chain
    assert (first.kind, second.kind) == ("easy", "easy") and second.threshold == pytest.approx(0.5, rel=0.01)
    assert np.abs(first.subspace[:, 0]) == pytest.approx([np.cos(np.pi / 8), np.sin(np.pi / 8)], abs=2e-3)
    # h1² + 0.1 sign(h1)h2 is even under h → −h only: once a direction near h1 is known, the label is odd in the other.
    first, second = amp.classify(lambda h: h[..., 0] ** 2 + 0.1 * np.sign(h[..., 0]) * h[..., 1], r=2).chain
    assert (first.kind, second.kind) == ("easy", "trivial") and second.threshold == 0.0
    first, second = amp.classify(lambda h: h[..., 0] ** 2, r=2).chain
    assert second.kind == "hard" and second.threshold == math.inf and spans(second.subspace, [[0.0], [1.0]])


def test_degenerate_eigenspaces_are_reported_whole():
    assert spans(amp.classify("parity2").subspace, np.eye(2))
    assert spans(amp.classify(lambda h: (h**2).sum(-1), r=3).subspace, np.eye(3))


# ------------------------------------------------------------------------------------------------------------- channels

CHANNELS = [
    ("sign", 0.0),
    ("abs", 0.0),
    ("square", 0.0),
    ("square", 0.3),
    ("tanh", 0.0),
    ("tanh", 0.3),
    ("noisy_sign", 0.0),
    ("relu", 0.0),
    ("h4", 0.0),
    ("parity2", 0.0),
    ("parity2", 0.5),
    ("parity3", 0.0),
    ("square+parity3", 0.0),
    ("He4+parity3", 0.0),
    ("committee", 0.0),
    ("linear+abs", 0.3),
    ("quadratic", 0.5),
]


@pytest.mark.parametrize(("name", "noise"), CHANNELS)
def test_posterior_means_against_brute_force(name, noise):
    """Mean and covariance of h given y against a million draws of h, weighted with the likelihood of y.

    Labels without noise are given a window; where the label's density varies within it the window costs up to 0.02.
    """
    rng = np.random.default_rng(3)
    law = amp.channel(name, noise=noise)
    model, r = law.model, law.model.r
    tried = 0
    while tried < 2:
        a = rng.standard_normal((r, r))
        V = 0.3 * np.eye(r) + 0.5 * a @ a.T / np.linalg.norm(a @ a.T)
        omega = 0.7 * rng.standard_normal(r)
        truth = omega + np.linalg.cholesky(V) @ rng.standard_normal(r)
        y = model.labels(torch.tensor(truth), torch.tensor(rng.standard_normal())).double()
        mean, cov = law.posterior(law.prepare(y[None, None]), *(torch.tensor(v)[None] for v in (omega[None], V)))
        h = omega + rng.standard_normal((1_000_000, r)) @ np.linalg.cholesky(V).T
        values = np.asarray(model.link(h), dtype=float)
        if model.inside:
            weight = norm.cdf(float(y) * h[:, 0] / model.inside)
        elif model.noise:
            weight = np.exp(-((float(y) - values) ** 2) / (2 * model.noise**2))
        else:
            weight = (np.abs(values - float(y)) < 0.005) * 1.0
        weight /= weight.sum()
        count = 1 / np.sum(weight**2)
        if count < 1000:  # a rare label: too few draws to compare with
            continue
        expected = weight @ h
        centred = h - expected
        second = centred.T @ (centred * weight[:, None])
        slack = 4 * math.sqrt(np.trace(second) / count)
        np.testing.assert_allclose(mean[0, 0], expected, atol=0.02 + slack)
        np.testing.assert_allclose(cov[0, 0], second, atol=0.02 + 2 * slack)
        tried += 1


@pytest.mark.parametrize(
    ("name", "noise"), [c for c in CHANNELS if c[0] not in ("linear+abs", "quadratic", "committee")]
)
def test_the_slope_is_the_derivative_of_the_denoiser(name, noise):
    """∂g/∂ω by central differences. Left out: grids in the plane, which move with ω across kinks of the link."""
    rng = np.random.default_rng(4)
    law = amp.channel(name, noise=noise)
    model, r = law.model, law.model.r
    h, xi = torch.tensor(rng.standard_normal((1, 6, r))), torch.tensor(rng.standard_normal((1, 6)))
    prepared = law.prepare(model.labels(h, xi))
    V = torch.eye(r, dtype=torch.float64)[None] * 0.5 + 0.1
    omega = 0.5 * torch.tensor(rng.standard_normal((1, 6, r)))
    slope = law.denoise(prepared, omega, V)[1]
    step = 1e-5 * torch.eye(r, dtype=torch.float64)
    columns = [(law.denoise(prepared, omega + e, V)[0] - law.denoise(prepared, omega - e, V)[0]) / 2e-5 for e in step]
    torch.testing.assert_close(slope, torch.stack(columns, -1), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["sign", "square", "abs", "parity2", "parity3", "square+parity3", "committee", "tanh"])
@pytest.mark.parametrize("size", [1e-10, 1e-6, 1.0])
def test_denoisers_stay_finite(name, size):
    """Near perfect recovery, and for estimates that contradict the label altogether."""
    law = amp.channel(name)
    r = law.model.r
    h = torch.tensor([[[0.01, 2.0, -3.0][:r], [5.0, 1e-9, 1.0][:r], [-1.0, 1.0, 1.0][:r]]], dtype=torch.float64)
    prepared = law.prepare(law.model.labels(h, torch.zeros(1, 3, dtype=torch.float64)))
    for omega in (h, -h, 0 * h, h + 10):
        g, slope = law.denoise(prepared, omega, size * torch.eye(r, dtype=torch.float64)[None])
        assert torch.isfinite(g).all() and torch.isfinite(slope).all()


def test_the_denoiser_is_right_on_average():
    """E[g] = 0 and E[g gᵀ] = −E[∂g] for h ~ N(ω, V) and its label: identities of every posterior."""
    generator = torch.Generator().manual_seed(0)
    for name, noise in (
        ("sign", 0),
        ("abs", 0),
        ("square", 0.3),
        ("parity2", 0),
        ("parity3", 0),
        ("square+parity3", 0),
    ):
        law = amp.channel(name, noise=noise)
        r = law.model.r
        M = torch.eye(r, dtype=torch.float64) * 0.3 + 0.1
        V = torch.eye(r, dtype=torch.float64) - M
        z = torch.randn(2, 1, 100_000, r, generator=generator, dtype=torch.float64)
        omega = z[0] @ torch.linalg.cholesky(M).mT
        h = omega + z[1] @ torch.linalg.cholesky(V).mT
        y = law.model.labels(h, torch.randn(1, 100_000, generator=generator, dtype=torch.float64))
        g, slope = law.denoise(law.prepare(y), omega, V[None])
        square = g[0].mT @ g[0] / 100_000
        assert g.mean(1).abs().max() < 5 * float(square.max() / 100_000) ** 0.5
        if name not in ("abs", "square+parity3"):  # where a label pins h to points, E[g gᵀ] has too heavy tails
            torch.testing.assert_close(square, -slope.mean(1)[0], atol=0.04, rtol=0.04)


# ------------------------------------------------------------------------------------------------------ state evolution


def sign_map(m, alpha):
    """M̂ for sign: α E[φ(a)²/(Φ(a)Φ(−a))]/(1 − m), a = √(m/(1 − m)) z (a perceptron's textbook integral)."""
    c = math.sqrt(m / (1 - m))
    value = quad(lambda z: norm.pdf(z) * norm.pdf(c * z) ** 2 / (norm.cdf(c * z) * norm.cdf(-c * z)), -8, 8)[0]
    hat = alpha * value / (1 - m)
    return hat / (1 + hat)


@pytest.mark.parametrize("m", [0.01, 0.3, 0.7, 0.95])
def test_the_map_of_the_perceptron(m):
    assert amp.overlap_map("sign", 2.0, m)[0, 0] == pytest.approx(sign_map(m, 2.0), abs=2e-3)


def test_the_fixed_point_of_the_perceptron():
    found = amp.state_evolution("sign", [0.5, 2.0, 6.0])
    assert found.converged.all() and found.overlap.shape == (3, 1, 1)
    for alpha, m in zip(found.alpha, found.diagonal[:, 0], strict=True):
        assert m == pytest.approx(sign_map(m, alpha), abs=2e-3)
    # E[y | ω] = erf(√(m/(1−m)) z/√2), so that the error is 1 − E[erf²].
    for m, error in zip(found.diagonal[:, 0], found.error, strict=True):
        c = math.sqrt(m / (1 - m) / 2)
        exact = 1 - quad(lambda z, c=c: norm.pdf(z) * erf(c * z) ** 2, -8, 8)[0]
        assert error == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("name", ["square", "abs", "parity2", "square+parity3"])
def test_state_evolution_leaves_zero_beyond_the_threshold(name):
    """The map's slope at zero is α/α_c (along what is learned first): two routes to one number.

    Where labels pin h to points the average has heavy tails: more points and a smaller overlap for the staircase.
    """
    stairs = name == "square+parity3"
    m, points = (0.003, 13) if stairs else (0.01, None)
    start = m * (np.diag([1.0, 0, 0]) if stairs else np.eye(targets.get(name).directions))
    alpha = 0.8 * amp.weak_recovery_threshold(name)
    grown = amp.overlap_map(name, alpha, start[None], points=points)[0, 0, 0] / m
    assert grown == pytest.approx(0.8, rel=0.06)


def test_uninformed_and_informed_starts():
    """h²: nothing below 1/2; perfect recovery from α = 1 on if informed, from about 1.13 on if not."""
    uninformed = amp.state_evolution("square", [0.4, 0.7, 1.05, 1.3]).diagonal[:, 0]
    informed = amp.state_evolution("square", [1.05, 1.3], init="informed").diagonal[:, 0]
    assert uninformed[0] < 0.01 < 0.05 < uninformed[1] < uninformed[2] < 0.8
    assert min(uninformed[3], *informed) > 0.999


def test_state_evolution_climbs_the_staircase():
    found = amp.state_evolution("square+parity3", [0.4, 1.8, 4.0], points=9)
    low, middle, high = found.diagonal
    assert low.max() < 0.02
    assert middle[0] > 0.999 and middle[1:].max() < 0.02
    assert high[0] > 0.999 and high[1:].min() > 0.5 and abs(high[1] - high[2]) < 0.05
    assert found.error == pytest.approx([3, 1, found.error[2]], abs=0.05) and found.error[2] < 0.9


def test_overlaps_are_symmetric_matrices_between_zero_and_one():
    found = amp.state_evolution("committee", [2.0], points=6, iterations=12)
    values = np.linalg.eigvalsh(found.overlap[0])
    np.testing.assert_allclose(found.overlap[0], found.overlap[0].T, atol=1e-12)
    assert (values > 0).all() and (values < 1).all()
    # Permutation symmetry: equal diagonal, equal rest.
    assert np.ptp(found.diagonal[0]) < 0.05


def test_a_number_of_samples_gives_no_leading_axis():
    found = amp.state_evolution("sign", 1.0, iterations=5)
    assert found.overlap.shape == (1, 1) and found.trajectory.shape == (6, 1, 1) and np.ndim(found.error) == 0
    assert not found.converged


def test_the_generalisation_error_of_an_estimate():
    """A W of the right direction and of length q: against labels of plain samples."""
    rng = np.random.default_rng(5)
    m, q = 0.5, 0.6
    omega, rest = rng.standard_normal((2, 400_000))
    h = omega * m / math.sqrt(q) + rest * math.sqrt(1 - m**2 / q)
    prediction = erf(omega * math.sqrt(q) / math.sqrt(2 * (1 - q)))
    expected = np.mean((np.sign(h) - prediction) ** 2)
    assert amp.generalisation_error("sign", [[m]], [[q]]) == pytest.approx(expected, abs=0.01)
    assert amp.generalisation_error("square", np.zeros((1, 1))) == pytest.approx(2.0, abs=0.03)
    assert amp.generalisation_error("square", np.ones((1, 1)), noise=0.5) == pytest.approx(0.25, abs=1e-3)


# ------------------------------------------------------------------------------------------------------------ Bayes-AMP


@pytest.mark.parametrize(("name", "noise"), [("sign", 0.0), ("noisy_sign", 0.0), ("tanh", 0.5), ("relu", 0.3)])
def test_amp_follows_state_evolution(name, noise):
    """d = 400, 16 runs: single runs scatter by 0.02, finite-size corrections are of order 1/d."""
    found = amp.run(name, 1.5, 400, noise=noise, runs=16, seed=1)
    theory = amp.state_evolution(name, 1.5, noise=noise)
    assert found.converged.all() and not found.diverged.any()
    assert found.diagonal.mean() == pytest.approx(theory.overlap[0, 0], abs=0.03)
    assert found.norm.mean() == pytest.approx(theory.overlap[0, 0], abs=0.03), "Q = M for a Bayes-optimal estimate"
    assert found.error.mean() == pytest.approx(float(theory.error), abs=0.05)


def test_amp_follows_state_evolution_step_by_step():
    found = amp.run("sign", 3.0, 800, runs=16, seed=2, iterations=8)
    theory = amp.state_evolution("sign", 3.0, init=[[1e-9]], iterations=8).trajectory[:, 0, 0]
    # The start has q = 0.01 but no overlap; its first step forgets it.
    np.testing.assert_allclose(np.abs(found.trajectory[:, 2:, 0]).mean(0), theory[2:9], atol=0.03)


def test_two_directions_are_found_up_to_symmetry():
    theory = amp.state_evolution("parity2", 5.0, points=10).diagonal.mean()
    found = amp.run("parity2", 5.0, 400, runs=8, seed=3, init="spectral")
    assert np.median(found.diagonal.mean(1)) == pytest.approx(theory, abs=0.06)
    assert np.median(np.abs(found.overlap[:, 0, 1])) < 0.1
    below = amp.run("parity2", 1.0, 400, runs=8, seed=3, init="spectral")
    assert np.abs(below.diagonal).max() < 0.1


def test_hard_targets_are_not_found_but_kept_if_given():
    flat = amp.run("parity3", 8.0, 120, runs=4, seed=4, iterations=15)
    assert np.abs(flat.diagonal).mean() < 0.08
    kept = amp.run("parity3", 14.0, 120, runs=4, seed=4, iterations=15, init="informed")
    assert np.median(kept.diagonal) > 0.7


def test_perfect_recovery_is_reached_and_stays_finite():
    found = amp.run("square", 2.0, 300, runs=8, seed=5, iterations=150)
    assert np.median(np.abs(found.diagonal)) == pytest.approx(1, abs=1e-4)
    assert np.isfinite(found.overlap).all() and np.isfinite(found.error).all()
    informed = amp.run("square", 2.0, 300, runs=4, seed=5, init="informed")
    assert informed.converged.all() and np.abs(informed.diagonal).min() > 0.999


def test_the_onsager_term_matters():
    wrong = amp.run("sign", 3.0, 300, runs=8, seed=6, onsager=False, iterations=30)
    right = amp.run("sign", 3.0, 300, runs=8, seed=6, iterations=30)
    assert right.cosines.mean() > wrong.cosines.mean() + 0.05
    assert np.isfinite(wrong.overlap).all()


@pytest.mark.parametrize("name", ["sign", "abs", "square", "tanh", "relu", "He3", "parity2", "square+parity3"])
@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_no_run_returns_nan(name, alpha):
    """Tiny dimensions, where nothing of the theory holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for init in ("random", "spectral", "informed"):
            found = amp.run(name, alpha, 12, runs=6, seed=7, init=init, iterations=40)
            for value in (found.overlap, found.norm, found.trajectory, found.error):
                assert np.isfinite(value).all()
            assert (np.abs(np.linalg.eigvalsh(found.norm)) < 1.06).all()


def test_runs_that_did_not_converge_say_so():
    assert not amp.run("sign", 3.0, 200, runs=4, seed=8, iterations=2).converged.any()
    assert amp.run("sign", 3.0, 200, runs=4, seed=8, iterations=40).converged.all()


def test_runs_that_diverge_say_so(monkeypatch):
    """A denoiser that breaks in one run: that run stays at its last finite state, the others do not notice."""
    honest = amp.Channel.denoise

    def broken(self, prepared, omega, V):
        g, slope = honest(self, prepared, omega, V)
        g[0] = math.nan
        return g, slope

    expected = amp.run("sign", 2.0, 60, runs=3, seed=9, iterations=5)
    monkeypatch.setattr(amp.Channel, "denoise", broken)
    with pytest.warns(UserWarning, match="1 of 3 AMP runs diverged"):
        found = amp.run("sign", 2.0, 60, runs=3, seed=9, iterations=5)
    assert found.diverged.tolist() == [True, False, False] and np.isfinite(found.overlap).all()
    np.testing.assert_allclose(found.overlap[1:], expected.overlap[1:], atol=1e-5)


def test_finished_runs_leave_the_batch_unchanged(monkeypatch):
    """Runs that have converged are not iterated further; those that remain go on as if nothing had happened."""
    settings = {"runs": 12, "seed": 10, "iterations": 60}
    shrinking = amp.run("square", 0.9, 100, **settings)
    assert 0 < shrinking.converged.sum() < 12
    monkeypatch.setattr(amp, "CHECK_EVERY", 1000)
    whole = amp.run("square", 0.9, 100, **settings)
    slow = ~whole.converged & ~shrinking.converged
    assert slow.any()
    np.testing.assert_allclose(shrinking.overlap[slow], whole.overlap[slow], atol=0.02)


def test_seeds_decide():
    a, b, c = (amp.run("sign", 1.0, 50, runs=3, seed=s, iterations=5) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.overlap, b.overlap)
    assert np.abs(a.overlap - c.overlap).max() > 1e-3 and len(np.unique(a.overlap)) == 3


def test_large_problems_are_split_into_groups(monkeypatch):
    monkeypatch.setattr(amp, "MOST_BYTES", 8 * 100 * 50 * 2)
    found = amp.run("sign", 2.0, 50, runs=5, seed=1, iterations=15)
    assert found.overlap.shape == (5, 1, 1) and len(np.unique(found.overlap)) == 5


def test_symmetries_of_targets():
    count = {name: len(amp._symmetries(amp.channel(name).model)) for name in ("sign", "square", "parity2", "parity3")}
    assert count == {"sign": 1, "square": 2, "parity2": 4, "parity3": 24}
    assert len(amp._symmetries(amp.channel("committee").model)) == 6
    for s in amp._symmetries(amp.channel("square+parity3").model):
        assert abs(s[0, 0]) == 1


# ------------------------------------------------------------------------------------------------------- spectral start


def samples(name, d, n, runs, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((runs, n, d))
    r = targets.get(name).directions
    return x, np.asarray(targets.get(name)(torch.tensor(x[..., 0] if r == 1 else x[..., :r].copy())))


def test_the_spectral_start_has_the_overlap_of_the_theory():
    """y = h² at α = 2, T = G/(1 + G) with G = y − 1 > −0.98: against the random-matrix formula of `queries`."""

    def transform(y):
        G = torch.clamp(y - 1, min=-0.98)
        return G / (1 + G)

    limit = queries.label_moments("square", 2).spectral_overlap(transform, 2.0, centre=False)
    x, y = samples("square", 300, 600, 12, 0)
    w = amp.spectral_start(x, y, "square").directions[..., 0]
    overlap = np.abs(w[:, 0]) / np.linalg.norm(w, axis=1)
    assert overlap.mean() == pytest.approx(limit, abs=0.05)


def test_the_spectral_start_is_an_eigenvector():
    """Against the dense matrix Σ x xᵀ ⊗ G(I + G)^{−1}/d, with G = (2/π) y times the swap for sign(h1 h2)."""
    x, y = samples("parity2", 40, 400, 1, 1)
    found = amp.spectral_start(x[0], y[0], "parity2", seed=3)
    b = 2 / math.pi
    swap = np.array([[0, 1], [1, 0]])
    T = np.zeros((80, 80))
    for row, label in zip(x[0], y[0], strict=True):
        G = b * label * swap
        T += np.kron(np.outer(row, row), G @ np.linalg.inv(np.eye(2) + G)) / 40
    values, vectors = np.linalg.eigh(T)
    count = len(found.eigenvalues)
    np.testing.assert_allclose(found.eigenvalues, values[-count:], rtol=1e-4)
    w = found.directions.ravel()
    assert np.linalg.norm(vectors[:, -count:].T @ w) == pytest.approx(np.linalg.norm(w), rel=1e-3)


def test_a_trivial_target_needs_no_eigenvector():
    x, y = samples("sign", 200, 400, 4, 2)
    found = amp.spectral_start(x, y, "sign")
    assert found.eigenvalues.shape == (4, 0)
    mean = np.einsum("rnd,rn->rd", x, y)
    cosine = np.sum(mean * found.directions[..., 0], axis=1) / np.linalg.norm(mean, axis=1)
    np.testing.assert_allclose(cosine, 1, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ bad input

BAD = {
    "noise is -1": lambda: amp.weak_recovery_threshold("square", noise=-1),
    "r is 4; at most 3": lambda: amp.classify(lambda h: h.sum(-1), r=4),
    "target 'parity2' has 2 directions": lambda: amp.classify("parity2", r=3),
    "target 'additive' has 4 directions; at most 3": lambda: amp.classify("additive"),
    "did you mean 'square'": lambda: amp.classify("sqare"),
    "target is 3; it must be a name": lambda: amp.classify(3),
    "r must be given": lambda: amp.classify(lambda h: np.prod(h, axis=-1)),
    "not finite": lambda: amp.weak_recovery_threshold(lambda h: np.where(h[..., 0] > 2.5, np.inf, h[..., 1]), r=2),
    "noise inside its link": lambda: amp.classify("noisy_sign", noise=0.1),
    "alpha is 0": lambda: amp.run("sign", 0, 50),
    "alpha is nan": lambda: amp.run("sign", math.nan, 50),
    "alpha is -1": lambda: amp.state_evolution("sign", -1),
    "d is 3;": lambda: amp.run("parity3", 1.0, 3),
    "d is 20.5": lambda: amp.run("sign", 1.0, 20.5),
    "runs is 0": lambda: amp.run("sign", 1.0, 20, runs=0),
    "iterations is 0": lambda: amp.run("sign", 1.0, 20, iterations=0),
    "init is 'warm'; allowed: 'random'": lambda: amp.run("sign", 1.0, 20, init="warm"),
    "init has shape": lambda: amp.state_evolution("sign", 1.0, init=np.eye(2)),
    "overlap must hold": lambda: amp.overlap_map("sign", 1.0, 1.5),
    "overlap has shape": lambda: amp.generalisation_error("parity2", np.zeros((3, 3))),
    "seed is -1": lambda: amp.run("sign", 1.0, 20, seed=-1),
    "CUDA devices": lambda: amp.run("sign", 1.0, 20, device="cuda:7"),
    "needs noise > 0": lambda: amp.channel("linear+abs"),
    "with three directions a channel exists for": lambda: amp.channel("staircase"),
    "x has shape": lambda: amp.spectral_start(np.zeros((5, 3)), np.zeros(4), "sign"),
    "x has d = 2": lambda: amp.spectral_start(np.zeros((5, 2)), np.zeros(5), "parity3"),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_named(words):
    with pytest.raises(ValueError, match=words):
        BAD[words]()
