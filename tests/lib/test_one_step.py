"""One gradient step against autograd, its spike against random matrices, expansions in several directions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lowdim import hermite, nets, sgd, spectra, targets


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("runs", [None, 3])
def test_the_step_is_the_gradient_of_the_written_out_loss(activation, runs, monkeypatch):
    network = nets.two_layer(6, 9, activation, bias=0.7, runs=runs, seed=2)
    rng = torch.Generator().manual_seed(1)
    lead = () if runs is None else (runs,)
    x = torch.randn(*lead, 20, 6, generator=rng, dtype=torch.float64)
    y = torch.randn(*lead, 20, generator=rng, dtype=torch.float64)
    w = network.weights.clone().requires_grad_(True)
    loss = ((y - network.with_weights(w)(x)) ** 2).mean(-1).sum() / 2
    (gradient,) = torch.autograd.grad(loss, w)
    expected = network.weights - 1.7 * math.sqrt(9) * gradient
    torch.testing.assert_close(sgd.one_step(network, x, y, 1.7).weights, expected)
    monkeypatch.setattr(sgd, "BLOCK", 50)
    torch.testing.assert_close(sgd.one_step(network, x, y, 1.7).weights, expected)


def test_steps_of_several_sizes_and_shared_data():
    network = nets.two_layer(4, 5, runs=2, seed=0)
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tanh(x[:, 0])
    both = sgd.one_step(network, x, y, np.array([0.0, 2.0]))
    torch.testing.assert_close(both.weights[0], network.weights[0])
    torch.testing.assert_close(both.weights[1], sgd.one_step(network, x, y, 2.0).weights[1])
    with pytest.raises(ValueError, match="x has shape"):
        sgd.one_step(network, x[:, :3], y, 1.0)


def test_bulk_is_normalised_and_is_what_a_random_matrix_shows():
    rng = np.random.default_rng(1)
    for c in (0.3, 1.0, 2.5):
        low, high = spectra.bulk_edges(c)
        s = np.linspace(low + 1e-6, high, 20001)
        density = spectra.bulk_density(s, c)
        assert np.trapezoid(density, s) == pytest.approx(1, abs=1e-3)
        d = 400
        values = np.linalg.svd(rng.standard_normal((int(c * d), d)) / math.sqrt(d), compute_uv=False)
        assert values.max() == pytest.approx(high, abs=0.05)
        assert np.mean(values**2) == pytest.approx(np.trapezoid(density * s**2, s), rel=0.02)
        assert (spectra.bulk_density(np.array([low / 2, high + 1]), c) == 0).all()


@pytest.mark.parametrize("c", [0.4, 1.0, 2.5])
def test_spikes_of_random_matrices(c):
    """Location and both overlaps against random draws, d = 400; fluctuations are of order d^{-1/2}."""
    rng, d = np.random.default_rng(2), 400
    for theta in (0.5 * c**0.25, 1.5 * c**0.25, 3.0):
        found = []
        for _ in range(6):
            noise = rng.standard_normal((int(c * d), d)) / math.sqrt(d)
            noise[0, 0] += theta
            u, s, v = np.linalg.svd(noise, full_matrices=False)
            found.append((s[0], u[0, 0] ** 2, v[0, 0] ** 2))
        expected = spectra.spike(theta, c)
        location, left, right = np.mean(found, axis=0)
        assert location == pytest.approx(float(expected.location), rel=0.03)
        assert left == pytest.approx(float(expected.left), abs=0.06)
        assert right == pytest.approx(float(expected.right), abs=0.06)


def test_spike_limits():
    at = spectra.spike(np.array([2**0.25, 2**0.25 * (1 + 1e-9), 1e6]), 2.0)
    assert at.location[0] == pytest.approx(1 + math.sqrt(2)) and at.location[1] == pytest.approx(1 + math.sqrt(2))
    assert at.right[0] == 0 and at.right[1] == pytest.approx(0, abs=1e-6) and at.left[1] == pytest.approx(0, abs=1e-6)
    assert at.location[2] == pytest.approx(1e6) and at.right[2] == pytest.approx(1) and at.left[2] == pytest.approx(1)
    # Transposing the matrix exchanges both sides: (Z + θuvᵀ)ᵀ/√c has aspect ratio 1/c and strength θ/√c.
    a, b = spectra.spike(1.9, 2.0), spectra.spike(1.9 / math.sqrt(2), 0.5)
    assert a.location == pytest.approx(b.location * math.sqrt(2))
    assert a.left == pytest.approx(b.right) and a.right == pytest.approx(b.left)
    with pytest.raises(ValueError, match="theta is -1"):
        spectra.spike(-1, 1.0)


def test_the_spike_of_a_step():
    """Strength, location and overlap of the spike of W_1, for a target that has a linear part and for one without."""
    d, n, width, eta = 300, 1500, 300, 6.0
    for target in ("relu", "abs"):
        network = nets.two_layer(d, width, "tanh", runs=8, seed=3)
        # The theory is for |a| = 1, which random outputs meet up to (2N)^{-1/2} only.
        outputs = network.outputs / torch.linalg.vector_norm(network.outputs, dim=-1, keepdim=True)
        network = replace(network, outputs=outputs)
        x = torch.randn(8, n, d, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        after = sgd.one_step(network, x, targets.get(target)(x[..., 0]), eta).weights
        _, s, v = torch.linalg.svd(after, full_matrices=False)
        theory = spectra.step_spike(eta, width / d, n / d, target, "tanh")
        assert float(s[:, 0].mean()) == pytest.approx(float(theory.location), rel=0.05)
        assert float((v[:, 0, 0] ** 2).mean()) == pytest.approx(float(theory.overlap), abs=0.08)
    assert theory.alignment < 1e-20 and theory.overlap < 1e-20
    with pytest.raises(ValueError, match="noise inside"):
        spectra.step_spike(1.0, 1.0, 1.0, "noisy_sign", "tanh")


def test_energies_of_several_directions():
    """‖P_k f‖² by hand for a polynomial, against one direction, and in sum against E[f²]."""
    np.testing.assert_allclose(hermite.energies(targets.get("quadratic"), 2, 4), [9, 5, 19, 0, 0], atol=1e-9)
    one = hermite.coefficients(targets.get("abs"), 6)
    np.testing.assert_allclose(hermite.tensor_coefficients(targets.get("abs"), 1, 6), one, atol=1e-9)
    both = hermite.energies(targets.get("linear+abs"), 2, 6)
    np.testing.assert_allclose(both, one**2 + np.eye(7)[1], atol=1e-9)
    parity = hermite.tensor_coefficients(targets.get("parity3"), 3, 3)
    assert (
        parity[1, 1, 1] == pytest.approx((2 / math.pi) ** 1.5)
        and hermite.energies(targets.get("parity3"), 3, 2).sum() < 1e-18
    )
    smooth = hermite.energies(lambda h: np.sin(h[..., 0] + h[..., 1]), 2, 40)
    assert smooth.sum() == pytest.approx((1 - math.exp(-4)) / 2)
    with pytest.raises(ValueError, match="directions is 4"):
        hermite.energies(targets.get("additive"), 4, 2)
