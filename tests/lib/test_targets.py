"""Targets: the exponents that stand in the catalogue are computed from the functions themselves."""

import itertools
import math

import numpy as np
import pytest
import torch

from lowdim import hermite, links, targets

SINGLE = [name for name in targets.names() if targets.get(name).directions == 1]
FEW = [name for name in targets.names() if 2 <= targets.get(name).directions <= 4]


def half_axis_rule(order):
    """Nodes and weights for N(0, 1) on panels that meet at 0, where parities jump."""
    x, v = np.polynomial.legendre.leggauss(order)
    edges = np.array([-7.0, -3.0, -1.5, 0.0, 1.5, 3.0, 7.0])
    z = ((edges[1:] + edges[:-1])[:, None] + np.diff(edges)[:, None] * x) / 2
    w = np.diff(edges)[:, None] / 2 * v * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return z.ravel(), w.ravel()


def lowest_degree(target, max_degree, transform=lambda y: y):
    """The lowest total degree ≥ 1 with a nonzero tensor Hermite coefficient of the transformed target."""
    r = target.directions
    z, w = half_axis_rule({2: 16, 3: 12, 4: 8}[r])
    grid = np.stack(np.meshgrid(*[z] * r, indexing="ij"), axis=-1)
    values = transform(target(grid))
    tables = hermite.basis(z, max_degree) * w[:, None]
    for _ in range(r):
        values = np.tensordot(values, tables, axes=([0], [0]))
    size = math.sqrt(np.sum(values**2))
    for degree in range(1, max_degree + 1):
        for index in itertools.product(range(max_degree + 1), repeat=r):
            if sum(index) == degree and abs(values[index]) > 1e-5 * size:
                return degree
    return math.inf


@pytest.mark.parametrize("name", SINGLE)
def test_information_exponents_of_single_index_targets(name):
    target = targets.get(name)
    assert hermite.information_exponent(target) == target.information_exponent


@pytest.mark.parametrize("name", FEW)
def test_information_exponents_of_multi_index_targets(name):
    target = targets.get(name)
    assert lowest_degree(target, 4) == target.information_exponent


@pytest.mark.parametrize("name", FEW)
def test_generative_exponents_of_multi_index_targets(name):
    """As for single-index targets. The committee's noise only damps cos(ty + φ), so that it may be left out."""
    target = targets.get(name)
    assert lowest_degree(target, 3, lambda y: np.cos(0.5 * y + 0.4)) == target.generative_exponent


def test_the_tree_target_has_a_small_linear_part():
    """Eight directions are too many for a product rule: E[y h_1] by Monte Carlo, against its standard error."""
    h = np.random.default_rng(0).standard_normal((1_000_000, 8))
    product = targets.get("tree")(h) * h.mean(axis=1) * math.sqrt(8)
    assert abs(product.mean()) > 5 * product.std() / 1000


@pytest.mark.parametrize("name", [name for name in SINGLE if not targets.get(name).is_noisy])
def test_generative_exponents_of_single_index_targets(name):
    """The lowest exponent over bounded transformations cos(ty + φ) of the label.

    (The noisy sign is left out: its labels are ±1, so every transformation is affine and both exponents agree.)
    """
    target = targets.get(name)
    lowest = min(
        hermite.information_exponent(lambda z, t=t, phase=phase: np.cos(t * target(z) + phase), max_degree=6)
        for t in (0.7, 1.9)
        for phase in (0.4, 1.3)
    )
    assert lowest == target.generative_exponent


def test_superorthogonal_moments_vanish():
    """E[g h_k] = E[g² h_k] = 0 for k = 1, 2, yet g is not degenerate: E[g³ h_2] ≠ 0."""
    g = targets.get("superorthogonal")
    z, w = hermite.gauss(60)
    table, values = hermite.basis(z, 2), g(z)
    scale = np.sqrt(w @ values**4)
    for power in (1, 2):
        moments = table[:, 1:].T @ (w * values**power)
        assert np.abs(moments).max() < 1e-8 * scale
    assert abs(table[:, 2] @ (w * values**3)) > 1e-3 * (w @ np.abs(values) ** 3)


def test_un_normalised_and_normalised_polynomials():
    z = np.linspace(-3, 3, 13)
    np.testing.assert_allclose(targets.get("He3")(z), z**3 - 3 * z, atol=1e-12)
    np.testing.assert_allclose(targets.get("He4")(z), z**4 - 6 * z**2 + 3, atol=1e-12)
    np.testing.assert_allclose(targets.get("h2")(z), (z**2 - 1) / math.sqrt(2), atol=1e-12)


@pytest.mark.parametrize("name", targets.names())
def test_every_target_evaluates_alike_in_numpy_and_torch(name):
    target = targets.get(name)
    shape = (50,) if target.directions == 1 else (50, target.directions)
    h = np.random.default_rng(1).standard_normal(shape)
    values = target(h)
    assert values.shape == (50,) and target.latex
    np.testing.assert_allclose(target(torch.tensor(h)).numpy(), values, rtol=1e-12)


def test_noisy_labels_average_to_the_regression_function():
    """E[sign(h + sξ) | h] = erf(h/√(2s²)), and the committee's noise has mean zero."""
    rng = np.random.default_rng(2)
    xi = rng.standard_normal(400_000)
    target = targets.get("noisy_sign")
    for h in (-1.0, 0.2, 0.9):
        assert abs(target.labels(np.full_like(xi, h), xi).mean() - target(np.array([h]))[0]) < 0.01
    committee = targets.get("committee")
    h = np.broadcast_to(np.array([0.5, -1.0, 2.0]), (len(xi), 3))
    labels = committee.labels(h, xi)
    assert abs(labels.mean() - 2.5 / 3) < 0.001 and abs(labels.std() - 0.1) < 0.001
    with pytest.raises(ValueError, match="xi"):
        target.labels(np.zeros(3))


@pytest.mark.parametrize("family", links.FAMILIES)
def test_link_derivatives_agree_with_autograd(family):
    parameters = {"hermite": (0.2, 1.0, -0.5, 0.3), "relu": (0.7,), "erf": (1.3,)}.get(family, ())
    link = links.Link(family, parameters)
    z = torch.linspace(-2.9, 3.1, 50, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(link(z).sum(), z)
    torch.testing.assert_close(link.derivative(z.detach()), slope)
    np.testing.assert_allclose(link.derivative(z.detach().numpy()), slope.numpy())


def test_a_lambda_that_is_a_polynomial_is_recognised_and_others_are_not():
    assert targets.custom(lambda z: z**3 - 3 * z).link.family == "hermite"
    assert targets.custom(lambda z: 0 * z + z**5).information_exponent == 1
    assert targets.custom(np.tanh).link is None
    assert targets.custom(np.abs).link is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: targets.get("He33"), "did you mean 'He3'"),
        (lambda: targets.get("nonsense"), "known targets: h1"),
        (lambda: targets.custom(lambda h: h, directions=2), "target returns shape"),
        (lambda: targets.custom(np.tanh, directions=0), "directions is 0"),
        (lambda: links.Link("cubic"), "family is 'cubic'"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
