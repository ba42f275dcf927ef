"""Samples used twice: the variants against autograd, full batches in two ways and against the cavity, Algorithm 1."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from lowdim import compiled, exact, flow, hermite, links, nets, problem, results, sgd, targets

STUDENTS = [links.Link("tanh"), links.relu(0.7), links.absolute(0.4), links.polynomial([0.1, 0.5, 0.2, 0.4])]


@pytest.mark.parametrize("loss", problem.LOSSES)
@pytest.mark.parametrize("variant", problem.VARIANTS)
@pytest.mark.parametrize("student", STUDENTS)
def test_variants_are_what_autograd_makes_of_the_written_out_loss(student, variant, loss):
    rng = torch.Generator().manual_seed(3)
    w, x = torch.randn(2, 9, generator=rng, dtype=torch.float64)
    y, rho = targets.get("h3")(x[:1])[0], 0.05

    def gradient(v):
        v = v.clone().requires_grad_(True)
        h = v @ x
        value = -y * student(h) if loss == "correlation" else 0.5 * (y - student(h)) ** 2
        return torch.autograd.grad(value, v)[0]

    first = gradient(w)
    trial = w + rho * first / first.norm() if variant == "sharpness-aware" else w - rho * first
    moved = gradient(trial) + (first if variant == "two steps" else 0)
    p = problem.prepare("h3", 9, 1, 0.1, 1, student, loss, rho, 2, None, variant)
    h, squared = (w @ x)[None], (x @ x)[None]
    g = p.gradient_factor(y[None], h, squared)
    torch.testing.assert_close(-g * x, moved)
    by_compiled = compiled.gradient_factor(compiled.make_rule(p), float(y), float(h), float(squared))
    assert by_compiled == pytest.approx(float(g), abs=1e-12)


@pytest.mark.parametrize("variant", ["two steps", "sharpness-aware"])
def test_variants_have_the_same_law_in_both_simulators(variant):
    rho = 3 / 24 if variant == "two steps" else 24**-0.5
    law = {"target": "h4", "d": 24, "steps": 1200, "lr": 0.2 / 24, "lookahead": rho, "variant": variant}
    law |= {"student": links.absolute() if variant == "two steps" else "tanh", "runs": 800}
    a, b = exact.online_sgd(**law, seed=1), sgd.online_sgd(**law, seed=2)
    assert np.median(np.abs(a.overlaps[:, -1])) > 0.3, "the test needs runs that move"
    assert ks_2samp(np.abs(a.overlaps[:, -1]), np.abs(b.overlaps[:, -1])).pvalue > 1e-3
    with pytest.raises(ValueError, match="variant is 'three steps'"):
        exact.online_sgd(**law | {"variant": "three steps"})


def test_velocity_is_the_slope_of_the_flow_and_its_series():
    law = {"student": links.relu(0.7), "lookahead": 1 / 512}
    m = np.array([-0.3, 0.0, 0.2])
    p = problem.prepare("h3", 512, 1, 0.1 / 512, 1, law["student"], "correlation", law["lookahead"], 2, None)
    drift, noise = flow.averages(p)
    expected = p.lr * drift(m) - 0.5 * p.lr**2 * 511 * noise(m) * m
    np.testing.assert_allclose(flow.velocity("h3", 512, 0.1 / 512, m, **law), expected, atol=1e-5)
    plain = flow.velocity("h3", 50, 1.0, m, student="h3", noise=False)
    np.testing.assert_allclose(plain, 3 * m**2 * (1 - m**2), atol=1e-9)
    with pytest.raises(ValueError, match="overlaps lie in"):
        flow.velocity("h3", 50, 1.0, 1.5)
    with pytest.raises(ValueError, match="one direction"):
        flow.velocity("parity2", 50, 1.0, 0.1, student="tanh")


BATCHES = {
    "tanh": {"target": "h3", "student": "tanh", "lr": 2.0},
    "relu, square": {"target": "He3", "student": links.relu(), "lr": 0.3, "loss": "square"},
    "noisy": {"target": "noisy_sign", "student": "tanh", "lr": 1.0},
    "two directions": {"target": "parity2", "student": links.relu(0.5), "lr": 1.0},
}


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_the_batch_that_is_never_formed_has_the_law_of_the_one_that_is(name, reuse):
    law = BATCHES[name] | {"d": 30, "n": 70, "steps": 4, "runs": 1200, "reuse": reuse}
    a, b = exact.full_batch(**law, seed=1), sgd.full_batch(**law, seed=2)
    assert a.magnetisations.shape == b.magnetisations.shape and a.norms.shape == (1200, 5)
    for t in (1, 2, 4):
        first, second = (r.magnetisations.reshape(1200, 5, -1)[:, t, 0] for r in (a, b))
        assert ks_2samp(first, second).pvalue > 1e-3
        assert ks_2samp(a.norms[:, t], b.norms[:, t]).pvalue > 1e-3


def test_that_comparison_is_able_to_fail():
    """A batch that forgets its earlier answers is a fresh one: the comparison must notice."""
    law = BATCHES["relu, square"] | {"d": 30, "n": 70, "steps": 4, "runs": 1200}
    right = sgd.full_batch(**law, seed=2)
    wrong = exact.full_batch(**law, reuse=False, seed=1)
    assert ks_2samp(right.norms[:, 4], wrong.norms[:, 4]).pvalue < 1e-6


def test_products_with_the_unformed_batch_are_consistent():
    """⟨r, X w⟩ = ⟨Xᵀ r, w⟩ for all queries, X is linear, and repeated questions get the same answers."""
    options = {"device": torch.device("cpu"), "dtype": torch.float64}
    rng = torch.Generator().manual_seed(1)
    batch = exact._Batch(3, 12, 8, rng, options)
    w = torch.randn(4, 3, 8, generator=rng, **options)
    r = torch.randn(4, 3, 12, generator=rng, **options)
    xw, xr = [], []
    for i in range(4):
        xw.append(batch.times(w[i]))
        xr.append(batch.transposed_times(r[i]))
    for i in range(4):
        for j in range(4):
            torch.testing.assert_close((r[i] * xw[j]).sum(-1), (xr[i] * w[j]).sum(-1))
    torch.testing.assert_close(batch.times(w[1] - 2 * w[3]), xw[1] - 2 * xw[3])
    torch.testing.assert_close(batch.transposed_times(r[0] + r[2]), xr[0] + xr[2])


@pytest.mark.parametrize("loss", problem.LOSSES)
def test_full_batch_step_is_the_gradient_of_the_mean_loss(loss, monkeypatch):
    """The trainer's own draws are captured, and autograd repeats its two steps."""
    drawn = {}
    draw = sgd._draw

    def capture(p, shape, teacher, generator):
        drawn["x"], drawn["y"] = draw(p, shape, teacher, generator)
        drawn["teacher"] = teacher
        return drawn["x"], drawn["y"]

    monkeypatch.setattr(sgd, "_draw", capture)
    run = sgd.full_batch("h3", 10, 25, 2, 0.7, student="tanh", loss=loss, runs=1, seed=4, start=0.3)
    x, y, teacher = drawn["x"][0], drawn["y"][0], drawn["teacher"]
    monkeypatch.setattr(sgd, "_draw", draw)
    again = sgd.full_batch("h3", 10, 25, 1, 1e-9, student="tanh", loss=loss, runs=1, seed=4, start=0.3)
    assert again.magnetisations[0, 0] == pytest.approx(0.3, abs=1e-5)
    generator = torch.Generator().manual_seed(4)
    p = problem.prepare("h3", 10, 1, 1.0, 1, "tanh", loss, 0.0, 2, None)
    options = {"device": torch.device("cpu"), "dtype": torch.float32}
    w = sgd._start(p, 0.3, sgd._orthonormal(10, 1, generator, options), generator, options)[0]
    for t in (1, 2):
        v = w.clone().requires_grad_(True)
        f = torch.tanh(x @ v)
        value = -(y * f).mean() if loss == "correlation" else 0.5 * ((y - f) ** 2).mean()
        w = w - 0.7 * torch.autograd.grad(value, v)[0]
        assert float(w @ teacher[:, 0]) == pytest.approx(float(run.magnetisations[0, t]), abs=1e-5)
        assert float(w.norm()) == pytest.approx(float(run.norms[0, t]), abs=1e-5)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize(
    ("target", "student", "loss", "eta", "start"),
    [("h3", "tanh", "correlation", 2.0, 0.0), ("He3", links.relu(), "square", 0.3, 0.0),
     ("tanh", links.relu(0.7), "correlation", 1.0, 0.0), ("h2", "tanh", "square", 1.5, 0.5)],
)  # fmt: skip
def test_the_cavity_prediction_is_the_mean_of_large_batches(target, student, loss, eta, start, reuse):
    law = {"student": student, "loss": loss, "reuse": reuse, "start": start}
    run = exact.full_batch(target, 4000, 8000, 2, eta, runs=48, seed=3, **law)
    theory = flow.full_batch(target, 2.0, eta, **law)
    error = run.magnetisations.std(0) / math.sqrt(48) + 2e-3
    assert (np.abs(run.magnetisations.mean(0) - theory) < 4 * error).all()


