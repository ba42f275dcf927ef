"""Ridge regressions against brute force and each other, kernels against their features, theory against random draws."""

import math

import numpy as np
import pytest
import torch

from lowdim import hermite, kernels, links, nets, targets

RIDGES = [0.01, 0.3, 5.0]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def solve(features, y, lam, intercept):
    """Ridge regression written out: the normal equations, with an unpenalised column of ones if asked for."""
    n = len(features)
    design = np.hstack([features, np.ones((n, 1))]) if intercept else features
    penalty = lam * np.eye(design.shape[1])
    if intercept:
        penalty[-1, -1] = 0.0
    a = np.linalg.solve(design.T @ design + penalty, design.T @ y)
    return (a[:-1], a[-1]) if intercept else (a, 0.0)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(30, 12), (12, 30), (15, 15)], ids=["primal", "dual", "square"])
def test_ridge_solves_the_normal_equations_and_leaves_one_out(shape, intercept, rng):
    """Coefficients against the normal equations, leave-one-out errors against n refits, for every ridge parameter."""
    n = shape[0]
    features, y = rng.standard_normal(shape) + 0.3, rng.standard_normal(n) + 2.0
    fit = kernels.ridge(features, y, ridges=RIDGES, intercept=intercept)
    for lam, error in zip(RIDGES, fit.loo, strict=True):
        squares = []
        for i in range(n):
            rest = np.arange(n) != i
            a, b = solve(features[rest], y[rest], lam, intercept)
            squares.append((y[i] - features[i] @ a - b) ** 2)
        assert error == pytest.approx(np.mean(squares), rel=1e-8)
        single = kernels.ridge(features, y, ridges=lam, intercept=intercept)
        a, b = solve(features, y, lam, intercept)
        np.testing.assert_allclose(single.coefficients, a, atol=1e-9)
        assert float(single.intercept) == pytest.approx(b, abs=1e-9)
        assert single.loo[0] == pytest.approx(error, rel=1e-8)
    best = RIDGES[int(np.argmin(fit.loo))]
    a, b = solve(features, y, best, intercept)
    assert fit.ridge == best
    np.testing.assert_allclose(fit.predict(features), features @ a + b, atol=1e-9)


@pytest.mark.parametrize("intercept", [False, True])
def test_kernel_ridge_leaves_one_out(intercept, rng):
    n = 20
    x, y = rng.standard_normal((n, 3)), rng.standard_normal(n) + 1.0
    fit = kernels.kernel_ridge(x, y, "exponential", ridges=RIDGES, intercept=intercept)
    for lam, error in zip(RIDGES, fit.loo, strict=True):
        squares = []
        for i in range(n):
            rest = np.arange(n) != i
            less = kernels.kernel_ridge(x[rest], y[rest], "exponential", ridges=lam, intercept=intercept)
            squares.append((y[i] - less.predict(x[i : i + 1])[0]) ** 2)
        assert error == pytest.approx(np.mean(squares), rel=1e-8)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(40, 7), (7, 40)])
def test_a_linear_kernel_is_ridge(shape, intercept, rng):
    x, y, new = rng.standard_normal(shape), rng.standard_normal(shape[0]), rng.standard_normal((9, shape[1]))
    a = kernels.ridge(x / math.sqrt(shape[1]), y, ridges=RIDGES, intercept=intercept)
    b = kernels.kernel_ridge(x, y, "linear", ridges=RIDGES, intercept=intercept)
    np.testing.assert_allclose(a.loo, b.loo, rtol=1e-9)
    assert a.ridge == b.ridge
    np.testing.assert_allclose(a.predict(new / math.sqrt(shape[1])), b.predict(new), atol=1e-10)


def test_a_common_factor_of_kernel_and_ridge_changes_nothing(rng):
    x, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    plain = kernels.kernel_ridge(x, y, lambda a, b: torch.exp(a @ b.mT / 4))
    scaled = kernels.kernel_ridge(x, y, lambda a, b: 100 * torch.exp(a @ b.mT / 4))
    np.testing.assert_allclose(scaled.ridge, 100 * plain.ridge)
    np.testing.assert_allclose(scaled.predict(x), plain.predict(x), atol=1e-9)


def test_ridge_less_and_ridge_only(rng):
    """λ → 0 with more features than samples interpolates; λ → ∞ predicts zero, or the mean with an intercept."""
    features, y = rng.standard_normal((20, 50)), rng.standard_normal(20) + 3
    np.testing.assert_allclose(kernels.ridge(features, y, ridges=1e-10).predict(features), y, atol=1e-8)
    np.testing.assert_allclose(kernels.ridge(features, y, ridges=1e12).predict(features), 0, atol=1e-8)
    constant = kernels.ridge(features, y, ridges=1e12, intercept=True).predict(features)
    np.testing.assert_allclose(constant, y.mean(), atol=1e-8)


