"""Gradient trainers in d dimensions. All repetitions train at once, as one tensor program with a leading runs axis."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from lowdim import checks, compiled, data, functions, layerwise, nets, results
from lowdim import device as devices
from lowdim.flow import check_dynamics
from lowdim.problem import Problem, prepare, prepare_batch, start_overlaps
from lowdim.progress import bar

# Inputs drawn at once (numbers): large enough to amortise the calls, small enough to keep memory near 16 MB.
BLOCK = 1 << 22
# Numbers of one group of batches in `full_batch`: half a gigabyte in single precision.
BATCH = 1 << 27


def online_sgd(
    target,
    d,
    steps,
    lr,
    *,
    runs=16,
    student=None,
    loss="correlation",
    lookahead=0.0,
    variant="look-ahead",
    seed=0,
    device=None,
    records=64,
    start=None,
    stop_at=None,
):
    r"""Train one neuron on the sphere by online SGD in d dimensions, `runs` independent runs at once.

    Every step draws a fresh x ~ N(0, I_d) per run, its label y, and moves (γ = lr, h = ⟨w, x⟩)

        w ← normalise(w + γ g (x − h w)),      g = e(h̃) σ'(h̃),     h̃ = h + ρ |x|² e(h) σ'(h),

    with e = y for loss="correlation" and e = y − σ(h) for loss="square"; ρ = lookahead > 0 takes the gradient after a
    trial step on the same sample; variant="two steps" and "sharpness-aware" use the sample twice in other ways, see
    `problem.Problem`. The teacher's directions are random and orthonormal, shared by all runs.

    target    a name (`targets.names()`), a `Target`, or a vectorised function of one variable (NumPy or torch)
    d, steps  dimension and number of samples
    student   the activation σ: a name, a `Link`, a `Target` or a function; default: the target's own link
    seed      all randomness comes from it
    device    None (CUDA if present, else CPU; LOWDIM_DEVICE overrides) or a torch device
    records   about how many log-spaced records of the overlap to keep
    start     overlaps at the start, one number or [runs] (or [runs, r]); default: uniform on the sphere
    stop_at   a run whose |m| reached this level stays there (for hitting times)

    Returns an `OverlapResult`.
    """
    problem = prepare(target, d, steps, lr, runs, student, loss, lookahead, records, stop_at, variant)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    # Single precision: rounding (1e-7 a step, random signs) is far below the noise of one sample, and draws are faster.
    options = {"device": place, "dtype": torch.float32}
    teacher = _orthonormal(d, problem.directions, generator, options)
    w = _start(problem, start, teacher, generator, options)
    train = _compiled if place.type == "cpu" and compiled.is_compilable(problem.link) else _tensor_program
    return train(problem, w, teacher, generator)


def spherical_gradient(target, w, n, *, student=None, loss="correlation", seed=0, device=None):
    r"""The mean spherical gradient over n fresh samples at the unit vectors w [runs, d]: a NumPy array [runs, d],

        G_n(w) = (1/n) Σ_i e_i σ'(h_i) (x_i − h_i w),     h_i = ⟨w, x_i⟩,

    with e = y (correlation loss) or e = y − σ(h) (square loss): the direction in which spherical SGD moves. The
    teacher's directions are the first r basis vectors. All runs see the same samples: one matrix product serves all.
    """
    place = devices.resolve(device)
    w = torch.as_tensor(np.asarray(w), device=place, dtype=torch.float32)
    if w.ndim != 2:
        raise ValueError(f"w has shape {tuple(w.shape)}; it must have shape [runs, d]")
    runs, d = w.shape
    problem = prepare(target, d, n, 1.0, runs, student, loss, 0.0, 2, None)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    teacher = torch.eye(d, device=place)[:, : problem.directions]
    total = torch.zeros(runs, d, device=place, dtype=torch.float64)
    seen = 0
    with bar(label="gradient", total=n) as progress:
        while seen < n:
            block = min(n - seen, max(1, BLOCK // d))
            x, y = _draw(problem, (block,), teacher, generator)
            h = x @ w.T
            g = problem.gradient_factor(y[:, None].expand_as(h), h, None)
            total += g.T @ x - (g * h).sum(0)[:, None] * w
            seen += block
            progress.update(block)
    return devices.to_host(total / n)


def one_step(network, x, y, eta):
    r"""One full-batch gradient step on the first layer of a two-layer network: the network with the weights

        W_1 = W_0 + η √N G,     G = −∂/∂W (1/2n) Σ_i (y_i − f(x_i))² = (1/(n√N)) Σ_i (y_i − f(x_i)) (a ⊙ σ'(h_i)) x_iᵀ,

    with h_i = W_0 x_i + b. Every neuron moves by a distance of order η |a_i|: with a_i ~ N(0, 1/N) (`nets.two_layer`)
    the change of W has operator norm Θ(η), and it changes each row by Θ(1) when η = Θ(√N).

    network  a `nets.TwoLayer`, of one or `runs` networks; biases and outputs stay as they are
    x, y     inputs [n, d] and labels [n], shared by all runs or with a leading runs axis
    eta      step size η ≥ 0; a tensor or array [runs] gives every run its own
    """
    place = network.weights.device
    x, y = (torch.as_tensor(v).to(device=place, dtype=torch.float64) for v in (x, y))
    if x.ndim not in (2, 3) or x.shape[-1] != network.d or y.shape[-1:] != x.shape[-2:-1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; they must be [n, {network.d}] and [n], "
            "with a leading runs axis or without"
        )
    eta = torch.as_tensor(checks.finite("eta", eta) if np.ndim(eta) == 0 else eta, device=place, dtype=torch.float64)
    n, width, total = x.shape[-2], network.width, 0.0
    lead = max(1, network.weights[..., 0, 0].numel(), x[..., 0, 0].numel())
    for i in bar(range(0, n, max(1, BLOCK // (width * lead))), "gradient"):
        part = x[..., i : i + max(1, BLOCK // (width * lead)), :]
        h = part @ network.weights.mT + network.biases[..., None, :]
        f = network.activation.torch(h) @ network.outputs[..., None] / math.sqrt(width)
        residual = y[..., i : i + part.shape[-2], None] - f
        g = residual * network.activation.derivative(h) * network.outputs[..., None, :]
        total = total + g.mT @ part
    # η√N · 1/(n√N): the two factors √N cancel.
    return network.with_weights(network.weights + eta[..., None, None] * total / n)


def full_batch(
    target,
    d,
    n,
    steps,
    lr,
    *,
    reuse=True,
    runs=16,
    student=None,
    loss="correlation",
    seed=0,
    device=None,
    start=None,
):
    r"""Full-batch gradient descent of one neuron σ(⟨w, x⟩) from a random unit vector, without normalisation.

        w_{t+1} = w_t + (η/n) Σ_i e_i σ'(h_i) x_i,     h_i = ⟨w_t, x_i⟩,

    with η = lr, e = y (correlation loss) or e = y − σ(h) (square loss). reuse=True takes every step on the same batch
    of n samples, reuse=False draws a fresh batch of n samples for every step. Other arguments as in `online_sgd`.
    Batches are held in single precision, as many runs at once as fit into half a gigabyte; `exact.full_batch` has the
    same law without ever forming a batch. Returns a `results.BatchResult`.
    """
    problem, n = prepare_batch(target, d, n, steps, lr, runs, student, loss)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    options = {"device": place, "dtype": torch.float32}
    teacher = _orthonormal(d, problem.directions, generator, options)
    w0 = _start(problem, start, teacher, generator, options)
    recorders = []
    with bar(label=f"full batch, d={d}", total=problem.runs * problem.steps) as progress:
        for w in w0.split(max(1, BATCH // (n * problem.d))):
            recorders.append(results.BatchRecorder(w, teacher))
            x = None
            for _ in range(problem.steps):
                if x is None or not reuse:
                    x = None  # frees the old batch before the new one is drawn
                    x, y = _draw(problem, (len(w), n), teacher, generator)
                h = (x @ w[..., None])[..., 0]
                g = problem.gradient_factor(y, h, None)
                w = recorders[-1].step(w, w + problem.lr / n * (g[:, None, :] @ x)[:, 0])
                progress.update(len(w))
    return results.finish_batch(recorders, problem.d, n, problem.lr)


def train_two_layer(network, target, samples, *, eta, interpolation, reuse=True, seed=0):
    r"""Phase I of Algorithm 1: normalised SGD on the first layer, two gradient steps on every fresh sample.

    For a sample (x, y) and neuron j with s_j = sign a_j, u_j = ⟨w_j, x⟩ and h_j = u_j + b_j,

        g_j = y s_j σ'(h_j) + y s_j σ'(h̃_j),   h̃_j = h_j + η |x|² y s_j σ'(h_j)       (reuse=False: the first term only)
        w̃_j = w_j + η g_j (x − u_j w_j),
        w_j ← normalise((1 − ξ) w_j + ξ w̃_j).

    This is the correlation loss: the talk's square loss with output weights so small that the network's own output does
    not matter beside y. Phase II is ridge regression: `kernels.random_features(x, y, result.networks[-1])`.

    network        a `nets.TwoLayer`, of one or `runs` networks; its rows are normalised first
    target         as in `online_sgd`; its directions are the first r basis vectors
    samples        when to keep the network: a number of samples, or several in increasing order
    eta            step size η > 0 of both steps (order 1/d)
    interpolation  ξ in (0, 1], or a function of the number t = 1, 2, … of the sample that returns it (NumPy array
                   [T] to [T])
    Returns a `results.TwoLayerResult`. All networks train at once, in single precision.
    """
    moments = _moments(samples)
    lookahead = checks.positive("eta", eta)
    place, d = network.weights.device, network.d
    problem = prepare(target, d, moments[-1], eta, 1, "linear", "correlation", lookahead, 2, None, "two steps")
    problem = replace(problem, student=network.activation, lookahead=lookahead if reuse else 0.0)
    xi = _interpolation(interpolation, moments[-1])
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    options = {"device": place, "dtype": torch.float32}
    teacher = torch.eye(d, **options)[:, : problem.directions]
    w, b, s = (v.to(torch.float32) for v in (network.weights, network.biases, network.outputs.sign()))
    lead = w.shape[:-2]
    w = torch.nn.functional.normalize(w, dim=-1)
    kept, seen = [], 0
    with devices.one_thread(), bar(label=f"two-layer network, d={d}", total=int(moments[-1])) as progress:
        for moment in moments:
            while seen < moment:
                block = int(min(moment - seen, 4096, max(1, BLOCK // (d * max(1, lead.numel())))))
                x, y = _draw(problem, (block, *lead), teacher, generator)
                squared_x = x.square().sum(-1)
                for t in range(block):
                    u = (w @ x[t][..., None])[..., 0]
                    g = problem.gradient_factor(y[t][..., None] * s, u + b, squared_x[t][..., None].expand_as(u))
                    step = float(xi[seen + t] * problem.lr) * g
                    norm = (1 + step.square() * (squared_x[t][..., None] - u.square()).clamp(min=0)).sqrt()
                    w = w * ((1 - step * u) / norm)[..., None] + (step / norm)[..., None] * x[t][..., None, :]
                w = torch.nn.functional.normalize(w, dim=-1)
                seen += block
                progress.update(block)
            kept.append(w)
    networks = tuple(network.with_weights(w.to(network.weights.dtype)) for w in kept)
    overlaps = devices.to_host(torch.stack([w @ teacher for w in kept], dim=len(lead)))
    return results.TwoLayerResult(moments, networks, overlaps[..., 0] if problem.directions == 1 else overlaps)


def _interpolation(interpolation, steps):
    """ξ_t for t = 1..steps as an array, checked to lie in (0, 1]."""
    t = np.arange(1, steps + 1)
    xi = interpolation(t) if callable(interpolation) else checks.fraction("interpolation", interpolation)
    xi = np.broadcast_to(np.asarray(xi, dtype=float), t.shape)
    if not ((xi > 0) & (xi <= 1)).all():
        raise ValueError(f"interpolation returns values in [{xi.min():g}, {xi.max():g}]; they must lie in (0, 1]")
    return xi


def _compiled(problem, w, teacher, generator):
    """The steps of all runs in compiled code, on the CPU. w [runs, d], teacher [d, r]."""
    rule = compiled.make_rule(problem)
    samples = results.record_grid(problem.steps, problem.records)
    log = compiled.make_log((w @ teacher).double().numpy(), samples, results.LEVELS)
    active = np.flatnonzero(np.abs(log.overlaps[:, 0, 0]) < rule.stop)
    rows, columns = w.numpy(), teacher.T.contiguous().numpy()
    seen = 0
    with bar(label=f"SGD, d={problem.d}", total=problem.steps) as progress:
        while seen < problem.steps and len(active):
            block = int(min(problem.steps - seen, max(1, BLOCK // (len(active) * problem.d))))
            x, y = _draw(problem, (len(active), block), teacher, generator)
            compiled.advance_vectors(rows, active, x.numpy(), y.numpy(), columns, seen, rule, log)
            seen += block
            m = (w @ teacher)[:, 0].abs().numpy()
            active = active[(m[active] < rule.stop) & ~log.diverged[active]]
            progress.update(block)
    log.overlaps[:, samples > seen] = (w @ teacher).double().numpy()[:, None, :]
    return results.finish(samples, log.overlaps, log.passages, log.diverged, problem.d, problem.lr)


def _tensor_program(problem, w, teacher, generator):
    """The same steps as a tensor program, for any student and device: no host reads inside the loop."""
    m = w @ teacher
    recorder = results.Recorder(m, problem.steps, problem.records)
    state = results.RunState(m[:, 0], problem.stop_at)
    with bar(label=f"SGD, d={problem.d}", total=problem.steps) as progress:
        for block in recorder.blocks(min(BLOCK // (problem.runs * problem.d), 4096)):
            x, y = _draw(problem, (block, problem.runs), teacher, generator)
            squared_x = x.square().sum(-1)
            history = m.new_empty(block, *m.shape)
            for t in range(block):
                h = torch.linalg.vecdot(w, x[t])
                step = problem.lr * problem.gradient_factor(y[t], h, squared_x[t])
                norm = (1 + step.square() * (squared_x[t] - h.square()).clamp(min=0)).sqrt()
                keep, move = (1 - step * h) / norm, step / norm
                moving = state.moving(keep + move + norm)
                keep, move = torch.where(moving, keep, 1.0), torch.where(moving, move, 0.0)
                w = torch.addcmul(w * keep[:, None], x[t], move[:, None])
                m = (w @ teacher).clamp(-1, 1)
                state.note(m[:, 0])
                history[t] = m
            # The norm in closed form keeps |w| = 1 up to rounding; rounding is removed once per block.
            w = w / torch.linalg.vector_norm(w, dim=1, keepdim=True)
            recorder.add(history)
            progress.update(block)
    return recorder.finish(state.diverged, problem.d, problem.lr)


def _draw(problem, shape, teacher, generator):
    """Fresh inputs x [*shape, d] and their labels y [*shape]."""
    options = {"device": teacher.device, "dtype": teacher.dtype}
    x = torch.randn(*shape, problem.d, generator=generator, **options)
    h = x @ teacher
    xi = torch.randn(*shape, generator=generator, **options) if problem.target.is_noisy else None
    return x, problem.target.labels(h[..., 0] if problem.directions == 1 else h, xi)


def _orthonormal(d, r, generator, options):
    """The teacher's directions: r random orthonormal columns [d, r]."""
    return torch.linalg.qr(torch.randn(d, r, generator=generator, **options)).Q


def _start(problem, start, teacher, generator, options):
    """Unit vectors [runs, d]: uniform on the sphere, or with the given overlaps and otherwise uniform."""
    w = torch.randn(problem.runs, problem.d, generator=generator, **options)
    if start is not None:
        m = torch.as_tensor(start_overlaps(start, problem.runs, problem.directions), **options)
        w = w - (w @ teacher) @ teacher.T
        w = w / torch.linalg.vector_norm(w, dim=1, keepdim=True)
        return m @ teacher.T + (1 - m.square().sum(1, keepdim=True)).clamp(min=0).sqrt() * w
    return w / torch.linalg.vector_norm(w, dim=1, keepdim=True)


@devices.one_thread()
def spiked(
    target,
    d,
    n,
    theta,
    steps,
    *,
    alignment=1.0,
    dynamics="normalized",
    precondition=False,
    loss="square",
    student=None,
    angle=0.1,
    runs=16,
    seed=0,
    device=None,
    records=64,
):
    r"""Gradient flow of one neuron on n fixed samples of a spiked law, the empirical version of `flow.spiked`.

    With h_i = ⟨w, x_i⟩, S² = Σ_i h_i²/n and e = (y − σ)σ' (loss="correlation": yσ') the two dynamics are

        "spherical"    dw/dt = (I − wwᵀ) (1/n) Σ_i e(h_i) x_i,
        "normalized"   dw/dt = (S/n) Σ_i (e(h_i/S) − c h_i/S) x_i,     c = (1/n) Σ_i e(h_i/S) h_i/S,

    the second for a neuron that sees h/S, as behind a batch normalisation. precondition=True multiplies it by the
    inverse of the sample covariance (n > d). Euler steps of the flow: each turns w by at most `angle` (radians) and
    never exceeds half the inverse of the largest curvature, so that a step advances every run by its own time.

    target     as in `online_sgd`, of one direction; student: default the target's own link
    d, n       dimension and number of samples; theta, alignment: see `data.spiked`
    steps      number of Euler steps, of which about `records` are recorded
    Starts are uniform on the sphere, with the sign for which u ≥ 0. Returns a `results.SpikedResult`.
    """
    problem, n = prepare_batch(target, d, n, steps, 1.0, runs, student, loss)
    if problem.directions > 1:
        raise ValueError(f"target is {problem.target.name!r} with {problem.directions} directions; it must have one")
    check_dynamics(dynamics, precondition)
    if precondition and n <= problem.d:
        raise ValueError(f"n is {n}; with precondition=True it must exceed d = {problem.d}")
    angle, records = checks.positive("angle", angle), checks.whole_number("records", records, least=2)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    kept = np.unique(np.round(np.linspace(0, problem.steps, records)).astype(int))
    group, parts = max(1, BATCH // (n * problem.d)), []
    with bar(label=f"{dynamics} flow, d={problem.d}", total=problem.runs * problem.steps) as progress:
        for first in range(0, problem.runs, group):
            size = min(group, problem.runs - first)
            law = {"alignment": alignment, "runs": size, "device": place, "dtype": torch.float32}
            sample = data.spiked(n, problem.d, theta, seed=1_000_003 * first + seed, **law)
            parts.append(_spiked_group(problem, sample, dynamics, precondition, angle, kept, generator, progress))
    arrays = [torch.cat(part) for part in zip(*parts, strict=True)]
    return results.finish_spiked(*arrays, problem.d, sample.theta, float(alignment))


def _spiked_group(problem, sample, dynamics, precondition, angle, kept, generator, progress):
    """Times, overlaps with teacher and spike, correlations [runs, T] and the mask [runs] of one group of runs."""
    x, mu, beta, theta = sample.x, sample.mu, sample.beta, sample.theta
    runs, n, d = x.shape
    noise = torch.randn(runs, n, generator=generator, device=x.device) if problem.target.is_noisy else None
    y = problem.target.labels(sample.z, noise)
    w = torch.nn.functional.normalize(torch.randn(runs, d, generator=generator, device=x.device), dim=1)
    sigma_beta = beta + theta * (mu @ beta) * mu
    w = w * torch.where(w @ sigma_beta < 0, -1.0, 1.0)[:, None]
    # In the coordinates v = Lᵀw, with the sample covariance LLᵀ, the preconditioned flow is the plain one.
    factor = torch.linalg.cholesky(x.mT @ x / n) if precondition else None
    if precondition:
        x = torch.linalg.solve_triangular(factor.mT, x, upper=True, left=False).contiguous()
        w = torch.nn.functional.normalize((w[:, None] @ factor)[:, 0], dim=1)
    probe = torch.linspace(-6, 6, 601, device=x.device)
    curvature = (torch.softmax(-(probe**2) / 2, 0) * problem.student.derivative(probe) ** 2).sum()
    longest = 0.5 / (curvature * (1 if precondition else (1 + theta) * (1 + math.sqrt(d / n)) ** 2))

    def measure(w):
        if precondition:
            w = torch.linalg.solve_triangular(factor.mT, w[..., None], upper=True)[..., 0]
        squared, spike = w.square().sum(1), w @ mu
        correlation = (w @ sigma_beta) / ((squared + theta * spike.square()) * sample.kappa).sqrt()
        return torch.stack([w @ beta / squared.sqrt(), spike / squared.sqrt(), correlation])

    clock, diverged = w.new_zeros(runs), torch.zeros(runs, dtype=torch.bool, device=w.device)
    times, rows = [clock], [measure(w)]
    for step in range(1, problem.steps + 1):
        h = (x @ w[..., None])[..., 0]
        size = h.square().mean(1, keepdim=True).sqrt() if dynamics == "normalized" else torch.ones_like(h[:, :1])
        h = h / size
        e = problem.gradient_factor(y, h, None)
        if dynamics == "normalized":
            e = e - (e * h).mean(1, keepdim=True) * h
        force = size / n * (e[:, None] @ x)[:, 0]
        force = force - (force * w).sum(1, keepdim=True) * w
        speed = torch.linalg.vector_norm(force, dim=1)
        diverged = diverged | ~torch.isfinite(speed)
        advance = torch.where(diverged, 0.0, torch.minimum(angle / speed, longest))
        w = torch.nn.functional.normalize(torch.where(diverged[:, None], w, w + advance[:, None] * force), dim=1)
        clock = clock + advance
        if step in kept:
            times.append(clock)
            rows.append(measure(w))
        progress.update(runs)
    teacher, spike, correlation = torch.stack(rows, dim=-1)
    return torch.stack(times, 1), teacher, spike, correlation, diverged


def langevin(
    x,
    y,
    width,
    steps,
    lr,
    *,
    temperature,
    weight_decay,
    scale=1.0,
    activation="tanh",
    loss="logistic",
    start=1.0,
    seed=0,
    device=None,
    records=16,
):
    r"""Noisy gradient descent of a two-layer network in the mean-field scaling: mean-field Langevin dynamics.

    The network is f(x) = (R/N) Σ_j σ(⟨w_j, x⟩ + b_j), R = scale, N = width. A particle X_j = (w_j, b_j) moves by

        X_j ← X_j − η [ (1/n) Σ_i ℓ'(f(x_i), y_i) R σ'(h_ij) (x_i, 1) + λ₁ X_j ] + √(2ηλ) ξ_j,      ξ_j ~ N(0, I),

    with η = lr, λ = temperature ≥ 0, λ₁ = weight_decay ≥ 0, and ℓ = log(1 + e^{−yf}) (loss="logistic", y = ±1) or
    ½(y − f)² (loss="square"). For N → ∞, η → 0 the law of a particle follows the Wasserstein gradient flow of
    (1/n) Σ_i ℓ + (λ₁/2) E|X|² + λ E log(density). Without data it is an Ornstein–Uhlenbeck process, N(0, λ/λ₁) at rest.

    x, y    inputs [n, d] and labels [n], or with a leading runs axis: a network for each run, all at once
    start   standard deviation ≥ 0 of the particles at the start
    Training is in single precision. Returns a `results.LangevinResult`, whose network predicts by `network(x)`.
    """
    place = devices.resolve(device)
    x, y = (torch.as_tensor(v).to(device=place, dtype=torch.float32) for v in (x, y))
    if x.ndim not in (2, 3) or y.shape != x.shape[:-1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; they must be [n, d] and [n], "
            "both with a leading runs axis or both without"
        )
    width, steps = checks.whole_number("width", width, least=1), checks.whole_number("steps", steps, least=1)
    eta, scale = checks.positive("lr", lr), checks.positive("scale", scale)
    heat, decay = checks.not_negative("temperature", temperature), checks.not_negative("weight_decay", weight_decay)
    checks.one_of("loss", loss, ("logistic", "square"))
    sigma, start = nets.resolve_activation(activation), checks.not_negative("start", start)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    n, d, lead = x.shape[-2], x.shape[-1], x.shape[:-2]
    inputs = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
    shape = (*lead, width, d + 1)
    particles = start * torch.randn(shape, generator=generator, device=place)
    kept = np.unique(np.round(np.linspace(0, steps, checks.whole_number("records", records, least=2))).astype(int))
    losses, diverged = [], torch.zeros(lead, dtype=torch.bool, device=place)
    with devices.one_thread(), bar(range(steps + 1), f"Langevin, d={d}") as progress:
        for step in progress:
            h = inputs @ particles.mT
            values = sigma.torch(h)
            margin = values.mean(-1) * scale
            if loss == "logistic":
                value, slope = torch.nn.functional.softplus(-y * margin), -y * torch.sigmoid(-y * margin)
            else:
                value, slope = (y - margin).square() / 2, margin - y
            if step in kept:
                losses.append(value.mean(-1))
            if step == steps:
                break
            # The slope of tanh follows from its value, which is most of the work.
            bend = 1 - values.square() if activation == "tanh" else sigma.derivative(h)
            gradient = (slope[..., None] * bend).mT @ inputs * (scale / n) + decay * particles
            kick = torch.randn(shape, generator=generator, device=place) * math.sqrt(2 * eta * heat) if heat else 0.0
            moved = particles - eta * gradient + kick
            diverged = diverged | ~torch.isfinite(moved.square().sum((-2, -1)))
            particles = torch.where(diverged[..., None, None], particles, moved)
    network = nets.TwoLayer(
        activation=sigma,
        weights=particles[..., :-1].to(torch.float64),
        biases=particles[..., -1].to(torch.float64),
        outputs=torch.full((*lead, width), scale / math.sqrt(width), device=place, dtype=torch.float64),
    )
    return results.finish_langevin(network, kept, torch.stack(losses, dim=-1), diverged, eta)


# Inputs or activations of one step in `train_additive` that stay in a core's own cache (numbers): on the CPU, networks
# train in groups of at most so many.
CACHED = 1 << 17
# Below so many multiplications in a step, several threads cost more than they save.
SMALL_STEP = 1 << 24


def train_additive(
    network, target, samples, *, lr, schedule=None, batch=1, share=1, transform=None, directions=None, seed=0
):
    r"""First phase of layer-wise training: normalised online SGD of all neurons on the correlation loss.

    A step takes `batch` fresh samples (x_i, y_i), the same for all neurons of a network. With s_j = sign a_j and
    u_ij = ⟨w_j, x_i⟩,

        w_j ← normalise(w_j + γ Σ_i T(y_i) s_j σ'(u_ij + b_j) (x_i − u_ij w_j)).

    The gradients of a batch are added, not averaged: γ is the step per sample, and drift and noise per sample do not
    depend on the batch as long as one step moves little. Neurons do not interact, except through their samples. Second
    phase: ridge regression on the features, `kernels.random_features(x, y, result.networks[-1])`.

    network     a `nets.TwoLayer`, of one or `runs` networks; its rows are normalised first. Biases and output weights
                stay as they are, and of the latter only the signs matter
    target      as in `online_sgd`, for example `targets.additive("h3", 16)`, M directions
    samples     when to keep the network: a number of samples, or several in increasing order
    lr          γ > 0, one number or an array [runs]
    schedule    a function of the number of samples seen (NumPy array [T] to [T], values ≥ 0) that multiplies γ
    share       so many consecutive runs see the same samples, for example to compare step sizes on equal terms; it must
                divide the number of runs
    transform   T, a vectorised function of the label; None: the label itself
    directions  unit vectors θ_m as columns of an array [d, M]; default: the first M basis vectors

    Runs (up to `share`) are independent and train at once, in single precision; on the CPU in groups that fit into its
    cache. Returns a `results.AdditiveResult`.
    """
    moments = _moments(samples)
    place, d, lead = network.weights.device, network.d, network.weights.shape[:-2]
    runs, options = max(1, lead.numel()), {"device": place, "dtype": torch.float32}
    share, batch = checks.whole_number("share", share, least=1), checks.whole_number("batch", batch, least=1)
    if runs % share:
        raise ValueError(f"share is {share}; it must divide the number of runs, {runs}")
    problem = prepare(target, d, moments[-1], 1.0, 1, "linear", "correlation", 0.0, 2, None)
    rule = _LayerwiseRule(
        problem=problem,
        activation=network.activation,
        label=None if transform is None else functions.vectorised(transform, "transform"),
        teacher=_given_directions(directions, d, problem.directions, options),
        along_axes=directions is None,
        batch=batch,
        share=share,
        moments=moments,
        schedule=schedule,
        generator=devices.generator(place, checks.whole_number("seed", seed, least=0)),
    )
    # Step and sign multiply whole rows: they are applied after the sum over the batch. Networks that share samples are
    # one wide network for the trainer.
    gamma = _step_sizes(lr, lead, options) * network.outputs.sign().to(torch.float32)
    parts = [network.weights.to(torch.float32), network.biases.to(torch.float32), gamma]
    parts = [part.unflatten(0, (-1, share)).flatten(1, 2) for part in parts] if lead else parts
    group = CACHED // (batch * max(share * network.width, d)) if place.type == "cpu" else runs // share
    group = max(1, min(runs // share, group))
    small = group * batch * share * network.width * d < SMALL_STEP
    with (
        devices.one_thread() if small else nullcontext(),
        bar(label=f"additive, d={d}", total=int(moments[-1]) * runs) as progress,
    ):
        groups = zip(*(part.split(group) for part in parts), strict=True) if lead else [parts]
        trained = [rule.train(*pieces, progress) for pieces in groups]
    kept, best, diverged = (torch.cat(pieces) if lead else pieces[0] for pieces in zip(*trained, strict=True))
    overlaps = devices.to_host(rule.overlaps(kept))
    networks = tuple(network.with_weights(w) for w in kept.to(network.weights.dtype).unbind(dim=len(lead)))
    return results.finish_additive(moments, networks, overlaps, rule.seen(), devices.to_host(best), diverged, d)


@dataclass(frozen=True)
class _LayerwiseRule:
    """The steps of `train_additive` for a group of networks."""

    problem: Problem
    activation: functions.Vectorised
    label: functions.Vectorised | None
    teacher: torch.Tensor
    along_axes: bool
    batch: int
    share: int
    moments: np.ndarray
    schedule: Callable | None
    generator: torch.Generator | None

    def overlaps(self, vectors):
        """Overlaps [..., M] of vectors [..., d] with the tasks."""
        return vectors[..., : self.problem.directions] if self.along_axes else vectors @ self.teacher

    def draw(self, shape):
        """Fresh inputs x [*shape, d] and their labels [*shape], transformed."""
        x = torch.randn(*shape, self.problem.d, generator=self.generator, device=self.teacher.device)
        z = self.overlaps(x)
        xi = torch.randn(*shape, generator=self.generator, device=x.device) if self.problem.target.is_noisy else None
        y = self.problem.target.labels(z[..., 0] if self.problem.directions == 1 else z, xi)
        return x, y if self.label is None else self.label.torch(y)

    def apart(self, values):
        """Rows [*lead, share · N, …] of networks that share samples as single networks [*lead · share, N, …]."""
        return values.unflatten(1, (self.share, -1)).flatten(0, 1) if self.share > 1 else values

    def slope(self, h):
        """σ'(h) for h [..., share · N], with neuron j of every network in place j of its activation."""
        return self.activation.derivative(h.unflatten(-1, (self.share, -1))).flatten(-2)

    def seen(self):
        """Samples seen after each step: full batches, with a smaller one before each moment where it must be."""
        ends = [np.append(np.arange(a + self.batch, b, self.batch), b) for a, b in pairwise([0, *self.moments])]
        return np.concatenate([[0], *ends])

    def factors(self):
        """What multiplies γ in each step: a list [T]."""
        t = self.seen()[:-1]
        values = np.ones(len(t)) if self.schedule is None else np.asarray(self.schedule(t), dtype=float)
        if values.shape != t.shape or not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(
                f"schedule returns shape {values.shape} for an array of shape {t.shape}, least value "
                f"{values.min(initial=0):g}; it must keep the shape and return finite numbers ≥ 0"
            )
        return values.tolist()

    def train(self, w, b, gamma, progress):
        """Weights [..., k, N, d] at the moments, best overlaps [..., T + 1, M] and the mask of runs that diverged."""
        lead = w.shape[:-2]
        w = torch.nn.functional.normalize(w, dim=-1)
        finite = torch.ones_like(b, dtype=torch.bool)
        kept, best = [], [self.apart(self.overlaps(w)).abs().amax(-2)]
        for factor, (before, after) in zip(self.factors(), pairwise(self.seen().tolist()), strict=True):
            x, y = self.draw((*lead, after - before))
            u = x @ w.mT
            g = self.slope(u + b[..., None, :]) * y[..., None]
            new = w + factor * gamma[..., None] * (g.mT @ x - (g * u).sum(-2)[..., None] * w)
            norm = torch.linalg.vector_norm(new, dim=-1)
            finite = finite & torch.isfinite(norm)
            w = torch.where(finite[..., None], new / norm[..., None], w)
            best.append(self.apart(self.overlaps(w)).abs().amax(-2))
            if after in self.moments:
                kept.append(self.apart(w))
            progress.update((after - before) * max(1, lead.numel()) * self.share)
        return torch.stack(kept, dim=len(lead)), torch.stack(best, dim=len(lead)), ~self.apart(finite).all(-1)


def _moments(samples):
    """The numbers of samples at which a network is kept, as an increasing array."""
    moments = np.atleast_1d(samples)
    if moments.ndim != 1 or (np.diff(moments) <= 0).any():
        raise ValueError(f"samples is {samples!r}; it must be one whole number or several in increasing order")
    return np.array([checks.whole_number("samples", moment, least=1) for moment in moments])


def _step_sizes(lr, lead, options):
    """Step sizes as a tensor that goes with [*lead, N]: [] for one number, [runs, 1] for one per run."""
    if np.ndim(lr) == 0:
        return torch.tensor(checks.positive("lr", lr), **options)
    values = [checks.positive("lr", value) for value in np.asarray(lr, dtype=float).ravel()]
    if np.shape(lr) != tuple(lead):
        raise ValueError(f"lr has shape {np.shape(lr)}; it must be one number, or have shape {list(lead)}")
    return torch.tensor(values, **options)[:, None]


def _given_directions(directions, d, r, options):
    """The columns θ_m [d, r] of the target: the first basis vectors, or the given ones, checked to be unit vectors."""
    if directions is None:
        return torch.eye(d, **options)[:, :r]
    given = torch.as_tensor(directions).to(**options)
    if tuple(given.shape) != (d, r):
        raise ValueError(f"directions has shape {tuple(given.shape)}; it must have shape [{d}, {r}], one column a task")
    if not given.is_meta and not torch.allclose(given.norm(dim=0), torch.ones(r, **options), atol=1e-4):
        raise ValueError("directions has columns that are not unit vectors; all must have length 1")
    return given


# Numbers that the largest array of one group of runs may have in `train_three_layer`: a quarter of a gigabyte.
LAYER_BLOCK = 1 << 26
SCENARIOS = ("I", "II", "III")


def train_three_layer(
    network, target, n, *, scenario="III", rank=None, steps=(20, 6, 6), validation=0.2, test=4000, seed=0
):
    r"""Train a three-layer network layer by layer on n samples of a tree target, all runs at once.

        f(x) = ⟨w₃, σ₂(W₂ σ₁(W₁ x + b₁) + b₂)⟩ + c

    scenario "I"    W₁ and W₂ stay as drawn; only the read-out (w₃, c) is fitted
             "II"   W₁ is trained and frozen; W₂ stays as drawn; read-out
             "III"  W₁ is trained and frozen, then W₂, then the read-out
             or several of them, e.g. ("I", "II", "III"): they see the same samples, and the first layer is trained once

    First layer. With t the label without its mean and linear part and V [d, rank] orthonormal,

        V ← orth((1/n) Σ_i t_i (x_i x_iᵀ − I) V)                        steps[0] times, then
        V ← orth(V + (JᵀJ/n + λ)⁻¹ Jᵀ(y − f₁)/n),  J = ∂f₁/∂V           steps[1] times,

    where f₁ is a linear head on φ = σ₁(W₁x + b₁)/√p₁, refitted before each step, and W₁ = R Vᵀ with R as drawn. The
    neurons stay random combinations of `rank` learned directions.

    Second layer. W₂ = C Uᵀ, with C as drawn. U starts with one preconditioned gradient step from zero, U = (ΦᵀΦ/n +
    λ)⁻¹Φᵀy/n; for r > 1 the lowest eigenvectors of (1/n) Σ y tanh(u) φφᵀ in whitened features
    join it (this is for saturating links). Then steps[2]
    preconditioned steps on U with the read-out refitted before each. Of all steps the one with the least error on the
    held-out rows is kept.

    network     a `nets.ThreeLayer`; target  a `targets.Tree` with the same runs axis, or none
    n           number of samples in all, of which the fraction `validation` is held out: ridge parameters and the
                number of steps are chosen there, never on the test sample
    rank        number of learned first-layer directions; default: those of the target, r·m
    test        number of fresh samples for test errors and overlaps
    Returns a `results.ThreeLayerResult`, or a dict of them by scenario. What a frozen layer computes is computed once.
    """
    several = not isinstance(scenario, str)
    names = tuple(checks.one_of("scenario", s, SCENARIOS) for s in (scenario if several else (scenario,)))
    n, test = checks.whole_number("n", n, least=5), checks.whole_number("test", test, least=2)
    held = round(n * checks.fraction("validation", validation))
    if not 0 < held < n - 1:
        raise ValueError(f"validation is {validation!r}; of n = {n} samples it must leave some on both sides")
    if len(steps) != 3:
        raise ValueError(f"steps is {steps!r}; it must be three whole numbers ≥ 0")
    steps = [checks.whole_number("steps", s, least=0) for s in steps]
    if network.d != target.d:
        raise ValueError(f"network takes inputs of dimension {network.d}; the target has d = {target.d}")
    lead = network.first.shape[:-2]
    if lead != target.directions.shape[:-2] or network.first.device != target.directions.device:
        raise ValueError(
            f"network has runs axis {tuple(lead)} on {network.first.device}, the target "
            f"{tuple(target.directions.shape[:-2])} on {target.directions.device}; they must agree"
        )
    rank = target.r * target.width if rank is None else checks.whole_number("rank", rank, least=1)
    if rank > min(network.d, network.widths[0]):
        raise ValueError(f"rank is {rank}; it must be at most d = {network.d} and the width {network.widths[0]}")
    generator = devices.generator(network.first.device, checks.whole_number("seed", seed, least=0))
    one = not lead
    students, trees = (_with_runs(network), _with_runs(target)) if one else (network, target)
    runs = students.first.shape[0]
    widest = max(network.d * rank, network.widths[0] * target.r, sum(network.widths))
    group = max(1, LAYER_BLOCK // ((n + test) * widest))
    parts = {name: [] for name in names}
    passes = (steps[1] + 1) * ("II" in names or "III" in names) + (steps[2] + 1) * ("III" in names) + len(names)
    with bar(label=f"three layers, d={network.d}, n={n}", total=passes * -(-runs // group)) as progress:
        for part, tree in zip(_run_groups(students, group), trees.split(group), strict=True):
            data = _tree_data(tree, n, n - held, test, generator, part.first.dtype)
            for name, result in _layers(part, data, tree.r, names, rank, steps, progress.update):
                parts[name].append(result)
    found = {name: _joined(name, parts[name], network.d, n, one) for name in names}
    return found if several else found[scenario]


def _layers(network, data, r, names, rank, steps, tick):
    """Yield (scenario, (network, errors, overlaps, shallow, branches)) for one group of runs."""
    trained = None
    for name in names:
        if name == "I":
            layer = layerwise.untrained_first_layer(network, data, rank)
        else:
            if trained is None:
                trained = layerwise.train_first_layer(network, data, rank, steps[0], steps[1], tick)
            layer = trained
        student = replace(network, first=layer.weights)
        if name == "III":
            second, biases, features, branches = layerwise.train_second_layer(
                student, data, layer.features, r, steps[2], tick
            )
            student = replace(student, second=second, second_biases=biases)
        else:
            inputs = layer.features @ network.second.mT + network.second_biases[:, None]
            branches = layerwise.explained(data.h[:, data.n :], inputs[:, data.n :, :r])[:, None]
            features = network.activations[1].torch(inputs) / math.sqrt(network.widths[1])
        head = layerwise.fit(features, data.y, data.cut, data.n)
        errors = data.test_error(head(features))
        level = head.level - (head.w * head.mean).sum(-1)
        tick()
        yield name, (replace(student, outputs=head.w, intercept=level), errors, layer.overlaps, layer.shallow, branches)


def _tree_data(tree, n, cut, test, generator, dtype):
    """Fresh inputs for training, validation and test, with labels and h*."""
    runs, _, d = tree.directions.shape
    x = torch.randn(runs, n + test, d, generator=generator, device=tree.directions.device, dtype=dtype)
    h = tree.second(x)
    return layerwise.Data(x, tree.link.torch(h).sum(-1), h, tree.directions, cut, n)


_NETWORK_TENSORS = ("first", "first_biases", "second", "second_biases", "outputs", "intercept")


def _with_runs(thing):
    """A network or tree without a runs axis, as one run."""
    names = _NETWORK_TENSORS if hasattr(thing, "first_biases") else ("directions", "coefficients")
    return replace(thing, **{name: getattr(thing, name)[None] for name in names})


def _run_groups(network, size):
    """The networks of at most `size` runs each."""
    parts = zip(*(getattr(network, name).split(size) for name in _NETWORK_TENSORS), strict=True)
    return [replace(network, **dict(zip(_NETWORK_TENSORS, part, strict=True))) for part in parts]


def _joined(name, parts, d, n, one):
    """One `ThreeLayerResult` from those of all groups of runs; a warning about runs that diverged."""
    networks, *rest = zip(*parts, strict=True)
    tensors = {key: torch.cat([getattr(net, key) for net in networks]) for key in _NETWORK_TENSORS}
    errors, overlaps, shallow, branches = (torch.cat(values) for values in rest)
    diverged = ~torch.isfinite(errors)
    errors = torch.where(diverged, torch.inf, errors)
    if one:
        tensors = {key: value[0] for key, value in tensors.items()}
        errors, overlaps, shallow, branches, diverged = (v[0] for v in (errors, overlaps, shallow, branches, diverged))
    network = replace(networks[0], **tensors)
    arrays = [devices.to_host(v) for v in (errors, overlaps, shallow, branches, diverged)]
    results.warn_of_infinite_errors(arrays[-1], d, n)
    return results.ThreeLayerResult(name, network, *arrays, d, n)