def test_overlaps_of_batches_and_divergence():
    run = exact.full_batch("parity2", 20, 50, 3, 0.5, student="tanh", runs=4)
    assert run.overlaps.shape == (4, 4, 2) and (np.abs(run.overlaps) <= 1).all()
    with pytest.warns(RuntimeWarning, match="diverged"):
        wild = sgd.full_batch("h3", 20, 50, 6, 1e30, student="h3", runs=2)
    assert wild.diverged.all() and np.isfinite(wild.magnetisations).all()
    for trainer in (sgd.full_batch, exact.full_batch):
        with pytest.raises(ValueError, match="n is 0"):
            trainer("h3", 20, 0, 2, 1.0)


def test_groups_of_runs_do_not_change_the_law(monkeypatch):
    law = {"target": "h1", "d": 12, "n": 40, "steps": 2, "lr": 1.0, "student": "tanh", "runs": 900}
    whole = sgd.full_batch(**law, seed=1)
    monkeypatch.setattr(sgd, "BATCH", 12 * 40 * 7)
    parts = sgd.full_batch(**law, seed=2)
    assert ks_2samp(whole.magnetisations[:, 2], parts.magnetisations[:, 2]).pvalue > 1e-3


@pytest.mark.parametrize("reuse", [True, False])
def test_algorithm_one_is_two_gradient_steps_interpolated_and_normalised(reuse, monkeypatch):
    d, eta, xi = 7, 0.15, 0.3
    network = nets.two_layer(d, 5, "tanh", bias=0.5, runs=2, seed=3)
    drawn = []
    draw = sgd._draw
    monkeypatch.setattr(sgd, "_draw", lambda *args: drawn.append(draw(*args)) or drawn[-1])
    run = sgd.train_two_layer(network, "h3", 1, eta=eta, interpolation=xi, reuse=reuse, seed=1)
    x, y = (v[0].double() for v in drawn[0])
    w = torch.nn.functional.normalize(network.weights, dim=-1)
    sign = network.outputs.sign()

    def gradient(v):
        v = v.clone().requires_grad_(True)
        h = (v * x[:, None, :]).sum(-1) + network.biases
        return torch.autograd.grad((-y[:, None] * sign * torch.tanh(h)).sum(), v)[0]

    first = gradient(w)
    total = -first - (gradient(w - eta * first) if reuse else 0)
    total = total - (total * w).sum(-1, keepdim=True) * w
    expected = torch.nn.functional.normalize((1 - xi) * w + xi * (w + eta * total), dim=-1)
    torch.testing.assert_close(run.networks[0].weights, expected, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(run.overlaps[:, 0], expected[..., 0], atol=1e-5)


def test_algorithm_one_is_the_chain_of_two_steps():
    """Neurons do not interact: the law of one neuron's overlap is that of the exact chain with variant='two steps'."""
    d, steps, eta, xi = 16, 500, 1 / 16, 0.1
    network = replace(nets.two_layer(d, 1, "relu", runs=600, seed=1), biases=torch.full((600, 1), 0.7).double())
    network = replace(network, outputs=network.outputs.abs())
    run = sgd.train_two_layer(network, "h3", [100, steps], eta=eta, interpolation=xi, seed=2)
    law = {"student": links.relu(0.7), "lookahead": eta, "variant": "two steps", "runs": 600, "seed": 3}
    chain = exact.online_sgd("h3", d, steps, xi * eta, **law)
    assert ks_2samp(run.overlaps[:, 1, 0], chain.overlaps[:, -1]).pvalue > 1e-3
    assert isinstance(run, results.TwoLayerResult) and list(run.samples) == [100, steps]


def test_algorithm_one_with_several_directions_without_a_runs_axis_and_bad_input():
    network = nets.two_layer(9, 4, "tanh", seed=1)
    run = sgd.train_two_layer(network, "parity3", [2, 5], eta=0.1, interpolation=lambda t: 1 / t)
    assert run.overlaps.shape == (2, 4, 3) and run.networks[1].weights.shape == (4, 9)
    for words, bad in {
        "samples is": {"samples": [5, 2]},
        "eta is -1": {"eta": -1},
        "interpolation is 2": {"interpolation": 2},
        "interpolation returns": {"interpolation": lambda t: t},
    }.items():
        good = {"network": network, "target": "h3", "samples": 5, "eta": 0.1, "interpolation": 0.5}
        with pytest.raises(ValueError, match=words):
            sgd.train_two_layer(**good | bad)


def test_random_polynomials_have_their_coefficients_and_slopes():
    activation = nets.random_polynomials(6, 3, seed=2)
    z, p = hermite.gauss(40)
    values = activation(np.repeat(z[:, None], 6, axis=1))
    coefficients = hermite.basis(z, 4).T @ (p[:, None] * values)
    np.testing.assert_allclose(np.abs(coefficients[1:4]), 1 / math.sqrt(3), atol=1e-12)
    np.testing.assert_allclose(coefficients[[0, 4]], 0, atol=1e-12)
    point = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation.torch(point).sum(), point)
    torch.testing.assert_close(activation.derivative(point.detach()), slope)