@pytest.mark.parametrize("shape", [(40, 10), (10, 40)], ids=["primal", "dual"])
@pytest.mark.parametrize("intercept", [False, True])
def test_runs_are_independent_regressions(shape, intercept, rng):
    """A leading runs axis, on the features, on the labels or on both, gives what single regressions give."""
    features, y = rng.standard_normal((3, *shape)), rng.standard_normal((3, shape[0]))
    new = rng.standard_normal((6, shape[1]))
    for many_features, many_labels in [(True, True), (False, True), (True, False)]:
        f, t = (features if many_features else features[0]), (y if many_labels else y[0])
        fit = kernels.ridge(f, t, intercept=intercept)
        for run in range(3):
            single = kernels.ridge(
                features[run if many_features else 0], y[run if many_labels else 0], intercept=intercept
            )
            assert fit.ridge[run] == pytest.approx(float(single.ridge))
            np.testing.assert_allclose(fit.loo[run], single.loo, rtol=1e-7)
            np.testing.assert_allclose(fit.predict(new)[run], single.predict(new), atol=1e-8)


def test_kernel_runs_and_blocks(rng, monkeypatch):
    """Small blocks change nothing, with a runs axis and without."""
    x, y, new = rng.standard_normal((2, 25, 3)), rng.standard_normal((2, 25)), rng.standard_normal((11, 3))
    network = nets.two_layer(3, 40, "tanh", bias=1.0, runs=2, seed=1)
    whole = [kernels.kernel_ridge(x, y).predict(new), kernels.random_features(x, y, network).predict(new)]
    narrow = kernels.random_features(x, y, nets.two_layer(3, 9, "tanh", runs=2, seed=1)).loo
    monkeypatch.setattr(kernels, "BLOCK", 120)
    pieces = [kernels.kernel_ridge(x, y).predict(new), kernels.random_features(x, y, network).predict(new)]
    for a, b in zip(whole, pieces, strict=True):
        assert a.shape == (2, 11)
        np.testing.assert_allclose(a, b, atol=1e-9)
    again = kernels.random_features(x, y, nets.two_layer(3, 9, "tanh", runs=2, seed=1)).loo
    np.testing.assert_allclose(narrow, again, rtol=1e-9)
    one = kernels.kernel_ridge(x[1], y[1])
    np.testing.assert_allclose(whole[0][1], one.predict(new), atol=1e-9)


def test_random_features_are_ridge_on_the_features(rng):
    x, y = rng.standard_normal((50, 6)), rng.standard_normal(50)
    network = nets.two_layer(6, 30, "relu", bias=0.5, seed=4)
    by_network = kernels.random_features(x, y, network, ridges=RIDGES)
    by_number = kernels.random_features(x, y, 30, "relu", bias=0.5, seed=4, ridges=RIDGES)
    by_hand = kernels.ridge(network.features(torch.as_tensor(x)), y, ridges=RIDGES)
    np.testing.assert_allclose(by_network.predict(x), by_hand.predict(network.features(torch.as_tensor(x))))
    np.testing.assert_array_equal(by_network.predict(x), by_number.predict(x))
    other = kernels.random_features(x, y, 30, "relu", bias=0.5, seed=5, ridges=RIDGES)
    assert np.abs(other.predict(x) - by_number.predict(x)).max() > 1e-3


LIMITS = {
    "relu": ("relu", 0.0, kernels.arc_cosine()),
    "relu with biases": ("relu", 0.8, kernels.arc_cosine(0.8)),
    "erf": ("erf", 0.0, kernels.arc_sine()),
    "erf with biases": ("erf", 1.2, kernels.arc_sine(1.2)),
    "cos": ("cos", 4.0, lambda x, y: kernels.gaussian()(x, y) / 2),
}


@pytest.mark.parametrize("name", LIMITS)
def test_features_converge_to_their_kernel(name):
    """⟨φ(x), φ(y)⟩ over 400 000 neurons is the kernel up to its sampling error, for inputs of different lengths."""
    activation, bias, kernel = LIMITS[name]
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * torch.arange(1, 5)[:, None]
    x[3] = x[0]
    features = nets.two_layer(5, 400_000, activation, bias=bias, seed=2).features(x)
    expected = kernel(x, x)
    assert ((features @ features.mT - expected).abs() < 0.01 * expected.diagonal().max()).all()


