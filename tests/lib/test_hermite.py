"""Hermite expansions: identities, exact cases, and links with kinks and jumps at places nobody told us."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import hermite_e

from lowdim import hermite


def normalised(k):
    """h_k from NumPy's He_k: an independent route."""
    return lambda z: hermite_e.hermeval(z, [0] * k + [1]) / math.sqrt(math.factorial(k))


@pytest.mark.parametrize("k", range(13))
def test_basis_agrees_with_numpy_and_is_orthonormal(k):
    z, w = hermite.gauss(40)
    table = hermite.basis(z, 12)
    np.testing.assert_allclose(table[:, k], normalised(k)(z), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(table.T @ (w * table[:, k]), np.eye(13)[k], atol=1e-11)


def test_basis_is_the_same_in_numpy_and_torch():
    z = np.linspace(-4, 4, 31)
    np.testing.assert_allclose(hermite.basis(torch.tensor(z), 9).numpy(), hermite.basis(z, 9), rtol=1e-13)


def test_correlated_gaussians_pick_the_power_of_their_correlation():
    """E[h_j(z) h_k(h)] = δ_jk m^k."""
    z, w = hermite.gauss(30)
    m = 0.6
    h = m * z[:, None] + math.sqrt(1 - m**2) * z[None, :]
    weights = w[:, None] * w[None, :]
    moments = np.einsum("ab,aj,abk->jk", weights, hermite.basis(z, 5), hermite.basis(h, 5))
    np.testing.assert_allclose(moments, np.diag(m ** np.arange(6)), atol=1e-11)


def test_derivative_lowers_the_degree():
    alpha = np.array([0.3, -1.0, 0.5, 2.0])
    z = np.linspace(-3, 3, 41)
    step = 1e-6
    slope = (hermite.evaluate(alpha, z + step) - hermite.evaluate(alpha, z - step)) / (2 * step)
    np.testing.assert_allclose(hermite.evaluate(hermite.derivative(alpha), z), slope, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_coefficients_of_polynomials_up_to_degree_twenty(seed):
    alpha = np.random.default_rng(seed).standard_normal(21)
    found = hermite.coefficients(lambda z: hermite.evaluate(alpha, z), 20)
    assert np.abs(found - alpha).max() < 1e-10


def test_coefficients_of_a_monomial_relative_to_its_size():
    """z^20 = Σ_k 20!/(2^j j! k!) He_k with 2j + k = 20: exact integers, up to 10¹⁰ in size."""
    found = hermite.coefficients(lambda z: z**20, 20)
    exact = np.zeros(21)
    for j in range(11):
        k = 20 - 2 * j
        exact[k] = math.factorial(20) / (2**j * math.factorial(j) * math.sqrt(math.factorial(k)))
    assert np.abs(found - exact).max() < 1e-10 * np.abs(exact).max()


def half_line_moment(k, c):
    """E[1{z > c} h_k(z)] = φ(c) h_{k−1}(c)/√k for k ≥ 1, the Gaussian tail for k = 0."""
    if k == 0:
        return 0.5 * math.erfc(c / math.sqrt(2))
    density = math.exp(-(c**2) / 2) / math.sqrt(2 * math.pi)
    return density * float(normalised(k - 1)(np.array(c))) / math.sqrt(k)


def ramp_moment(k, c):
    """E[(z − c)_+ h_k(z)]: integrate the jump once, E[f h_k] = E[f' h_{k−1}]/√k."""
    if k == 0:
        return math.exp(-(c**2) / 2) / math.sqrt(2 * math.pi) - c * half_line_moment(0, c)
    return half_line_moment(k - 1, c) / math.sqrt(k)


KINKED = {
    "abs": (np.abs, lambda k: ramp_moment(k, 0) * (1 + (-1) ** k)),
    "sign": (np.sign, lambda k: half_line_moment(k, 0) * (1 - (-1) ** k)),
    "relu": (lambda z: np.maximum(z, 0), lambda k: ramp_moment(k, 0)),
    "shifted relu": (lambda z: torch.relu(z + 0.7), lambda k: ramp_moment(k, -0.7)),
    "window": (
        lambda z: (np.abs(z) < 0.8123).astype(float),
        lambda k: (k == 0) - half_line_moment(k, 0.8123) * (1 + (-1) ** k),
    ),
    "late jump": (lambda z: np.where(z > 2.345678, 1.0, 0.0), lambda k: half_line_moment(k, 2.345678)),
}


@pytest.mark.parametrize("name", KINKED)
def test_coefficients_of_links_with_kinks_and_jumps(name):
    f, exact = KINKED[name]
    expected = np.array([exact(k) for k in range(21)])
    assert np.abs(hermite.coefficients(f, 20) - expected).max() < 1e-10


def test_gauss_hermite_alone_would_not_do():
    """Why the adaptive rule exists: 100 Gauss–Hermite nodes miss the coefficients of sign by far more than 1e-6."""
    z, w = hermite.gauss(100)
    assert abs(w @ (np.sign(z) * z) - math.sqrt(2 / math.pi)) > 1e-3


EXPONENTS = {
    "tanh": (np.tanh, 1),
    "torch tanh": (torch.tanh, 1),
    "sin": (np.sin, 1),
    "cos": (np.cos, 2),
    "abs": (np.abs, 2),
    "sign": (np.sign, 1),
    "bump": (lambda z: z**2 * np.exp(-(z**2)), 4),
    "He3 + He5": (lambda z: normalised(3)(z) + normalised(5)(z), 3),
    "constant + He4": (lambda z: 7 + normalised(4)(z), 4),
    "He6 scaled by 1e-8": (lambda z: 1e-8 * normalised(6)(z), 6),
    "He5 + 1e-6 He2": (lambda z: normalised(5)(z) + 1e-6 * normalised(2)(z), 2),
    "large constant + He3": (lambda z: 1e4 + normalised(3)(z), 3),
    "integers": (lambda z: (z > 0).astype(int), 1),
    "constant": (lambda z: np.full_like(z, 3.0), math.inf),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_information_exponent(name):
    f, exponent = EXPONENTS[name]
    assert hermite.information_exponent(f) == exponent


@pytest.mark.parametrize("k", range(1, 21))
def test_information_exponent_of_each_hermite_polynomial(k):
    assert hermite.information_exponent(normalised(k)) == k


def test_information_exponent_beyond_max_degree_is_infinite():
    assert hermite.information_exponent(normalised(6), max_degree=5) == math.inf
    assert isinstance(hermite.information_exponent(normalised(6)), int)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hermite.coefficients(np.tanh, -1), "degree is -1"),
        (lambda: hermite.coefficients(np.tanh, 2.5), "degree is 2.5"),
        (lambda: hermite.information_exponent(np.tanh, 0), "max_degree is 0"),
        (lambda: hermite.coefficients(3.0, 2), "f is 3.0"),
        (lambda: hermite.coefficients(lambda z: 1.0, 2), r"f returns shape \(\)"),
        (lambda: hermite.coefficients(lambda z: z[:2], 2), "f returns shape"),
        (lambda: hermite.coefficients(math.tanh, 2), "must be vectorised"),
        (lambda: hermite.coefficients(lambda z: np.where(z > 1, np.nan, z), 2), "must be finite"),
        (lambda: hermite.coefficients(lambda z: np.sin(1e7 * z), 2), "could not be integrated"),
        (lambda: hermite.coefficients(lambda z: z + 1j, 2), "complex"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
