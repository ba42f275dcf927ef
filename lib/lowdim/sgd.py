"""Gradient trainers in d dimensions. All repetitions train at once, as one tensor program with a leading runs axis."""

import math
from dataclasses import replace

import numpy as np
import torch

from lowdim import checks, compiled, layerwise, results
from lowdim import device as devices
from lowdim.problem import prepare, prepare_batch, start_overlaps
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
    moments = np.atleast_1d(samples)
    if moments.ndim != 1 or (np.diff(moments) <= 0).any():
        raise ValueError(f"samples is {samples!r}; it must be one whole number or several in increasing order")
    moments = np.array([checks.whole_number("samples", moment, least=1) for moment in moments])
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