def test_wide_random_features_are_kernel_ridge(rng):
    x, new = rng.standard_normal((60, 4)), rng.standard_normal((30, 4))
    y = targets.get("relu")(x[:, 0])
    limit = kernels.kernel_ridge(x, y, "arc-cosine", ridges=0.05).predict(new)
    gaps = [
        np.mean((kernels.random_features(x, y, N, "relu", ridges=0.05, seed=3).predict(new) - limit) ** 2)
        for N in (100, 10_000)
    ]
    # The squared gap falls like 1/N, by a factor of 100 here.
    assert 20 < gaps[0] / gaps[1] < 500


def test_mehler_kernel_is_diagonal_in_hermite_polynomials():
    """The closed form against the sum over products of Hermite polynomials in two dimensions, and its spectrum."""
    rho, degree = 0.3, 40
    x = torch.tensor([[0.3, -1.2], [1.7, 0.4], [-0.8, 0.9]], dtype=torch.float64)
    h = hermite.basis(x, degree)
    weights = rho ** (torch.arange(degree + 1)[:, None] + torch.arange(degree + 1)).double()
    total = torch.einsum("ia,ib,ja,jb,ab->ij", h[:, 0], h[:, 1], h[:, 0], h[:, 1], weights)
    torch.testing.assert_close(kernels.mehler(rho)(x, x), total, rtol=1e-9, atol=1e-9)
    values, counts = kernels.mehler_spectrum(rho, 2, degree)
    # E[k(x, x)] = Σ_k B_k ρ^k = (1 − ρ)^{−d}.
    assert values @ counts == pytest.approx((1 - rho) ** -2)


@pytest.mark.parametrize(("d", "scale"), [(1, 1.0), (3, 2.0), (16, 1.0)])
def test_gaussian_spectrum_has_the_right_traces(d, scale):
    """Σ B_k λ_k = E[k(x, x)] = 1 and Σ B_k λ_k² = E[k(x, y)²] = (1 + 4 s²/d)^{−d/2}."""
    values, counts = kernels.gaussian_spectrum(d, scale, degree=80)
    assert values @ counts == pytest.approx(1.0)
    assert values**2 @ counts == pytest.approx((1 + 4 * scale**2 / d) ** (-d / 2))


@pytest.mark.parametrize("width", [math.inf, 400.0], ids=["kernel", "random features"])
def test_expected_learning_solves_its_equations(width):
    values, counts = kernels.mehler_spectrum(0.1, 10)
    for n, lam in [(5, 0.01), (300, 1e-4), (5000, 2.0)]:
        found = kernels.expected_learning(values, counts, n, lam, width)
        gamma = values[1] * (1 / found.learned[1] - 1)
        z = counts @ found.learned
        assert z + lam / (gamma * (1 - z / width)) == pytest.approx(n)
        assert z < min(n, width) and found.overfitting >= 1
        assert (np.diff(found.learned) < 0).all()


def test_expected_learning_limits():
    values, counts = kernels.mehler_spectrum(0.1, 10)
    wide = kernels.expected_learning(values, counts, 200, 0.01, 1e9)
    kernel = kernels.expected_learning(values, counts, 200, 0.01)
    np.testing.assert_allclose(wide.learned, kernel.learned, atol=1e-6)
    np.testing.assert_allclose(wide.unlearned, kernel.unlearned, atol=1e-6)
    assert wide.overfitting == pytest.approx(kernel.overfitting, rel=1e-6)
    nothing = kernels.expected_learning(values, counts, 200, 1e9)
    assert nothing.risk([0, 1.0, 2.0]) == pytest.approx(3.0, rel=1e-5)
    everything = kernels.expected_learning([1.0], [10.0], 1e6, 1e-6)
    assert everything.risk([3.0]) < 1e-9
    # Ordinary least squares: B parameters, n samples, noise σ²: the excess error is σ² B/(n − B).
    assert kernels.expected_learning([1.0], [10.0], 50, 1e-9).risk([0.0], noise=2.0) == pytest.approx(2 * 10 / 40)


@pytest.mark.parametrize("width", [math.inf, 60.0], ids=["kernel", "random features"])
def test_expected_learning_against_regressions(width):
    """Gaussian features with a known spectrum: learned fractions and risks over 200 draws against the formula."""
    rng = np.random.default_rng(0)
    values, counts, n, lam = np.array([1.0, 0.1]), np.array([10, 100]), 80, 0.3
    root = np.sqrt(np.repeat(values, counts))
    learned, risks = [], []
    for _ in range(200):
        z = rng.standard_normal((n, 110))
        y = z[:, 0] + z[:, 10]
        features = z * root
        mixing = rng.standard_normal((110, int(width))) / math.sqrt(width) if width < math.inf else np.eye(110)
        a = kernels.ridge(features @ mixing, y, ridges=lam).coefficients.numpy()
        found = root * (mixing @ a)
        learned.append(found[[0, 10]])
        found[[0, 10]] -= 1
        risks.append(found @ found)
    theory = kernels.expected_learning(values, counts, n, lam, width)
    np.testing.assert_allclose(np.mean(learned, axis=0), theory.learned, atol=0.03)
    assert np.mean(risks) == pytest.approx(theory.risk([1.0, 1.0]), rel=0.05)


