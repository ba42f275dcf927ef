"""Tree targets, three-layer networks and layer-wise training: gradients, limits, invariances, bad input, devices."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lowdim import hermite, kernels, layerwise, nets, sgd, targets
from tests.lib.test_trainers import NoHostReads


def small(runs=2, d=16, r=1, widths=(60, 40), seed=1, **law):
    """A small tree and a network that fits it, in double precision."""
    tree = targets.tree(d, r, runs=runs, seed=seed, dtype=torch.float64)
    network = nets.three_layer(d, widths, runs=runs, seed=seed + 1, dtype=torch.float64, **law)
    return tree, network


def test_a_tree_is_the_written_out_sum():
    tree = targets.tree(25, 2, seed=3, dtype=torch.float64)
    assert (tree.d, tree.r, tree.width) == (25, 2, 5)
    torch.testing.assert_close(tree.directions @ tree.directions.mT, torch.eye(10, dtype=torch.float64))
    x = torch.randn(7, 25, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for row, y in zip(x, tree(x), strict=True):
        total = 0.0
        for i in range(2):
            z = tree.directions[5 * i : 5 * i + 5] @ row
            total += math.tanh(float(tree.coefficients[i] @ (z**2 - 1 + z**3 - 3 * z)))
        assert float(y) == pytest.approx(total, abs=1e-12)


def test_h_has_mean_zero_and_variance_eight():
    """E[(He2 + He3)²] = 2! + 3! and |a| = 1; sixth moments of He3 make the spread of the sample variance about 0.06."""
    tree = targets.tree(16, 2, seed=1)
    h = tree.second(torch.randn(400_000, 16, generator=torch.Generator().manual_seed(0)))
    assert h.mean(0).abs().max() < 0.03 and (h.var(0) - 8).abs().max() < 0.5
    assert abs(float((h[:, 0] * h[:, 1]).mean())) < 0.1


def test_runs_of_a_tree_are_independent_and_split():
    tree = targets.tree(16, runs=5, seed=1)
    x = torch.randn(5, 9, 16, generator=torch.Generator().manual_seed(0))
    parts = tree.split(2)
    assert [len(part.directions) for part in parts] == [2, 2, 1]
    again = torch.cat([part(v) for part, v in zip(parts, x.split(2), strict=True)])
    torch.testing.assert_close(again, tree(x))
    assert (tree(x[0])[0] - tree(x[0])[1]).abs().max() > 0.1


def test_a_network_is_the_written_out_formula():
    network = nets.three_layer(5, (4, 3), ("tanh", "relu"), seed=2, dtype=torch.float64)
    rng = np.random.default_rng(0)
    network = replace(network, outputs=torch.tensor(rng.standard_normal(3)), intercept=torch.tensor(0.3))
    x = rng.standard_normal((6, 5))
    w1, b1, w2, b2, w3 = (
        v.numpy() for v in (network.first, network.first_biases, network.second, network.second_biases, network.outputs)
    )
    phi = np.tanh(x @ w1.T + b1) / 2
    expected = np.maximum(phi @ w2.T + b2, 0) @ w3 / math.sqrt(3) + 0.3
    np.testing.assert_allclose(network(torch.tensor(x)).numpy(), expected, atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(w1, axis=1), 1, atol=1e-12)


def test_the_orthogonalised_step_is_a_gradient():
    """M v is −1/√2 times the gradient of the correlation loss −(1/n) Σ t_i h₂(⟨v, x_i⟩) at every v."""
    tree, _ = small(runs=1)
    x = torch.randn(1, 300, 16, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    y = tree(x)
    m = layerwise.degree_two(x, y)
    design = torch.cat([torch.ones(300, 1, dtype=torch.float64), x[0]], 1)
    t = y[0] - design @ torch.linalg.lstsq(design, y[0][:, None]).solution[:, 0]
    v = torch.randn(16, generator=torch.Generator().manual_seed(6), dtype=torch.float64, requires_grad=True)
    loss = -(t * hermite.evaluate([0, 0, 1.0], x[0] @ v)).mean()
    gradient = torch.autograd.grad(loss, v)[0]
    torch.testing.assert_close(m[0] @ v.detach(), -gradient / math.sqrt(2), atol=1e-5, rtol=1e-5)


def test_the_degree_two_matrix_points_along_the_tree():
    """E[M] = Σ_j c_j w*_j w*_jᵀ, nothing outside the span; integration by parts gives c_j = E[∂²y/∂z_j²]."""
    tree = targets.tree(9, runs=1, seed=4, dtype=torch.float64)
    x = torch.randn(1, 400_000, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    m = layerwise.degree_two(x, tree(x))[0]
    w, a = tree.directions[0], tree.coefficients[0, 0]
    inside = w @ m @ w.mT
    outside = m - w.mT @ inside @ w
    z, h = x[0] @ w.mT, tree.second(x)[0, :, 0]
    slope = 1 - torch.tanh(h) ** 2
    first, second = 2 * z + 3 * z**2 - 3, 2 + 6 * z
    c = (slope[:, None] * (second * a - 2 * torch.tanh(h)[:, None] * (a * first) ** 2)).mean(0)
    assert (inside.diagonal() - c).abs().max() < 0.03
    assert outside.abs().max() < 0.02 and inside.diagonal().abs().min() > 0.1


@pytest.mark.parametrize("layer", ["first", "second"])
def test_preconditioned_steps_follow_the_gradient(layer):
    """Σ inputs ⊗ slopes · residual is the gradient of ½ Σ (y − f)² with respect to V or U, by autograd."""
    _, network = small(runs=1, widths=(12, 9))
    rng = torch.Generator().manual_seed(3)
    options = {"generator": rng, "dtype": torch.float64}
    k = 4 if layer == "first" else 2
    inputs = torch.randn(1, 50, 16 if layer == "first" else 12, **options)
    mix = torch.randn(1, 12 if layer == "first" else 9, k, **options)
    w, y = torch.randn(1, mix.shape[1], **options), torch.randn(1, 50, **options)
    theta = (torch.randn(1, inputs.shape[-1], k, **options) / 4).requires_grad_(True)
    biases = network.first_biases if layer == "first" else network.second_biases
    sigma = network.activations[0 if layer == "first" else 1]
    f = (sigma.torch((inputs @ theta) @ mix.mT + biases[:, None]) * w[:, None]).sum(-1) / math.sqrt(mix.shape[1])
    gradient = torch.autograd.grad(0.5 * (y - f).square().sum(), theta)[0]
    with torch.no_grad():
        if layer == "first":
            slopes = layerwise.first_slopes(network, mix, theta, w, inputs)
        else:
            slopes = layerwise.second_slopes(network, inputs @ theta, mix, w)
        written = inputs.mT @ (slopes * (y - f)[..., None])
    torch.testing.assert_close(written, -gradient)


def test_heads_are_ridge_regression():
    """One λ, no choice: the head is that of `kernels.ridge`, whose λ is n times ours."""
    rng = torch.Generator().manual_seed(2)
    f, y = torch.randn(1, 90, 7, generator=rng, dtype=torch.float64), torch.randn(1, 90, generator=rng).double()
    head = layerwise.fit(f, y, 70, 90, ridges=(0.3,))
    centred = f[0, :70] - f[0, :70].mean(0)
    lam = 0.3 * float((centred.T @ centred).diagonal().mean())
    other = kernels.ridge(f[0, :70], y[0, :70], ridges=lam, intercept=True)
    np.testing.assert_allclose(head(f)[0].numpy(), other.predict(f[0]), atol=1e-10)


def test_ridges_are_chosen_on_held_out_rows_alone():
    """Other labels after row n change nothing, other labels in cut..n−1 may change the choice but not the path."""
    rng = torch.Generator().manual_seed(2)
    f, y = torch.randn(1, 200, 40, generator=rng).double(), torch.randn(1, 200, generator=rng).double()
    a = layerwise.fit(f, y, 60, 120)
    changed = y.clone()
    changed[:, 120:] = 100.0
    torch.testing.assert_close(layerwise.fit(f, changed, 60, 120).w, a.w)
    errors = [
        float((layerwise.fit(f, y, 60, 120, (r,))(f) - y)[:, 60:120].square().mean()) for r in layerwise.HEAD_RIDGES
    ]
    assert float((a(f) - y)[:, 60:120].square().mean()) == pytest.approx(min(errors))


def test_explained_variance_in_its_limits():
    rng = torch.Generator().manual_seed(2)
    h, noise = torch.randn(2, 5000, 2, generator=rng), torch.randn(2, 5000, 2, generator=rng)
    turn = torch.tensor([[2.0, 1.0], [-1.0, 3.0]])
    torch.testing.assert_close(layerwise.explained(h, h @ turn + 5), torch.ones(2, 2, dtype=torch.float64))
    assert layerwise.explained(h, noise).max() < 0.01
    total = h.sum(-1, keepdim=True)
    assert (layerwise.explained(h, total) - 0.5).abs().max() < 0.05


@pytest.mark.parametrize("scenario", sgd.SCENARIOS)
def test_the_returned_network_has_the_reported_error(scenario):
    """The error is that of the network itself on the test rows, drawn again from the same seed."""
    tree, network = small()
    result = sgd.train_three_layer(network, tree, 300, scenario=scenario, test=200, seed=7)
    data = sgd._tree_data(tree, 300, 240, 200, torch.Generator().manual_seed(7), torch.float64)
    np.testing.assert_allclose(result.errors, data.test_error(result.network(data.x)).numpy(), rtol=1e-8)
    assert result.network.widths == (60, 40) and not result.diverged.any()


def test_what_a_scenario_leaves_alone():
    tree, network = small()
    found = sgd.train_three_layer(network, tree, 300, scenario=("I", "II", "III"), test=200, seed=7)
    one, two, three = (found[s].network for s in sgd.SCENARIOS)
    assert torch.equal(one.first, network.first) and torch.equal(one.second, network.second)
    assert torch.equal(two.second, network.second) and not torch.equal(two.first, network.first)
    assert torch.equal(three.first, two.first) and not torch.equal(three.second, network.second)
    assert torch.linalg.matrix_rank(two.first).tolist() == [4, 4]
    assert torch.linalg.matrix_rank(three.second).tolist() == [1, 1]
    alone = sgd.train_three_layer(network, tree, 300, scenario="III", test=200, seed=7)
    np.testing.assert_array_equal(alone.errors, found["III"].errors)


def test_runs_axes_and_groups_of_runs(monkeypatch):
    """A run alone, without a runs axis, is the first run of many when it gets the same draws."""
    tree, network = small(runs=1)
    many = sgd.train_three_layer(network, tree, 200, test=100, seed=3)
    flat = {"first", "first_biases", "second", "second_biases", "outputs", "intercept"}
    lone = replace(network, **{name: getattr(network, name)[0] for name in flat})
    bare = targets.Tree(tree.directions[0], tree.coefficients[0], tree.polynomial, tree.link)
    one = sgd.train_three_layer(lone, bare, 200, test=100, seed=3)
    assert one.errors.shape == () and one.network.first.ndim == 2
    np.testing.assert_allclose(one.errors, many.errors[0])
    tree, network = small(runs=3)
    monkeypatch.setattr(sgd, "LAYER_BLOCK", 1)
    grouped = sgd.train_three_layer(network, tree, 200, test=100, seed=3)
    assert grouped.errors.shape == (3,) and grouped.network.first.shape == network.first.shape


def test_other_teachers_have_the_same_law():
    """Only angles between rows of W₁ and W* matter: with other directions the mean error is the same."""
    errors = []
    for s in (1, 2):
        tree = targets.tree(16, runs=12, seed=s)
        network = nets.three_layer(16, (60, 60), runs=12, seed=20 + s)
        errors.append(sgd.train_three_layer(network, tree, 900, test=1000, seed=30 + s).errors)
    gap = np.mean(errors[0]) - np.mean(errors[1])
    assert abs(gap) < 4 * math.sqrt(np.var(errors[0]) / 12 + np.var(errors[1]) / 12)


def test_with_many_samples_each_level_is_found():
    """d = 16, n = 20 000: W₁ finds the span, W₂ finds h*, and only with both does the error become small."""
    tree, network = targets.tree(16, runs=2, seed=1), nets.three_layer(16, (70, 80), runs=2, seed=2)
    found = sgd.train_three_layer(network, tree, 20_000, scenario=("I", "II", "III"), seed=3)
    three = found["III"]
    assert three.overlaps[:, 0].max() < 0.6 and three.overlaps[:, -1].min() > 0.98
    assert three.branches[:, 0].max() < 0.3 and three.branches[:, -1].min() > 0.95
    assert three.errors.max() < 0.08
    assert (found["II"].errors > 3 * three.errors).all() and (found["I"].errors > found["II"].errors + 0.2).all()
    # A linear head on cubic features cannot be better than the best cubic polynomial of z.
    z = tree.first(torch.randn(2, 60_000, 16, generator=torch.Generator().manual_seed(9)))
    h = (tree.coefficients[:, None, 0] * tree.polynomial.torch(z)).sum(-1)
    y = torch.tanh(h)
    floor = 1 - ((y - y.mean(1, keepdim=True)) * h).mean(1) ** 2 / (h.square().mean(1) * y.var(1))
    assert (three.shallow[:, -1] > 0.6 * floor.numpy()).all()


def test_two_branches_are_told_apart_when_samples_abound():
    """One gradient step finds the sum of both branches only: R² = 1/2 each. What follows must separate them."""
    tree, network = targets.tree(9, 2, runs=2, seed=1), nets.three_layer(9, (126, 120), runs=2, seed=2)
    data = sgd._tree_data(tree, 24_000, 20_000, 4000, torch.Generator().manual_seed(3), torch.float32)
    features = layerwise._first_features(network, network.first[..., :6] @ tree.directions, data.x)
    branches = layerwise.train_second_layer(network, data, features, 2, 8, lambda: None)[-1]
    head = layerwise.fit(features, data.y, data.cut, data.n)(features)
    alone = layerwise.explained(data.h, head[..., None])
    assert alone.max() < 0.6 and branches.shape == (2, 10, 2)
    assert branches[:, -1].min() > alone.max() + 0.1


def test_divergence_is_said():
    tree, network = small(runs=2)
    network = replace(network, second_biases=torch.full_like(network.second_biases, 1e200))
    network = replace(network, activations=(network.activations[0], nets.resolve_activation("square")))
    with pytest.warns(RuntimeWarning, match="2 of 2 runs diverged"):
        result = sgd.train_three_layer(network, tree, 100, scenario="I", test=50)
    assert np.isinf(result.errors).all() and result.diverged.all()


@pytest.mark.parametrize("r", [1, 2])
@pytest.mark.parametrize("runs", [None, 3])
def test_layerwise_training_stays_on_its_device(r, runs):
    tree = targets.tree(16, r, runs=runs, device="meta")
    network = nets.three_layer(16, (30, 20), ("tanh", "relu"), runs=runs, device="meta")
    with NoHostReads():
        found = sgd.train_three_layer(network, tree, 50, scenario=("I", "II", "III"), test=20)
    for result in found.values():
        assert result.errors.device.type == "meta" and tuple(result.errors.shape) == (() if runs is None else (3,))


BAD = {
    "scenario is 'IV'": {"scenario": "IV"},
    "n is 2;": {"n": 2},
    "n is 10.5": {"n": 10.5},
    "validation is 0": {"validation": 0},
    "validation is 1;": {"validation": 1},
    "steps is": {"steps": (3, 2)},
    "steps is -1": {"steps": (3, 2, -1)},
    "rank is 100": {"rank": 100},
    "test is 0": {"test": 0},
    "seed is -1": {"seed": -1},
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_named(words):
    tree, network = small()
    with pytest.raises(ValueError, match=words):
        sgd.train_three_layer(network, tree, **{"n": 100} | BAD[words])


def test_parts_that_do_not_fit_are_named():
    network = small()[1]
    with pytest.raises(ValueError, match="dimension 16; the target has d = 25"):
        sgd.train_three_layer(network, targets.tree(25, runs=2), 100)
    with pytest.raises(ValueError, match="they must agree"):
        sgd.train_three_layer(network, targets.tree(16, runs=3), 100)
    with pytest.raises(ValueError, match="need d ≥ 20"):
        targets.tree(16, 2, width=10)
    with pytest.raises(ValueError, match="did you mean 'tanh'"):
        targets.tree(16, link="tahn")
    with pytest.raises(ValueError, match="widths is 30"):
        nets.three_layer(16, 30)
    with pytest.raises(ValueError, match="bias is -1"):
        nets.three_layer(16, (3, 3), bias=(-1, 0))
