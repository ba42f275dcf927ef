"""Spiked inputs: their law, flows against autograd and closed forms, trainers against flows, Langevin dynamics."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import ks_2samp

from lowdim import data, exact, flow, hermite, kernels, links, results, sgd, spectra, targets
from tests.lib.test_trainers import NoHostReads

# --------------------------------------------------------------------------------------------------------- input laws


@pytest.mark.parametrize("alignment", [1.0, 0.6, 0.0, -0.3])
def test_spiked_inputs_have_their_covariance_and_a_unit_projection(alignment):
    sample = data.spiked(40_000, 6, 5.0, alignment=alignment, seed=1)
    covariance = torch.eye(6, dtype=torch.float64) + 5 * torch.outer(sample.mu, sample.mu)
    torch.testing.assert_close(sample.x.T @ sample.x / 40_000, covariance, atol=0.15, rtol=0)
    assert float(sample.mu @ sample.beta) == pytest.approx(alignment, abs=1e-12)
    assert sample.mu.norm() == pytest.approx(1) and sample.beta.norm() == pytest.approx(1)
    assert sample.kappa == pytest.approx(float(sample.beta @ covariance @ sample.beta))
    torch.testing.assert_close(sample.z * math.sqrt(sample.kappa), sample.x @ sample.beta)
    assert float(sample.z.square().mean()) == pytest.approx(1, abs=0.03)


def test_spiked_runs_are_independent_and_share_directions():
    one, several = data.spiked(50, 4, 2.0, seed=3), data.spiked(50, 4, 2.0, runs=3, seed=3)
    assert one.x.shape == (50, 4) and several.x.shape == (3, 50, 4) and several.z.shape == (3, 50)
    torch.testing.assert_close(one.mu, several.mu)
    assert not torch.allclose(several.x[0], several.x[1])
    torch.testing.assert_close(data.spiked(50, 4, 2.0, seed=3).x, one.x)


@pytest.mark.parametrize(("k", "gain", "amplified"), [(2, 3.0, None), (3, 2.0, [4, 5]), (1, 0.5, []), (5, 1.0, None)])
def test_parities(k, gain, amplified):
    sample = data.parity(4000, 5 if k == 5 else 8, k, gain=gain, amplified=amplified, trace=2.5, seed=1)
    signs = torch.sign(sample.x)
    torch.testing.assert_close(sample.y, signs[:, :k].prod(-1))
    np.testing.assert_allclose(sample.x.abs().numpy(), np.broadcast_to(sample.sides, sample.x.shape))
    assert np.sum(sample.sides**2) == pytest.approx(2.5)
    long = list(range(k)) if amplified is None else amplified
    rest = [i for i in range(len(sample.sides)) if i not in long]
    if long and rest:
        assert sample.sides[long[0]] / sample.sides[rest[0]] == pytest.approx(gain)
    assert float(signs.mean(0).abs().max()) < 0.08
    # No single coordinate of a parity of two or more knows the label.
    if k > 1:
        assert float((signs * sample.y[:, None]).mean(0).abs().max()) < 0.08


@pytest.mark.parametrize("c", [0.3, 1.0, 2.0])
def test_spikes_of_sample_covariances(c):
    """Location and overlap against draws, d = 300: fluctuations are of order d^{-1/2}, less in the mean of four."""
    d, theta = 300, np.array([0.5, 1.5, 3.0]) * math.sqrt(c)
    location, overlap = spectra.covariance_spike(theta, c)
    for t, top, squared in zip(theta, location, overlap, strict=True):
        found = []
        for i in range(4):
            sample = data.spiked(round(d / c), d, t, seed=i)
            values, vectors = torch.linalg.eigh(sample.x.T @ sample.x / len(sample.x))
            found.append((float(values[-1]), float(vectors[:, -1] @ sample.mu) ** 2))
        values, squares = np.mean(found, axis=0)
        assert values == pytest.approx(top, rel=0.05)
        assert squares == pytest.approx(squared, abs=0.06)


def test_covariance_spike_is_continuous_at_its_threshold():
    location, overlap = spectra.covariance_spike(np.array([1.0, 1.0 + 1e-9]), 1.0)
    assert location[0] == pytest.approx(location[1], abs=1e-6) and overlap[1] == pytest.approx(0, abs=1e-6)


# --------------------------------------------------------------------------------------------------------------- flows

POLYNOMIAL = links.polynomial([0.2, 0.5, -0.3, 0.4])


def population_risk(w, variances, teacher, f, sigma, dynamics, loss):
    """½E(y − f_w)² or −E y f_w by a product rule, differentiable in w [3]; `teacher` is β/√κ."""
    nodes, weights = (torch.as_tensor(v.copy()) for v in hermite.gauss(24))
    z, t = torch.meshgrid(nodes, nodes, indexing="ij")
    weight = torch.outer(weights, weights)
    size = (w @ (variances * w)).sqrt()
    u = (w @ (variances * teacher)) / size
    field = u * z + (1 - u**2).sqrt() * t
    out, y = sigma(field * size if dynamics == "spherical" else field), f(z)
    return (weight * ((y - out) ** 2 / 2 if loss == "square" else -y * out)).sum()


@pytest.mark.parametrize("loss", ["square", "correlation"])
@pytest.mark.parametrize("dynamics", flow.DYNAMICS)
def test_the_flow_is_the_gradient_of_the_written_out_risk(dynamics, loss):
    theta, s = 4.0, 0.6
    variances = torch.tensor([1 + theta, 1.0, 1.0], dtype=torch.float64)
    beta = torch.tensor([s, 0.8, 0.0], dtype=torch.float64)
    teacher = beta / (beta @ (variances * beta)).sqrt()
    w = torch.tensor([0.3, 0.4, math.sqrt(0.75)], dtype=torch.float64, requires_grad=True)
    f = targets.custom(POLYNOMIAL)
    risk = population_risk(w, variances, teacher, f, links.he(2), dynamics, loss)
    force = -torch.autograd.grad(risk, w)[0]
    point = w.detach()
    if dynamics == "spherical":
        expected = force - (force @ point) * point
    else:
        expected = (point @ (variances * point)) * force
    problem = flow.prepare(f, 5, 1, 1.0, 1, links.he(2), loss, 0.0, 2, None)
    field = flow._spherical_field if dynamics == "spherical" else flow._normalised_field
    found = field(problem, variances.numpy(), teacher.numpy(), False)(point.numpy())
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    if dynamics == "normalized":
        changed = field(problem, variances.numpy(), teacher.numpy(), True)(point.numpy())
        np.testing.assert_allclose(changed, (expected / variances).numpy(), atol=1e-6)


def test_a_student_with_a_kink_has_the_same_average_force():
    """ReLU is homogeneous: on the sphere of radius one its averages are S times those of the normalised neuron."""
    problem = flow.prepare("h2", 5, 1, 1.0, 1, links.relu(), "correlation", 0.0, 2, None)
    variances, teacher = np.array([5.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0]) / math.sqrt(5)
    w = np.array([0.3, 0.0, math.sqrt(0.91)])
    spherical = flow._spherical_field(problem, variances, teacher, False)(w)
    size = math.sqrt(w @ (variances * w))
    normalised = flow._normalised_field(problem, variances, teacher, False)(w) / size**2
    # ∇(S g(w)) = S ∇g + g Σw/S with g = −E y σ(h/S), up to the tangential projection.
    beta2 = hermite.coefficients(links.relu(), 2)[2]
    value = -beta2 * ((w @ (variances * teacher)) / size) ** 2
    force = size * normalised - value * variances * w / size
    np.testing.assert_allclose(spherical, force - (force @ w) * w, atol=1e-5)


@pytest.mark.parametrize("dynamics", flow.DYNAMICS)
def test_isotropic_inputs_give_the_closed_form(dynamics):
    result = flow.spiked("h1", 50, 0.0, 3.0, dynamics=dynamics, runs=3, seed=2)
    expected = np.tanh(result.times + np.arctanh(result.correlation[:, :1]))
    np.testing.assert_allclose(result.correlation, expected, atol=1e-6)
    np.testing.assert_allclose(result.teacher, result.correlation, atol=1e-9)


@pytest.mark.parametrize("k", [2, 3])
def test_preconditioning_makes_the_flow_isotropic(k):
    """du/dt = ζ(u)(1 − u²) whatever the spike: hitting times are an integral over the start alone."""
    run = flow.spiked(f"h{k}", 100, 30.0, 60.0, alignment=0.3, precondition=True, runs=4, seed=1, records=2000)
    for start, time in zip(run.correlation[:, 0], run.time_to_reach(0.9), strict=True):
        assert time == pytest.approx(quad(lambda u: 1 / (k * u ** (k - 1) * (1 - u**2)), start, 0.9)[0], rel=2e-3)


@pytest.mark.parametrize("k", [3, 4])
def test_repulsion_near_the_equator(k):
    """R ≈ const + ½kθm² for small m: the overlap decays like e^{−kθt} on the sphere, and not without the term E f²."""
    run = flow.spiked(f"h{k}", 100, 6.0, 0.2, dynamics="spherical", start=[1e-4, 0.0], runs=1)
    rate = -math.log(run.teacher[0, -1] / run.teacher[0, 0]) / 0.2
    assert rate == pytest.approx(6 * k, rel=0.01)
    free = flow.spiked(f"h{k}", 100, 6.0, 0.2, dynamics="spherical", loss="correlation", start=[1e-4, 0.0], runs=1)
    assert free.teacher[0, -1] == pytest.approx(1e-4, rel=0.01)


def test_aligned_spherical_flow_fails_and_normalised_flow_works():
    law = {"target": "h3", "d": 200, "theta": 14.0, "time": 100.0, "runs": 6, "seed": 3}
    assert np.abs(flow.spiked(**law, dynamics="spherical").teacher[:, -1]).max() < 1e-3
    assert flow.spiked(**law).teacher[:, -1].min() > 0.999
    assert flow.spiked(**law, dynamics="spherical", loss="correlation").teacher[:, -1].min() > 0.999


def test_starts_are_uniform_with_the_sign_of_the_teacher():
    run = flow.spiked("h2", 12, 3.0, 1e-3, alignment=0.5, runs=1500, seed=1, records=2)
    direct = torch.nn.functional.normalize(torch.randn(1500, 12, generator=torch.Generator().manual_seed(0)), dim=1)
    spike, other = direct[:, 0], direct[:, 1]
    u = (4 * 0.5 * spike + math.sqrt(0.75) * other) / ((1 + 3 * spike**2) * (1 + 3 * 0.25)).sqrt()
    assert (run.correlation[:, 0] >= 0).all()
    assert ks_2samp(run.correlation[:, 0], u.abs().numpy()).pvalue > 1e-3


def test_time_to_reach_interpolates():
    times, u = np.array([[0.0, 1.0, 3.0]] * 2), np.array([[0.0, 0.2, 0.6], [0.0, 0.1, 0.2]])
    run = results.SpikedResult(times, u, u, u, np.zeros(2, bool), 4, 1.0, 1.0)
    np.testing.assert_allclose(run.time_to_reach(0.4), [2.0, np.inf])
    np.testing.assert_allclose(run.time_to_reach(0.1), [0.5, 1.0])
    with pytest.raises(ValueError, match="level is 0"):
        run.time_to_reach(0)


# ------------------------------------------------------------------------------------------------------------- trainers


@pytest.mark.parametrize(
    ("dynamics", "precondition"), [("spherical", False), ("normalized", False), ("normalized", True)]
)
@pytest.mark.parametrize("loss", ["square", "correlation"])
def test_a_step_on_a_sample_is_the_gradient_of_its_loss(dynamics, precondition, loss):
    """One step turned by a tiny angle, against autograd of the written-out empirical loss."""
    d, n, theta = 5, 60, 3.0
    law = {"alignment": 0.5, "dynamics": dynamics, "precondition": precondition, "loss": loss, "student": "tanh"}
    run = sgd.spiked("h2", d, n, theta, 1, **law, angle=1e-2, runs=2, seed=4, device="cpu", records=2)
    sample = data.spiked(n, d, theta, alignment=0.5, runs=2, seed=4, device="cpu", dtype=torch.float32)
    x, y, mu, beta = sample.x, targets.get("h2")(sample.z), sample.mu, sample.beta
    w = torch.nn.functional.normalize(torch.randn(2, d, generator=torch.Generator().manual_seed(4)), dim=1)
    sigma_beta = beta + theta * 0.5 * mu
    w = (w * torch.where(w @ sigma_beta < 0, -1.0, 1.0)[:, None]).requires_grad_(True)
    h = (x @ w[..., None])[..., 0]
    out = torch.tanh(h / h.square().mean(1, keepdim=True).sqrt() if dynamics == "normalized" else h)
    risk = ((y - out) ** 2 / 2 if loss == "square" else -y * out).mean(1).sum()
    force = -torch.autograd.grad(risk, w)[0]
    point = w.detach()
    if dynamics == "normalized":
        force = force * h.detach().square().mean(1, keepdim=True)
    if precondition:
        force = torch.linalg.solve(x.mT @ x / n, force[..., None])[..., 0]
    if not precondition:
        force = force - (force * point).sum(1, keepdim=True) * point
    # In whitened coordinates the length is |Σ̂^{1/2}w|, so that time runs by its square root there.
    advance = torch.as_tensor(run.times[:, 1])[:, None]
    if precondition:
        point = point / h.detach().square().mean(1, keepdim=True).sqrt()
        force = force / h.detach().square().mean(1, keepdim=True).sqrt()
    moved = torch.nn.functional.normalize(point + advance * force, dim=1)
    np.testing.assert_allclose(run.teacher[:, 1], (moved @ beta).numpy(), atol=2e-5)
    np.testing.assert_allclose(run.spike[:, 1], (moved @ mu).numpy(), atol=2e-5)
    assert (run.times[:, 1] > 0).all()


@pytest.mark.parametrize(
    ("dynamics", "precondition"), [("spherical", False), ("normalized", False), ("normalized", True)]
)
def test_many_samples_follow_the_flow(dynamics, precondition):
    law = {"alignment": 0.6, "dynamics": dynamics, "precondition": precondition, "student": "tanh"}
    run = sgd.spiked("h1", 6, 30_000, 3.0, 60, **law, angle=0.02, runs=3, seed=1, records=61)
    spike = run.spike[:, 0]
    start = np.column_stack([spike, (run.teacher[:, 0] - 0.6 * spike) / 0.8])
    theory = flow.spiked("h1", 6, 3.0, float(run.times.max()), **law, start=start, runs=3, records=800)
    for i in range(3):
        line = np.interp(run.times[i], theory.times[i], theory.correlation[i])
        assert np.abs(run.correlation[i] - line).max() < 0.03
    assert run.correlation[:, -1].min() > run.correlation[:, 0].min() + 0.05


def test_groups_of_runs_have_the_same_law(monkeypatch):
    law = {"target": "h2", "d": 10, "n": 80, "theta": 4.0, "steps": 20, "runs": 300, "records": 2}
    whole = sgd.spiked(**law, seed=1).correlation[:, -1]
    monkeypatch.setattr(sgd, "BATCH", 10 * 80 * 7)
    parts = sgd.spiked(**law, seed=2).correlation[:, -1]
    assert len(np.unique(parts)) == 300 and ks_2samp(whole, parts).pvalue > 1e-3


@pytest.mark.parametrize(("alignment", "whiten"), [(1.0, False), (0.5, False), (0.5, True)])
def test_the_gradient_has_the_law_of_d_dimensions(alignment, whiten):
    d, n, theta, runs, student = 20, 60, 6.0, 1500, links.relu(0.7)
    law = {"alignment": alignment, "student": student, "runs": runs}
    fast = exact.spiked_gradient("h2", d, n, theta, **law, whiten=whiten, seed=1)
    sample = data.spiked(n, d, theta, alignment=alignment, runs=runs, seed=2, dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    w = torch.nn.functional.normalize(torch.randn(runs, d, generator=generator), dim=1)
    x, mu, beta = sample.x, sample.mu, sample.beta
    if whiten:
        root = math.sqrt(1 + theta)
        x = x + (1 / root - 1) * (x @ mu)[..., None] * mu
        w = torch.nn.functional.normalize(w + (root - 1) * (w @ mu)[:, None] * mu, dim=1)
        beta = torch.nn.functional.normalize(beta + (root - 1) * (beta @ mu) * mu, dim=0)
    # A neuron with a bias is not symmetric: both start on the teacher's side.
    flip = torch.where(w @ (beta if whiten else beta + theta * alignment * mu) < 0, -1.0, 1.0)
    c = targets.get("h2")(sample.z) * student.derivative((x @ (flip[:, None] * w)[..., None])[..., 0])
    g = (c[:, None] @ x)[:, 0]
    for found, direction in ((fast.teacher, beta), (fast.spike, mu)):
        assert ks_2samp(found, ((g @ direction) ** 2 / g.square().sum(1)).numpy()).pvalue > 1e-3
    covariance = torch.eye(d) + (0.0 if whiten else theta) * torch.outer(mu, mu)
    seen = (g @ covariance @ beta) ** 2 / torch.einsum("ri,ij,rj->r", g, covariance, g) / (beta @ covariance @ beta)
    assert ks_2samp(fast.correlation, seen.numpy()).pvalue > 1e-3


# ------------------------------------------------------------------------------------------------------------- Langevin


@pytest.mark.parametrize("loss", ["logistic", "square"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_cold_step_is_the_gradient_of_the_written_out_objective(loss, activation):
    sample = data.parity(30, 6, 2, runs=2, seed=1)
    law = {"temperature": 0.0, "weight_decay": 0.3, "scale": 4.0, "activation": activation, "loss": loss, "seed": 7}
    before = sgd.langevin(sample.x, sample.y, 9, 1, 1e-12, **law).network
    after = sgd.langevin(sample.x, sample.y, 9, 1, 0.2, **law).network
    w, b = (v.clone().requires_grad_(True) for v in (before.weights, before.biases))
    f = 4.0 * before.activation.torch(sample.x @ w.mT + b[:, None]).mean(-1)
    value = torch.log1p(torch.exp(-sample.y * f)) if loss == "logistic" else (sample.y - f) ** 2 / 2
    total = value.mean(1).sum() + 0.15 / 9 * (w.square().sum() + b.square().sum())
    gradients = torch.autograd.grad(total, (w, b))
    for new, old, gradient in zip((after.weights, after.biases), (w, b), gradients, strict=True):
        torch.testing.assert_close(new, old.detach() - 0.2 * 9 * gradient, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after(sample.x), 4.0 * after.features(sample.x).sum(-1) / math.sqrt(9))


def test_without_a_signal_the_particles_rest_in_the_gaussian():
    """With inputs zero and the square loss at f = 0 only decay, noise and the bias' own force act on w: N(0, λ/λ₁)."""
    x, y = torch.zeros(2, 4, 5), torch.zeros(2, 4)
    eta, heat, decay = 0.1, 0.02, 0.5
    run = sgd.langevin(x, y, 4000, 150, eta, temperature=heat, weight_decay=decay, start=3.0, loss="square", seed=1)
    w = run.network.weights
    exact_variance = 2 * eta * heat / (1 - (1 - eta * decay) ** 2)
    assert exact_variance == pytest.approx(heat / decay, rel=0.03)
    assert float(w.var()) == pytest.approx(exact_variance, rel=0.03)
    assert float((w**4).mean()) == pytest.approx(3 * exact_variance**2, rel=0.08)