def test_named_kernels_are_symmetric_and_positive(rng):
    x = torch.as_tensor(rng.standard_normal((12, 4)))
    for name in kernels.NAMED:
        gram = kernels.resolve(name)(x, x)
        torch.testing.assert_close(gram, gram.mT)
        assert torch.linalg.eigvalsh(gram).min() > -1e-9, name
    # On the sphere only the angle counts.
    torch.testing.assert_close(kernels.exponential()(x, x), kernels.exponential()(3 * x, x))


def test_memory_is_asked_for_before_work(monkeypatch):
    """20 000 of either fit into 13 GB; beyond the memory of the machine the error says what is needed."""
    monkeypatch.setattr(kernels, "_memory", lambda place: 16e9)
    kernels._check_memory(20_000, 1, torch.device("cpu"), "n is 20000")
    monkeypatch.setattr(kernels, "_memory", lambda place: 1e5)
    x, y = np.zeros((100, 2)), np.zeros(100)
    with pytest.raises(ValueError, match=r"n is 100.*0\.0 GB"):
        kernels.kernel_ridge(x, y)
    with pytest.raises(ValueError, match="n is 100 and the number of features 90"):
        kernels.random_features(x, y, 90)
    monkeypatch.setattr(kernels, "_memory", lambda place: math.inf)
    with pytest.raises(ValueError, match="at most 32000"):
        kernels._check_memory(32_001, 1, torch.device("cpu"), "n is 32001")


BAD = {
    "x has shape": {"x": np.zeros(5)},
    "y has shape": {"y": np.zeros(4)},
    "x has entries": {"x": np.full((6, 2), np.nan)},
    "y has entries": {"y": np.full(6, np.inf)},
    "ridges is 0": {"ridges": 0},
    r"ridges is \[1, -1\]": {"ridges": [1, -1]},
    r"ridges is \[\]": {"ridges": []},
    "device is 'gpu'": {"device": "gpu"},
}


@pytest.mark.parametrize("words", BAD)
@pytest.mark.parametrize("regression", ["kernel", "features"])
def test_bad_input_is_named(regression, words):
    call = kernels.kernel_ridge if regression == "kernel" else lambda **k: kernels.random_features(features=4, **k)
    with pytest.raises(ValueError, match=words):
        call(**{"x": np.ones((6, 2)), "y": np.ones(6)} | BAD[words])


def test_more_bad_input_is_named():
    x, y = np.ones((6, 2)), np.ones(6)
    with pytest.raises(ValueError, match="kernel is 'gausian'"):
        kernels.kernel_ridge(x, y, "gausian")
    with pytest.raises(ValueError, match="kernel is 3"):
        kernels.kernel_ridge(x, y, 3)
    with pytest.raises(ValueError, match="it must return shape"):
        kernels.kernel_ridge(x, y, lambda a, b: a.sum(-1))
    with pytest.raises(ValueError, match="lost in the rounding"):
        kernels.kernel_ridge(np.arange(6.0)[:, None], y, "linear", ridges=1e-30)
    with pytest.raises(ValueError, match="rho is 1"):
        kernels.mehler(1)
    with pytest.raises(ValueError, match="features is 0"):
        kernels.random_features(x, y, 0)
    with pytest.raises(ValueError, match="known targets"):
        kernels.random_features(x, y, 4, "tahn")
    with pytest.raises(ValueError, match="dimension 2; the network takes"):
        kernels.random_features(x, y, nets.two_layer(3, 4))
    with pytest.raises(ValueError, match="2 directions"):
        nets.two_layer(3, 4, "parity2")
    with pytest.raises(ValueError, match="features has shape"):
        kernels.ridge(x, y, ridges=1.0).predict(np.ones((3, 5)))
    with pytest.raises(ValueError, match="ridge is 0"):
        kernels.expected_learning([1.0], [1.0], 3, 0)


def test_a_network_of_any_activation():
    """Names, links and functions written with NumPy or torch are the same activation."""
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kinds = ["tanh", links.Link("tanh"), torch.tanh, np.tanh]
    outputs = [nets.two_layer(3, 5, kind, bias=0.3, seed=1)(x) for kind in kinds]
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0])
