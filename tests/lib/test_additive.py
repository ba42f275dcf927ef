"""Additive models: the layer-wise trainer against autograd and against other trainers, its flow, its labels."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from lowdim import exact, flow, functions, hermite, kernels, links, nets, polynomials, queries, results, sgd, targets
from tests.lib.test_trainers import NoHostReads

H3, H4 = links.polynomial([0, 0, 0, 1]), links.polynomial([0, 0, 0, 0, 1])


def positive(network):
    """The network with all output weights 1, so that every sign s_j is +1."""
    return replace(network, outputs=torch.ones_like(network.outputs))


# ------------------------------------------------------------------------------------------------------- the target


def test_values_and_exponents_of_additive_targets():
    z = np.random.default_rng(1).standard_normal((50, 4))
    expected = sum(H3(z[:, m]) for m in range(4)) / 2
    np.testing.assert_allclose(targets.additive("h3", 4)(z), expected, atol=1e-12)
    np.testing.assert_allclose(targets.get("additive")(z), expected, atol=1e-12)
    mixed = targets.additive(["h3", "h4", "h3", "tanh"], 4, [1.0, 2.0, -1.0, 0.5])
    by_hand = (H3(z[:, 0]) + 2 * H4(z[:, 1]) - H3(z[:, 2]) + 0.5 * np.tanh(z[:, 3])) / 2
    np.testing.assert_allclose(mixed(z), by_hand, atol=1e-12)
    np.testing.assert_allclose(mixed(torch.as_tensor(z)).numpy(), by_hand, atol=1e-12)
    assert mixed.information_exponent == 1 and mixed.directions == 4
    assert targets.additive(["h4", "h3"], 2).information_exponent == 3
    one = targets.additive("h3", 1, [2.0])
    np.testing.assert_allclose(one(z[:, 0]), 2 * H3(z[:, 0]), atol=1e-12)
    assert one.directions == 1


def test_energy_of_an_additive_target():
    """E[f²] = Σ c²/M, all of it in the degrees of the links."""
    energies = hermite.energies(targets.additive([H3, H4], 2, [1.0, 0.5]), 2, 5)
    np.testing.assert_allclose(energies, [0, 0, 0, 0.5, 0.125, 0], atol=1e-9)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("tasks is 0", ("h3", 0)),
        ("link is a list of 2", (["h3", "h4"], 3)),
        ("coefficients has 1 entries", ("h3", 2, [1.0])),
        ("coefficients is nan", ("h3", 2, [1.0, math.nan])),
        ("did you mean 'h3'", ("h33", 2)),
        ("link is 'parity2'", ("parity2", 2)),
        ("link is 'noisy_sign'", ("noisy_sign", 2)),
    ],
)
def test_bad_targets_are_named(words, arguments):
    with pytest.raises(ValueError, match=words):
        targets.additive(*arguments)


# ------------------------------------------------------------------------------------------------------ the trainer


@pytest.mark.parametrize("runs", [None, 3])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_step_is_the_gradient_of_the_written_out_loss(runs, rotated):
    """Batch, biases, signs, transformation, step sizes by run and given directions, all at once, against autograd."""
    d, width, size, tasks = 7, 5, 6, 2
    network = nets.two_layer(d, width, "tanh", bias=0.7, runs=runs, seed=3)
    target = targets.additive([H3, links.Link("tanh")], tasks, [1.0, 0.5])
    lead = () if runs is None else (runs,)
    gamma = 0.03 if runs is None else np.array([0.01, 0.02, 0.05])
    frame = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(9), dtype=torch.float64)).Q
    theta = frame[:, :tasks] if rotated else torch.eye(d, dtype=torch.float64)[:, :tasks]
    found = sgd.train_additive(
        network,
        target,
        size,
        lr=gamma,
        batch=size,
        transform=lambda y: y**2 - 1,
        directions=theta if rotated else None,
        seed=4,
    ).networks[-1]
    x = torch.randn(*lead, size, d, generator=torch.Generator().manual_seed(4)).double()
    y = target(x @ theta) ** 2 - 1
    w = torch.nn.functional.normalize(network.weights, dim=-1).requires_grad_(True)
    h = x @ w.mT + network.biases[..., None, :]
    loss = -(y[..., None] * torch.tanh(h) * network.outputs.sign()[..., None, :]).sum()
    (gradient,) = torch.autograd.grad(loss, w)
    gradient = gradient - (gradient * w).sum(-1, keepdim=True) * w
    step = torch.as_tensor(gamma).reshape(-1, 1, 1) if runs else gamma
    expected = torch.nn.functional.normalize(w - step * gradient, dim=-1)
    torch.testing.assert_close(found.weights, expected.detach().to(found.weights.dtype), atol=2e-6, rtol=1e-5)


def arrival(overlaps, samples, level):
    """First recorded number of samples with some |overlap| ≥ level; [runs, records, M] to [runs]."""
    reached = (np.abs(overlaps) >= level).any(-1)
    return np.where(reached.any(-1), samples[reached.argmax(-1)], samples[-1] + 1)


def test_one_sample_a_step_is_online_sgd():
    """A network of one neuron and batch 1 has the law of the exact chain with M directions."""
    d, steps, runs, target = 12, 400, 500, targets.additive("h3", 3)
    network = positive(nets.two_layer(d, 1, "h3", runs=runs, seed=1))
    moments = np.arange(10, steps + 1, 10)
    ours = sgd.train_additive(network, target, moments, lr=0.02, seed=2)
    a = arrival(ours.overlaps[:, :, 0], moments, 0.8)
    chain = exact.online_sgd(target, d, steps, 0.02, runs=runs, student="h3", seed=3)
    first = np.min([chain.samples_to_reach(0.8, direction=m) for m in range(3)], axis=0)
    b = np.minimum(10 * np.ceil(first / 10), steps + 1)
    assert np.mean(a <= steps) > 0.3, "the test needs runs that arrive"
    assert ks_2samp(a, b).pvalue > 1e-3
    slower = sgd.train_additive(network, target, moments, lr=0.012, seed=2)
    assert ks_2samp(arrival(slower.overlaps[:, :, 0], moments, 0.8), b).pvalue < 1e-3, "the test must be able to fail"


def test_small_batches_hardly_change_the_law():
    d, target, moments = 16, targets.additive("h3", 2), np.arange(32, 1601, 32)
    times = []
    for batch in (1, 8):
        network = positive(nets.two_layer(d, 1, "h3", runs=500, seed=5 + batch))
        run = sgd.train_additive(network, target, moments, lr=0.008, batch=batch, seed=6)
        times.append(arrival(run.overlaps[:, :, 0], moments, 0.8))
    assert ks_2samp(*times).pvalue > 1e-3


def test_groups_and_seeds(monkeypatch):
    """Training in groups only changes which numbers are drawn; equal seeds give equal results, others do not."""
    network, target = positive(nets.two_layer(8, 4, "h3", runs=6, seed=1)), targets.additive("h3", 2)
    first, again, other = (sgd.train_additive(network, target, 40, lr=0.01, batch=8, seed=s) for s in (2, 2, 3))
    np.testing.assert_array_equal(first.overlaps, again.overlaps)
    assert np.abs(first.overlaps - other.overlaps).max() > 1e-4
    monkeypatch.setattr(sgd, "CACHED", 1)
    alone = sgd.train_additive(network, target, 40, lr=0.01, batch=8, seed=2)
    assert alone.overlaps.shape == first.overlaps.shape and alone.best.shape == (6, 6, 2)
    # The first run of all is drawn first in both ways only if it is a group of its own: compare with one network.
    single = replace(network, weights=network.weights[:1], biases=network.biases[:1], outputs=network.outputs[:1])
    one = sgd.train_additive(single, target, 40, lr=0.01, batch=8, seed=2)
    np.testing.assert_allclose(alone.overlaps[0], one.overlaps[0], atol=1e-6)


def test_runs_that_share_samples():
    network, target = positive(nets.two_layer(8, 4, "h3", runs=1, seed=1)), targets.additive("h3", 2)
    four = replace(
        network, **{k: getattr(network, k).repeat_interleave(4, 0) for k in ("weights", "biases", "outputs")}
    )
    run = sgd.train_additive(four, target, 60, lr=[0.01, 0.02, 0.01, 0.02], batch=10, share=2, seed=2)
    assert np.abs(run.overlaps[0] - run.overlaps[1]).max() > 1e-3, "other steps"
    assert np.abs(run.overlaps[0] - run.overlaps[2]).max() > 1e-3, "other samples"
    same = sgd.train_additive(four, target, 60, lr=0.01, batch=10, share=4, seed=2)
    np.testing.assert_allclose(same.overlaps, np.broadcast_to(same.overlaps[:1], same.overlaps.shape), atol=1e-6)
    # Networks that share samples go through the trainer side by side: each must be what it would be alone.
    mixed = nets.two_layer(8, 4, nets.random_polynomials(4, 3, seed=5), bias=0.5, runs=3, seed=1)
    rates, law = [0.01, 0.02, 0.03], {"batch": 10, "seed": 2}
    together = sgd.train_additive(mixed, target, [30, 60], lr=rates, share=3, **law)
    assert together.overlaps.shape == (3, 2, 4, 2) and together.best.shape == (3, 7, 2)
    for i, rate in enumerate(rates):
        one = replace(mixed, **{k: getattr(mixed, k)[i] for k in ("weights", "biases", "outputs")})
        alone = sgd.train_additive(one, target, [30, 60], lr=rate, **law)
        np.testing.assert_allclose(together.overlaps[i], alone.overlaps, atol=1e-5)
        np.testing.assert_allclose(together.best[i], alone.best, atol=1e-5)
        torch.testing.assert_close(together.networks[0].weights[i], alone.networks[0].weights, atol=1e-5, rtol=0)


def test_axes_given_as_directions_change_nothing():
    network, target = nets.two_layer(6, 3, "relu", bias=1.0, seed=1), targets.additive("h3", 2)
    axes = sgd.train_additive(network, target, [10, 25], lr=0.01, batch=4, seed=2)
    given = sgd.train_additive(network, target, [10, 25], lr=0.01, batch=4, seed=2, directions=np.eye(6)[:, :2])
    np.testing.assert_allclose(axes.overlaps, given.overlaps, atol=1e-6)
    np.testing.assert_allclose(axes.best, given.best, atol=1e-6)
    np.testing.assert_array_equal(axes.seen, [0, 4, 8, 10, 14, 18, 22, 25])
    assert axes.overlaps.shape == (2, 3, 2) and axes.best.shape == (8, 2) and len(axes.networks) == 2
    unit = axes.networks[-1].weights.norm(dim=-1)
    torch.testing.assert_close(unit, torch.ones_like(unit), atol=1e-5, rtol=0)
    np.testing.assert_allclose(np.abs(axes.overlaps[1]).max(0), axes.best[-1], atol=1e-6)


def test_a_schedule_multiplies_the_step():
    network, target = nets.two_layer(6, 3, "tanh", seed=1), targets.additive("h3", 2)
    half = sgd.train_additive(network, target, 40, lr=0.02, schedule=lambda t: 0.5 + 0 * t, batch=4, seed=2)
    direct = sgd.train_additive(network, target, 40, lr=0.01, batch=4, seed=2)
    np.testing.assert_allclose(half.overlaps, direct.overlaps, atol=1e-6)
    frozen = sgd.train_additive(network, target, [20, 40], lr=0.02, schedule=lambda t: t < 20, batch=4, seed=2)
    np.testing.assert_allclose(frozen.overlaps[1], frozen.overlaps[0], atol=1e-6)


def test_every_task_is_found_and_ridge_fits_the_rest():
    """The whole algorithm at a small size, against the same ridge regression on neurons that were not trained."""
    d, tasks, n = 24, 3, 16_000
    target = targets.additive("h3", tasks)
    network = positive(nets.two_layer(d, 48, "h3", runs=4, seed=1))
    lr = 0.4 / math.sqrt(tasks) / d**1.5
    run = sgd.train_additive(network, target, n, lr=lr, schedule=lambda t: 1 - t / n, batch=16, seed=2)
    assert (run.best[:, -1] > 0.85).all() and np.isfinite(run.samples_to_find(0.85)).all()
    rng = np.random.default_rng(3)
    x, x_test = rng.standard_normal((400, d)), rng.standard_normal((2000, d))
    y, y_test = target(x[:, :tasks]), target(x_test[:, :tasks])
    errors = [
        np.mean((kernels.random_features(x, y, net).predict(x_test) - y_test) ** 2)
        for net in (run.networks[-1], network)
    ]
    assert errors[0] < 0.25 and errors[1] > 0.8


@pytest.mark.parametrize("runs", [None, 4])
def test_layerwise_training_stays_on_its_device(runs):
    for activation in ("relu", nets.random_polynomials(5, 3, device="meta")):
        network = nets.two_layer(8, 5, activation, runs=runs, device="meta")
        target = targets.additive([H3, H3, H4], 3, [1.0, 2.0, 1.0])
        with NoHostReads():
            result = sgd.train_additive(
                network, target, [8, 12], lr=0.1, batch=4, share=1 if runs is None else 2, transform=torch.tanh
            )
        assert result.overlaps.device.type == "meta" and result.best.device.type == "meta"
        assert tuple(result.overlaps.shape) == ((2, 5, 3) if runs is None else (4, 2, 5, 3))


def test_bad_training_input_is_named():
    network = nets.two_layer(6, 3, "tanh", runs=2, seed=1)
    good = {"network": network, "target": targets.additive("h3", 2), "samples": 10, "lr": 0.1}
    cases = {
        "samples is": {"samples": [10, 5]},
        "lr is -1": {"lr": -1},
        "lr has shape": {"lr": [0.1, 0.1, 0.1]},
        "batch is 0": {"batch": 0},
        "share is 3": {"share": 3},
        "seed is -1": {"seed": -1},
        "needs d ≥ 9": {"target": targets.additive("h3", 8)},
        "schedule returns": {"schedule": lambda t: -t},
        "directions has shape": {"directions": np.eye(6)},
        "not unit vectors": {"directions": 2 * np.eye(6)[:, :2]},
        "transform is 3": {"transform": 3},
        "did you mean": {"target": "h33"},
    }
    for words, change in cases.items():
        with pytest.raises(ValueError, match=words):
            sgd.train_additive(**good | change)


def test_a_run_that_diverges_says_so():
    network = nets.two_layer(6, 3, "tanh", runs=2, seed=1)
    with pytest.warns(RuntimeWarning, match="2 of 2 networks have neurons that diverged"):
        run = sgd.train_additive(network, targets.additive("h3", 2), 8, lr=0.1, transform=lambda y: y * math.inf)
    assert run.diverged.all() and np.isfinite(run.overlaps).all()


def test_times_of_tasks():
    best = np.array([[[0.1, 0.2], [0.6, 0.3], [0.5, 0.4], [0.9, 0.7]], [[0.1, 0.1]] * 4])
    run = results.AdditiveResult(np.array([30]), (), np.zeros((2, 1, 5, 2)), np.array([0, 10, 20, 30]), best, None)
    np.testing.assert_array_equal(run.task_times(0.5), [[10, 30], [np.inf, np.inf]])
    np.testing.assert_array_equal(run.samples_to_find(0.5), [30, np.inf])
    np.testing.assert_array_equal(run.samples_to_find(0.5, 0.5), [10, np.inf])
    np.testing.assert_array_equal(run.found(0.5), [[0, 0.5, 0.5, 1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(run.task_times(0.5, keep=True), run.task_times(0.5))
    np.testing.assert_array_equal(run.task_times(0.55, keep=True), [[30, 30], [np.inf, np.inf]])
    np.testing.assert_array_equal(run.task_times(0.55), [[10, 30], [np.inf, np.inf]])
    np.testing.assert_array_equal(run.samples_to_find(0.55, 0.5, keep=True), [30, np.inf])
    with pytest.raises(ValueError, match="level is 2"):
        run.task_times(2)


# --------------------------------------------------------------------------------------------------------- the flow


def test_the_flow_of_one_task_is_the_population_ode():
    times = np.linspace(0, 400, 9)
    ours = flow.additive("h3", [[0.2]], times, 0.01)[0, :, 0]
    # Euler steps of dm/dt = 3γ m²(1 − m²), a tenth of a sample each.
    m, path = 0.2, [0.2]
    for _ in range(4000):
        m += 0.1 * 0.01 * 3 * m**2 * (1 - m**2)
        path.append(m)
    np.testing.assert_allclose(ours, np.array(path)[:: 4000 // 8], atol=1e-3)
    with_noise = flow.additive("h3", [[0.2]], times, 0.01, d=40)[0, :, 0]
    assert (with_noise[1:] < ours[1:]).all()
    # At small overlap the decay is −½γ²(d − 1)·E[y²]·E[σ'²] = −½γ²(d − 1)·3.
    small = flow.additive("h3", [[1e-4]], [100.0], 0.01, d=40)[0, 0, 0]
    assert small == pytest.approx(1e-4 * math.exp(-0.5 * 1e-4 * 39 * 3 * 100), rel=0.01)


def test_the_flow_goes_to_the_task_that_starts_best():
    rng = np.random.default_rng(1)
    start = rng.standard_normal((40, 6)) / 10
    end = flow.additive("h3", start, [40_000.0], 0.01)[:, 0]
    assert (end.argmax(1) == start.argmax(1)).all() and (end.max(1) > 0.999).all()
    c = np.array([2.0, 1, 1, 1, 1, 1])
    end = flow.additive("h3", start, [40_000.0], 0.01, coefficients=c)[:, 0]
    assert (end.argmax(1) == (c * start).argmax(1)).all()


def test_the_flow_of_quadratic_tasks_keeps_its_direction():
    """For h_2 the sum over tasks is rotation-invariant in their span: nothing is localised."""
    start = np.random.default_rng(1).standard_normal((10, 5)) / 10
    end = flow.additive("h2", start, [20_000.0], 0.01)[:, 0]
    np.testing.assert_allclose(np.linalg.norm(end, axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(end, start / np.linalg.norm(start, axis=1, keepdims=True), atol=1e-3)


def test_the_mean_of_the_trainer_follows_the_flow():
    """Small steps from a given start: the mean over runs against the flow with other links, student and weights."""
    d, tasks, runs = 10, 2, 4000
    rng = torch.Generator().manual_seed(1)
    m = torch.tensor([0.5, 0.3], dtype=torch.float64)
    rest = torch.nn.functional.normalize(torch.randn(runs, d - 2, generator=rng, dtype=torch.float64), dim=-1)
    w = torch.cat([m.expand(runs, 2), (1 - m.square().sum()).sqrt() * rest], dim=1)[:, None]
    student = links.polynomial([0, 0, 0.5, 0.6, 0.3])
    network = positive(nets.two_layer(d, 1, student, runs=runs, seed=2)).with_weights(w)
    links_, c = ["h3", "h4"], [1.0, 2.0]
    run = sgd.train_additive(network, targets.additive(links_, tasks, c), 100, lr=5e-4, batch=10, seed=3)
    theory = flow.additive(links_, m[None].numpy(), [100.0], 5e-4, student=student, coefficients=c)[0, 0]
    found = run.overlaps[:, 0, 0]
    error = found.std(axis=0) / math.sqrt(runs)
    moved = np.abs(theory - m.numpy())
    assert (moved > 8 * error).any(), "the test needs motion"
    assert (np.abs(found.mean(axis=0) - theory) < 4 * error + 0.02 * moved + 3e-4).all()


def test_bad_flow_input_is_named():
    for words, arguments in {
        "start has shape": ("h3", [0.1], [1.0], 0.1),
        "times is": ("h3", [[0.1]], [2.0, 1.0], 0.1),
        "lr is 0": ("h3", [[0.1]], [1.0], 0),
        "student is None": (["h3", "h4"], [[0.1, 0.1]], [1.0], 0.1),
    }.items():
        with pytest.raises(ValueError, match=words):
            flow.additive(*arguments)


# ------------------------------------------------------------------------------------------------------- the labels


@pytest.mark.parametrize(("name", "k", "power"), [("h3", 1, 3), ("h3", 2, 2), ("h3", 3, 1), ("h4", 2, 2), ("h4", 4, 1)])
def test_strength_of_many_tasks(name, k, power):
    """λ_k² ≈ E[σ^I h_k]²/(I! M^I) with the least I for which the moment does not vanish."""
    exact_polynomial = polynomials.recognise(targets.get(name))
    size = float(exact_polynomial.moment(2, 0))
    moments = [
        float(exact_polynomial.moment(i, k)) / math.sqrt(math.factorial(k)) / size ** (i / 2)
        for i in range(1, power + 1)
    ]
    assert all(abs(moment) < 1e-12 for moment in moments[:-1])
    tasks = 10**5
    expected = moments[-1] ** 2 / (math.factorial(power) * tasks**power)
    assert queries.additive_strength(name, tasks)[k] == pytest.approx(expected, rel=0.01)


def test_strength_against_a_simulation():
    """Four tasks, conditional means over thin slices of the label, less the noise of the slices."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal((1_000_000, 4))
    order = np.argsort(targets.additive("h3", 4)(z))
    strength = queries.additive_strength("h3", 4)
    for k in (1, 2, 3):
        slices = hermite.basis(z[order, 0], 3)[:, k].reshape(1000, 1000)
        found = np.mean(slices.mean(1) ** 2 - slices.var(1) / 999)
        assert found == pytest.approx(strength[k], rel=0.06)