def test_cold_linear_particles_solve_a_ridge_regression():
    """σ = identity: f depends on the mean particle, which minimises ½ mean(y − f)² + λ₁|X̄|²/2."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((60, 4))
    y = x @ np.array([1.0, -0.5, 0.2, 0.0]) + 0.1 * rng.standard_normal(60)
    law = {"temperature": 0.0, "weight_decay": 0.3, "activation": "linear", "loss": "square", "start": 0.5}
    run = sgd.langevin(x, y, 7, 400, 0.2, **law, seed=2)
    inputs = np.column_stack([x, np.ones(60)])
    expected = np.linalg.solve(inputs.T @ inputs / 60 + 0.3 * np.eye(5), inputs.T @ y / 60)
    np.testing.assert_allclose(run.network.weights.mean(0), expected[:4], atol=1e-4)
    assert float(run.network.biases.mean()) == pytest.approx(expected[4], abs=1e-4)
    fit = kernels.ridge(inputs, y, ridges=0.3 * 60)
    np.testing.assert_allclose(run.network(torch.as_tensor(x)).numpy(), fit.predict(inputs), atol=1e-3)
    assert run.losses[-1] < run.losses[0]


def test_amplified_parities_are_learned_and_random_labels_are_not():
    law = {"temperature": 1e-3, "weight_decay": 1e-3, "scale": 10.0, "seed": 1}
    train, test = (data.parity(n, 16, 2, gain=3.0, runs=3, seed=s) for n, s in ((48, 1), (400, 2)))
    run = sgd.langevin(train.x, train.y, 128, 200, 1.0, **law)
    assert float((torch.sign(run.network(test.x)) == test.y).double().mean()) > 0.9
    noise = 2.0 * torch.randint(0, 2, train.y.shape, generator=torch.Generator().manual_seed(1)) - 1
    run = sgd.langevin(train.x, noise, 128, 200, 1.0, **law)
    assert float((torch.sign(run.network(test.x)) == test.y).double().mean()) == pytest.approx(0.5, abs=0.15)


def test_divergence_is_said_and_leaves_no_nan():
    x, y = torch.ones(3, 4, 2), torch.ones(3, 4)
    with pytest.warns(RuntimeWarning, match="3 of 3 runs diverged"):
        run = sgd.langevin(x, y, 5, 60, 1e30, temperature=0.0, weight_decay=1.0)
    assert run.diverged.all() and torch.isfinite(run.network.weights).all()
    with pytest.warns(RuntimeWarning, match="diverged"):
        broken = sgd.spiked(lambda z: 1e38 * z, 4, 30, 1.0, 5, student="tanh", runs=2, records=2)
    assert broken.diverged.any() and np.isfinite(broken.correlation).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not sgd.spiked("h2", 4, 30, 1.0, 5, runs=2, records=2).diverged.any()


# -------------------------------------------------------------------------------------------------- devices, bad input

ON_META = {
    "spiked sample": lambda: data.spiked(20, 6, 2.0, runs=3, device="meta").z,
    "parity sample": lambda: data.parity(20, 6, 2, gain=2.0, runs=3, device="meta").y,
    "spherical": lambda: sgd.spiked("h3", 6, 20, 2.0, 4, dynamics="spherical", runs=3, device="meta").teacher,
    "normalized": lambda: sgd.spiked(torch.sin, 6, 20, 2.0, 4, alignment=0.5, runs=3, device="meta").times,
    "preconditioned": lambda: sgd.spiked(
        "noisy_sign", 6, 20, 2.0, 4, student="tanh", precondition=True, runs=3, device="meta"
    ).spike,
    "gradient": lambda: exact.spiked_gradient("h3", 6, 20, 2.0, runs=3, device="meta").teacher,
    "langevin": lambda: sgd.langevin(
        torch.zeros(3, 20, 6, device="meta"), torch.zeros(3, 20, device="meta"), 5, 3, 0.1,
        temperature=0.1, weight_decay=0.1, device="meta",
    ).losses,
}  # fmt: skip


@pytest.mark.parametrize("name", ON_META)
def test_everything_stays_on_its_device(name):
    with NoHostReads():
        found = ON_META[name]()
    assert found.device.type == "meta" and found.shape[0] == 3


BAD = {
    "n is 0": lambda: data.spiked(0, 5, 1.0),
    "d is 1;": lambda: data.spiked(5, 1, 1.0),
    "theta is -1": lambda: data.spiked(5, 5, -1.0),
    "alignment is 1.2": lambda: data.spiked(5, 5, 1.0, alignment=1.2),
    "runs is 0": lambda: data.spiked(5, 5, 1.0, runs=0),
    "k is 7; there are only d = 5": lambda: data.parity(5, 5, 7),
    "gain is 0": lambda: data.parity(5, 5, 2, gain=0),
    "amplified is": lambda: data.parity(5, 5, 2, amplified=[5]),
    "trace is -1": lambda: data.parity(5, 5, 2, trace=-1),
    "c is 0": lambda: spectra.covariance_spike(1.0, 0),
    "theta is nan": lambda: spectra.covariance_spike(math.nan, 1),
    "dynamics is 'normalised'": lambda: flow.spiked("h3", 5, 1.0, 1.0, dynamics="normalised"),
    "precondition is True": lambda: flow.spiked("h3", 5, 1.0, 1.0, dynamics="spherical", precondition=True),
    "time is 0": lambda: flow.spiked("h3", 5, 1.0, 0),
    "the flow takes one direction": lambda: flow.spiked("parity2", 5, 1.0, 1.0, student="tanh"),
    "start has shape": lambda: flow.spiked("h3", 5, 1.0, 1.0, start=[0.1, 0.2, 0.3], runs=2),
    "must exceed d = 5": lambda: sgd.spiked("h3", 5, 5, 1.0, 3, precondition=True),
    "angle is 0": lambda: sgd.spiked("h3", 5, 9, 1.0, 3, angle=0),
    "it must have one": lambda: sgd.spiked("parity2", 5, 9, 1.0, 3, student="tanh"),
    "theta is inf": lambda: sgd.spiked("h3", 5, 9, math.inf, 3),
    "d is 3; it must be a whole number ≥ 4": lambda: exact.spiked_gradient("h3", 3, 9, 1.0),
    "no noise": lambda: exact.spiked_gradient("noisy_sign", 5, 9, 1.0),
    "x has shape": lambda: sgd.langevin(np.ones((4, 2)), np.ones(3), 5, 2, 0.1, temperature=0, weight_decay=0),
    "temperature is -1": lambda: sgd.langevin(np.ones((4, 2)), np.ones(4), 5, 2, 0.1, temperature=-1, weight_decay=0),
    "loss is 'hinge'": lambda: sgd.langevin(
        np.ones((4, 2)), np.ones(4), 5, 2, 0.1, temperature=0, weight_decay=0, loss="hinge"
    ),
    "width is 0": lambda: sgd.langevin(np.ones((4, 2)), np.ones(4), 0, 2, 0.1, temperature=0, weight_decay=0),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_named(words):
    with pytest.raises(ValueError, match=words):
        BAD[words]()
