"""The three trainers of one neuron: gradients against autograd, laws against each other, bad input, devices."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch.utils._python_dispatch import TorchDispatchMode

from lowdim import amp, compiled, exact, flow, kernels, links, nets, problem, results, sgd, targets

TRAINERS = {"sgd": sgd.online_sgd, "exact": exact.online_sgd, "flow": flow.online_sgd}
SIMULATORS = {name: TRAINERS[name] for name in ("sgd", "exact")}


def one_step_by_autograd(target, student, w, x, y, lr, lookahead, loss):
    """One step of the update rule with the gradient of the written-out loss, taken by torch."""

    def value(v):
        h = v @ x
        return -y * student(h) if loss == "correlation" else 0.5 * (y - student(h)) ** 2

    def gradient(v):
        v = v.clone().requires_grad_(True)
        return torch.autograd.grad(value(v), v)[0]

    g = gradient(w - lookahead * gradient(w) if lookahead else w)
    moved = w - lr * (g - (g @ w) * w)
    return moved / moved.norm()


@pytest.mark.parametrize("loss", problem.LOSSES)
@pytest.mark.parametrize("lookahead", [0.0, 0.03])
@pytest.mark.parametrize("student", [links.Link("tanh"), links.relu(0.7), links.polynomial([0.1, 0.5, 0.2, 0.4])])
def test_update_rule_is_the_projected_gradient(loss, lookahead, student):
    """The rule in closed form, as both programs apply it, against autograd on the loss."""
    d, lr = 12, 0.2
    rng = torch.Generator().manual_seed(3)
    w = torch.nn.functional.normalize(torch.randn(d, generator=rng, dtype=torch.float64), dim=0)
    x = torch.randn(d, generator=rng, dtype=torch.float64)
    y = targets.get("h3")(x[:1])[0]
    expected = one_step_by_autograd("h3", student, w, x, y, lr, lookahead, loss)
    p = problem.prepare("h3", d, 1, lr, 1, student, loss, lookahead, 2, None)
    h, squared = (w @ x)[None], (x @ x)[None]
    step = lr * p.gradient_factor(y[None], h, squared)
    norm = (1 + step**2 * (squared - h**2)).sqrt()
    torch.testing.assert_close(((1 - step * h) * w + step * x) / norm, expected)


@pytest.mark.parametrize("family", links.FAMILIES)
def test_compiled_links_agree_with_the_written_ones(family):
    parameters = {"hermite": (0.2, 1.0, -0.5, 0.3), "relu": (0.7,), "erf": (1.3,), "abs": (0.4,)}.get(family, ())
    link = links.Link(family, parameters)
    code, p, s = compiled.encode(link)
    z = np.linspace(-3, 3.1, 41)
    np.testing.assert_allclose([compiled.value(code, p, v) for v in z], link(z), atol=1e-13)
    np.testing.assert_allclose([compiled.slope(code, p, s, v) for v in z], link.derivative(z), atol=1e-13)


def test_spherical_gradient_is_the_population_formula():
    """E[y σ'(h)(x − h w)] = Σ_k k α_k β_k m^{k−1} (w* − m w), and nothing along w."""
    d, n, m = 10, 400_000, 0.5
    w = np.zeros((1, d))
    w[0, 0], w[0, 1] = m, math.sqrt(1 - m**2)
    gradient = sgd.spherical_gradient("He2+He3", w, n, student="h2", seed=1)[0]
    direction = np.eye(d)[0] - m * w[0]
    assert np.abs(gradient - 2 * math.sqrt(2) * m * direction).max() < 0.03
    assert abs(gradient @ w[0]) < 1e-5
    with pytest.raises(ValueError, match="w has shape"):
        sgd.spherical_gradient("h2", w[0], n)


@pytest.mark.parametrize("loss", problem.LOSSES)
@pytest.mark.parametrize("lookahead", [0.0, 0.05])
@pytest.mark.parametrize("student", [links.Link("tanh"), links.relu(0.7), links.polynomial([0.1, 0.5, 0.2, 0.4])])
def test_compiled_gradient_factor_is_the_written_one(loss, lookahead, student):
    p = problem.prepare("h3", 12, 1, 0.2, 1, student, loss, lookahead, 2, None)
    y, h, squared = torch.randn(3, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    squared = squared.square() + 10
    rule = compiled.make_rule(p)
    found = [compiled.gradient_factor(rule, *map(float, row)) for row in zip(y, h, squared, strict=True)]
    np.testing.assert_allclose(found, p.gradient_factor(y, h, squared).numpy(), atol=1e-12)


LAWS = {
    "h1": {"target": "h1", "d": 32, "steps": 400, "lr": 0.4 / 32},
    "h2": {"target": "h2", "d": 32, "steps": 1200, "lr": 0.4 / 32},
    "h3 relu": {"target": "h3", "d": 16, "steps": 2500, "lr": 0.5 / 16, "student": links.relu(0.7)},
    "tanh square": {"target": "tanh", "d": 24, "steps": 500, "lr": 1.0 / 24, "student": "tanh", "loss": "square"},
    "noisy sign": {"target": "noisy_sign", "d": 16, "steps": 400, "lr": 0.5 / 16, "student": "tanh"},
    "He3 look-ahead": {
        "target": "He3",
        "d": 16,
        "steps": 800,
        "lr": 0.1 / 16,
        "student": links.relu(0.7),
        "lookahead": 1 / 16,
    },
}


def hitting_times(trainer, law, runs, seed, level=0.5):
    """First passages, with never as a time after all others so that ranks make sense."""
    result = trainer(**law, runs=runs, seed=seed)
    return np.minimum(result.samples_to_reach(level), law["steps"] + 1)


@pytest.mark.parametrize("name", LAWS)
def test_chain_and_vector_sgd_have_the_same_law(name):
    law = LAWS[name]
    a = hitting_times(exact.online_sgd, law, 1000, seed=1)
    b = hitting_times(sgd.online_sgd, law, 1000, seed=2)
    assert np.mean(a <= law["steps"]) > 0.3, "the test needs runs that arrive"
    assert ks_2samp(a, b).pvalue > 1e-3


def test_a_chain_without_the_chi_square_term_fails_that_test(monkeypatch):
    """The same comparison rejects a deliberately wrong chain, so that it is able to reject."""
    monkeypatch.setattr(exact, "chi_square", lambda stream, degrees, shape: np.zeros(shape))
    law = LAWS["h2"]
    wrong = hitting_times(exact.online_sgd, law | {"start": 0.2}, 1000, seed=1)
    right = hitting_times(sgd.online_sgd, law | {"start": 0.2}, 1000, seed=2)
    assert ks_2samp(wrong, right).pvalue < 1e-6


@pytest.mark.parametrize("name", ["h1", "tanh square", "noisy sign", "He3 look-ahead"])
@pytest.mark.parametrize("trainer", SIMULATORS)
def test_compiled_and_tensor_programs_have_the_same_law(trainer, name, monkeypatch):
    law = LAWS[name] | {"steps": 300}
    fast = hitting_times(SIMULATORS[trainer], law, 600, seed=4, level=0.3)
    monkeypatch.setattr("lowdim.compiled.is_compilable", lambda link: False)
    general = hitting_times(SIMULATORS[trainer], law, 600, seed=5, level=0.3)
    assert ks_2samp(fast, general).pvalue > 1e-3


def test_several_directions_have_the_same_law_in_both_simulators():
    law = {"target": "staircase", "d": 24, "steps": 600, "lr": 0.05 / 24, "student": links.relu(), "runs": 600}
    a = exact.online_sgd(**law, seed=1)
    b = sgd.online_sgd(**law, seed=2)
    assert a.overlaps.shape == b.overlaps.shape == (600, len(a.samples), 3)
    for i in range(3):
        assert ks_2samp(a.overlaps[:, -1, i], b.overlaps[:, -1, i]).pvalue > 1e-3


def test_starts_are_uniform_on_the_sphere():
    """d m² has the Beta law of a coordinate of the sphere, in both simulators and in the flow."""
    from scipy.stats import beta, kstest

    for trainer in TRAINERS.values():
        m = trainer("h1", 9, 1, 1e-9, runs=2000, seed=7).overlaps[:, 0]
        assert kstest((1 + m) / 2, beta(4, 4).cdf).pvalue > 1e-3


def test_a_small_dimension_has_no_chi_square_part():
    a = exact.online_sgd("h1", 2, 60, 0.1, runs=2000, seed=1)
    b = sgd.online_sgd("h1", 2, 60, 0.1, runs=2000, seed=2)
    assert ks_2samp(a.overlaps[:, -1], b.overlaps[:, -1]).pvalue > 1e-3


@pytest.mark.parametrize("loss", problem.LOSSES)
@pytest.mark.parametrize("student", ["tanh", links.relu(0.7)])
def test_flow_follows_the_mean_of_the_chain(loss, student):
    """At d = 512 fluctuations are O(d^{-1/2}) a run; the mean of 400 runs sits on the flow to 0.01."""
    settings = {
        "target": "tanh",
        "d": 512,
        "steps": 4000,
        "lr": 1 / 512,
        "student": student,
        "loss": loss,
        "start": 0.1,
    }
    chain = exact.online_sgd(**settings, runs=400, seed=1)
    ode = flow.online_sgd(**settings, runs=1)
    assert np.abs(chain.overlaps.mean(axis=0) - ode.overlaps[0]).max() < 0.01
    assert abs(np.mean(chain.samples_to_reach(0.4)) / ode.samples_to_reach(0.4)[0] - 1) < 0.02


def test_compiled_and_tensor_integration_agree():
    times = np.linspace(0, 30, 200)
    table = 0.3 * np.sin(np.linspace(-3, 3, 101))
    m = np.array([-0.2, 0.1, 0.4])
    fast = compiled.integrate(table, times, m, 0.5)
    general = flow._runge_kutta(torch.tensor(table), times, torch.tensor(m)[:, None], 0.5)
    np.testing.assert_allclose(fast, general[..., 0].numpy(), atol=1e-12)


def test_flow_with_look_ahead_follows_the_chain():
    settings = {"target": "He3", "d": 512, "steps": 8000, "lr": 0.1 / 512, "student": links.relu(0.7), "start": 0.1}
    chain = exact.online_sgd(**settings, lookahead=1 / 512, runs=400, seed=1)
    ode = flow.online_sgd(**settings, lookahead=1 / 512, runs=1)
    plain = flow.online_sgd(**settings, runs=1)
    assert np.abs(chain.overlaps.mean(axis=0) - ode.overlaps[0]).max() < 0.02
    assert np.abs(plain.overlaps[0] - ode.overlaps[0]).max() > 0.05


def test_flow_without_noise_has_its_closed_form():
    """For h_1 and γ → 0, dm/dt = γ(1 − m²), so m(t) = tanh(γt + artanh m_0)."""
    lr = 1e-7
    result = flow.online_sgd("h1", 10, int(2e7), lr, runs=1, start=0.1)
    expected = np.tanh(lr * result.samples + np.arctanh(0.1))
    np.testing.assert_allclose(result.overlaps[0], expected, atol=2e-6)
    level = 0.6
    assert result.samples_to_reach(level)[0] == pytest.approx((np.arctanh(level) - np.arctanh(0.1)) / lr, rel=5e-4)


@pytest.mark.parametrize("general", [False, True], ids=["compiled", "tensor"])
@pytest.mark.parametrize("trainer", SIMULATORS)
def test_first_passages_are_seen_between_records(trainer, general, monkeypatch):
    """With two records only, first passages are those of a run that recorded every step, over many blocks."""
    if general:
        monkeypatch.setattr("lowdim.compiled.is_compilable", lambda link: False)
    monkeypatch.setattr(exact, "BLOCK", 1000)
    monkeypatch.setattr(sgd, "BLOCK", 6000)
    settings = {"target": "h1", "d": 20, "steps": 120, "lr": 0.5 / 20, "runs": 30, "seed": 3}
    coarse = SIMULATORS[trainer](**settings, records=2)
    fine = SIMULATORS[trainer](**settings, records=5000)
    assert len(coarse.samples) <= 3 and len(fine.samples) == 121
    for level in (0.25, 0.5, 0.613):
        reached = np.abs(fine.overlaps) >= level
        first = np.where(reached.any(axis=1), fine.samples[reached.argmax(axis=1)], np.inf)
        np.testing.assert_array_equal(coarse.samples_to_reach(level), first)


def test_absolute_overlap_is_meant():
    """An even target does not tell ±w* apart: runs that end at −1 arrive as well."""
    result = exact.online_sgd("h2", 20, 3000, 0.3 / 20, runs=200, seed=0)
    final = result.overlaps[:, -1]
    assert (final < -0.5).any() and (final > 0.5).any()
    assert np.isfinite(result.samples_to_reach(0.5)[final < -0.5]).all()


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_that_stops_stays_where_it_is(trainer):
    result = TRAINERS[trainer]("h1", 64, 2000, 0.3 / 64, runs=20, seed=1, stop_at=0.5)
    final = np.abs(result.overlaps[:, -1])
    assert (final >= 0.5).all() and final.max() < 0.65
    free = TRAINERS[trainer]("h1", 64, 2000, 0.3 / 64, runs=20, seed=1)
    assert np.abs(free.overlaps[:, -1]).min() > 0.7


@pytest.mark.parametrize("trainer", TRAINERS)
def test_results_depend_on_the_seed_alone(trainer):
    settings = {"target": "h2", "d": 30, "steps": 300, "lr": 0.2 / 30, "runs": 5}
    a, b, c = (TRAINERS[trainer](**settings, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.overlaps, b.overlaps)
    np.testing.assert_array_equal(a.first_passage, b.first_passage)
    assert np.abs(a.overlaps - c.overlaps).max() > 1e-3


@pytest.mark.parametrize("trainer", SIMULATORS)
def test_a_numpy_and_a_torch_student_give_the_same_run(trainer):
    settings = {"target": "h1", "d": 30, "steps": 200, "lr": 0.3 / 30, "runs": 5, "seed": 2}
    by_torch = SIMULATORS[trainer](**settings, student=torch.atan)
    by_numpy = SIMULATORS[trainer](**settings, student=np.arctan)
    np.testing.assert_allclose(by_torch.overlaps, by_numpy.overlaps, atol=1e-5)
    named = SIMULATORS[trainer](**settings | {"target": lambda z: z})
    np.testing.assert_allclose(named.overlaps, SIMULATORS[trainer](**settings).overlaps, atol=1e-5)


@pytest.mark.parametrize("general", [False, True], ids=["compiled", "tensor"])
@pytest.mark.parametrize("trainer", SIMULATORS)
def test_divergence_is_said_and_leaves_no_nan(trainer, general, monkeypatch):
    if general:
        monkeypatch.setattr("lowdim.compiled.is_compilable", lambda link: False)
    with pytest.warns(RuntimeWarning, match="diverged"):
        result = SIMULATORS[trainer]("h3", 20, 50, 1e200, runs=4, seed=0)
    assert result.diverged.all() and np.isfinite(result.overlaps).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not SIMULATORS[trainer]("h3", 20, 50, 1e-3, runs=4, seed=0).diverged.any()


class NoHostReads(TorchDispatchMode):
    """Rejects operations that mix devices or read a tensor's values on the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        reads = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        if func in reads and any(isinstance(value, torch.Tensor) and value.is_meta for value in args):
            raise AssertionError(f"host read: {func}")
        devices = set()
        for value in torch.utils._pytree.tree_leaves((args, kwargs or {})):
            # Zero-dimensional CPU tensors are Python numbers in disguise and allowed beside any device.
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                devices.add(value.device.type)
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("device") is not None:
            target = torch.device(kwargs["device"]).type
            if devices == {"meta"} and target != "meta":
                raise AssertionError("a tensor leaves its device")
            devices = {target}
        if len(devices) > 1:
            raise AssertionError(f"{func} mixes devices {devices}")
        return func(*args, **(kwargs or {}))


AUDITED = [
    ("sgd", {"target": "h3"}),
    ("sgd", {"target": "tanh", "loss": "square", "lookahead": 0.1, "stop_at": 0.5}),
    ("sgd", {"target": "noisy_sign"}),
    ("sgd", {"target": "staircase", "student": "relu"}),
    ("sgd", {"target": torch.sin, "start": 0.2}),
    ("exact", {"target": "h3"}),
    ("exact", {"target": "tanh", "loss": "square", "lookahead": 0.1, "stop_at": 0.5}),
    ("exact", {"target": "committee", "student": "tanh"}),
    ("exact", {"target": torch.sin, "start": 0.2}),
    ("sgd", {"target": "h4", "lookahead": 0.1, "variant": "two steps"}),
    ("exact", {"target": "h4", "lookahead": 0.1, "variant": "sharpness-aware", "student": torch.atan}),
    ("flow", {"target": "h3"}),
    ("flow", {"target": "abs", "loss": "square", "stop_at": 0.5}),
]


@pytest.mark.parametrize(("trainer", "settings"), AUDITED)
def test_every_trainer_stays_on_its_device(trainer, settings):
    """On the meta device tensors have no values: a host read or a tensor made elsewhere would be noticed."""
    p = problem.prepare(settings["target"], 16, 1, 0.01, 1, settings.get("student"), "correlation", 0.0, 2, None)
    with NoHostReads():
        result = TRAINERS[trainer](d=16, steps=40, lr=0.01, runs=3, device="meta", **settings)
    shape = (3, len(result.samples)) if p.directions == 1 else (3, len(result.samples), p.directions)
    assert result.overlaps.device.type == "meta" and tuple(result.overlaps.shape) == shape


REGRESSIONS = {
    "ridge, primal": lambda x, y: kernels.ridge(x, y, device="meta"),
    "ridge, dual": lambda x, y: kernels.ridge(x.mT, y[..., :8], intercept=True, device="meta"),
    "ridge, one parameter": lambda x, y: kernels.ridge(x, y, ridges=0.1, device="meta"),
    "kernel ridge": lambda x, y: kernels.kernel_ridge(x, y, "arc-cosine", device="meta"),
    "kernel ridge, one parameter": lambda x, y: kernels.kernel_ridge(x, y, ridges=1.0, intercept=True, device="meta"),
    "random features": lambda x, y: kernels.random_features(x, y, 12, "tanh", bias=1.0, device="meta"),
    "trained features": lambda x, y: kernels.random_features(
        x, y, sgd.one_step(nets.two_layer(8, 40, runs=3, device="meta"), x, y, 2.0), intercept=True
    ),
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_every_regression_stays_on_its_device(name):
    """The same audit for networks, gradient steps, ridge regressions and their predictions, with a runs axis."""
    x, y = torch.zeros(3, 20, 8, device="meta"), torch.zeros(3, 20, device="meta")
    with NoHostReads():
        fit = REGRESSIONS[name](x, y)
        predictions = fit.predict(x.mT if "dual" in name else x)
    assert predictions.device.type == "meta" and tuple(predictions.shape) == (3, 8 if "dual" in name else 20)
    assert fit.ridge.device.type == "meta" and tuple(fit.ridge.shape) == (3,)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("target", ["h3", "noisy_sign", "parity2"])
@pytest.mark.parametrize("trainer", [sgd.full_batch, exact.full_batch])
def test_full_batches_stay_on_their_device(trainer, target, reuse):
    with NoHostReads():
        result = trainer(target, 16, 20, 3, 0.1, student="tanh", reuse=reuse, runs=3, device="meta")
    assert result.magnetisations.device.type == "meta"
    assert tuple(result.magnetisations.shape) == ((3, 4, 2) if target == "parity2" else (3, 4))


@pytest.mark.parametrize("runs", [None, 3])
def test_two_layer_training_stays_on_its_device(runs):
    for activation in ("relu", nets.random_polynomials(5, 3, device="meta")):
        network = nets.two_layer(8, 5, activation, runs=runs, device="meta")
        with NoHostReads():
            result = sgd.train_two_layer(network, "h3", [3, 6], eta=0.1, interpolation=0.5)
        assert result.overlaps.device.type == "meta"
        assert tuple(result.overlaps.shape) == ((2, 5) if runs is None else (3, 2, 5))


@pytest.mark.parametrize("init", ["random", "spectral", "informed"])
@pytest.mark.parametrize(
    ("target", "noise"), [("sign", 0.0), ("square", 0.0), ("tanh", 0.3), ("parity2", 0.0), ("committee", 0.0)]
)
def test_amp_stays_on_its_device(target, noise, init):
    """On the meta device tensors have no values: a host read or a tensor made elsewhere would be noticed."""
    with NoHostReads():
        found = amp.run(target, 1.5, 12, noise=noise, runs=3, iterations=12, init=init, device="meta")
    r = targets.get(target).directions
    assert found.overlap.device.type == "meta" and tuple(found.overlap.shape) == (3, r, r)
    assert tuple(found.trajectory.shape) == (3, 13, r)


def test_the_audit_is_able_to_fail():
    with pytest.raises(AssertionError, match=r"host read|leaves"), NoHostReads():
        torch.zeros(3, device="meta").to("cpu")
    with pytest.raises(AssertionError, match="host read"), NoHostReads():
        bool(torch.zeros(1, device="meta"))
    with pytest.raises(AssertionError, match="mixes"), NoHostReads():
        torch.zeros(3, 3, device="meta") @ torch.zeros(3, 3)


BAD = {
    "d is 0": {"d": 0},
    "d is -3": {"d": -3},
    "d is 2.5": {"d": 2.5},
    "d is nan": {"d": math.nan},
    "d is 1;": {"d": 1},
    "steps is 0": {"steps": 0},
    "lr is nan": {"lr": math.nan},
    "lr is inf": {"lr": math.inf},
    "lr is 0": {"lr": 0.0},
    "lr is -0.1": {"lr": -0.1},
    "lr is 'fast'": {"lr": "fast"},
    "runs is 0": {"runs": 0},
    "runs is True": {"runs": True},
    "seed is -1": {"seed": -1},
    "records is 1": {"records": 1},
    "lookahead is -1": {"lookahead": -1},
    "loss is 'hinge'": {"loss": "hinge"},
    "did you mean 'tanh'": {"target": "tahn"},
    "target returns shape": {"target": lambda z: z.sum()},
    "target is 3;": {"target": 3},
    "student returns shape": {"student": lambda z: z[:1]},
    "student is 'parity2' with 2 directions": {"student": "parity2"},
    "known targets": {"student": "relux"},
    "derivative vanishes": {"student": "sign"},
    "student is None": {"target": "staircase"},
    "start has shape": {"start": [0.1, 0.2, 0.3]},
    "start is 1.5": {"start": 1.5},
    "stop_at is 2": {"stop_at": 2},
    "device is 'gpu'": {"device": "gpu"},
    "CUDA devices": {"device": "cuda:7"},
}


@pytest.mark.parametrize("words", BAD)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_bad_input_is_named(trainer, words):
    good = {"target": "h1", "d": 16, "steps": 5, "lr": 0.01, "runs": 4}
    with pytest.raises(ValueError, match=words):
        TRAINERS[trainer](**good | BAD[words])


@pytest.mark.parametrize("level", [0, -0.1, 1.01, math.nan, "half"])
def test_bad_levels_are_named(level):
    result = exact.online_sgd("h1", 16, 5, 0.01, runs=2)
    with pytest.raises(ValueError, match="level is"):
        result.samples_to_reach(level)
    with pytest.raises(ValueError, match="direction is 1"):
        result.samples_to_reach(0.5, direction=1)


def test_the_flow_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="the flow takes one"):
        flow.online_sgd("parity2", 16, 5, 0.01, student="tanh")
    with pytest.raises(ValueError, match="without label noise"):
        flow.online_sgd("noisy_sign", 16, 5, 0.01)


@pytest.mark.parametrize(("steps", "records"), [(1, 2), (7, 64), (1000, 20), (10**7, 64)])
def test_record_grid_is_log_spaced_and_complete(steps, records):
    grid = results.record_grid(steps, records)
    assert grid[0] == 0 and grid[-1] == steps and len(grid) <= records + 1
    assert (np.diff(grid) > 0).all()


def test_device_choice(monkeypatch):
    from lowdim import device

    monkeypatch.setenv("LOWDIM_DEVICE", "meta")
    assert device.resolve().type == "meta" and device.resolve("cpu").type == "cpu"
    assert device.resolve(prefer="cpu").type == "meta"
    monkeypatch.setenv("LOWDIM_DEVICE", "toaster")
    with pytest.raises(ValueError, match="toaster"):
        device.resolve()
    monkeypatch.delenv("LOWDIM_DEVICE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device.resolve().type == "cuda" and device.resolve(prefer="cpu").type == "cpu"