def test_strength_is_at_least_that_of_the_label_itself_and_scale_free():
    """T(y) = y already gives α_k²/M; shifts and scales of the link do not matter; one task is `label_moments`."""
    for f in ("h3", "tanh", np.sin):
        alpha = hermite.coefficients(targets.resolve(f), 4)
        variance = flow._variance(f)
        strength = queries.additive_strength(f, 8)
        assert strength[0] == pytest.approx(1, abs=1e-4)
        assert (strength[1:] >= 0.999 * alpha[1:] ** 2 / variance / 8).all()
    plain, moved = queries.additive_strength(np.tanh, 8), queries.additive_strength(lambda z: 3 - 2 * np.tanh(z), 8)
    np.testing.assert_allclose(plain, moved, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(queries.additive_strength("h3", 1), queries.label_moments("h3", 4).strength)


def test_gaussian_labels_say_what_they_must():
    """f(z) = z: the label is a Gaussian of correlation M^{−1/2} with z_1, so that λ_k² = M^{−k}."""
    for tasks in (4, 25):
        expected = float(tasks) ** -np.arange(5)
        np.testing.assert_allclose(queries.additive_strength("linear", tasks), expected, rtol=1e-4)


def test_bad_label_input_is_named():
    for words, arguments in {
        "tasks is 0": ("h3", 0),
        "tasks is 2": ("h3", 2),
        "has noise": ("noisy_sign", 4),
        "f is constant": (lambda z: 0 * z + 1, 4),
        "did you mean": ("h33", 4),
    }.items():
        with pytest.raises(ValueError, match=words):
            queries.additive_strength(*arguments)


def test_activations_by_neuron_are_trained_each_with_its_own():
    """Half of the neurons see h_3, half h_4: on a target of h_4 alone the first half gets no drift."""
    d = 12
    activation = functions.Vectorised(
        lambda z: torch.cat([H3(z[..., :4]), H4(z[..., 4:])], dim=-1),
        "torch",
        slope=lambda z: torch.cat([H3.derivative(z[..., :4]), H4.derivative(z[..., 4:])], dim=-1),
    )
    network = positive(nets.two_layer(d, 8, activation, runs=40, seed=1))
    start = torch.nn.functional.normalize(network.weights + torch.eye(d, dtype=torch.float64)[0], dim=-1)
    run = sgd.train_additive(network.with_weights(start), "h4", 12_000, lr=3e-4, batch=8, seed=2)
    end = run.overlaps[:, 0, :, 0]
    assert np.median(end[:, 4:]) > 0.8 and abs(np.median(end[:, :4])) < 0.5
