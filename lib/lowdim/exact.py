r"""The exact order-parameter chain of online SGD: any dimension d, at a cost per step that does not depend on d.

For isotropic Gaussian inputs, one-sample spherical SGD (see `problem.Problem`) projects *exactly* onto the overlaps
m = (⟨w, w*_1⟩, …, ⟨w, w*_r⟩). Only three numbers of the fresh sample matter: its projections z ~ N(0, I_r) on the
teacher, its component u ~ N(0, 1) along the part of w orthogonal to the teacher, and the squared length of the rest,
R ~ χ²_{d−r−1}. Then h = ⟨m, z⟩ + √(1 − |m|²) u, |x|² = |z|² + u² + R, and

    m ← (m + γ g (z − h m)) / √(1 + γ² g² (|x|² − h²)).

No approximation is made: the law of the whole trajectory of m equals that of d-dimensional SGD.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from lowdim import checks, compiled, results
from lowdim import device as devices
from lowdim.data import overlap
from lowdim.problem import prepare, prepare_batch, start_overlaps, start_tensor
from lowdim.progress import bar

# Random numbers drawn at once: large enough to amortise Python, small enough to stay in the cache (8 MB).
BLOCK = 1 << 18


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
    """Simulate `runs` independent runs of online SGD in dimension `d` exactly, through their overlaps alone.

    Same arguments, same law and same result type as `sgd.online_sgd`. On the CPU, students of the families in `links`
    (and every polynomial) run in compiled code; any other student, and every other device, runs through torch. With
    device=None compiled code is preferred even where there is a GPU: a chain of tiny steps is faster there.
    """
    problem = prepare(target, d, steps, lr, runs, student, loss, lookahead, records, stop_at, variant)
    can_compile = compiled.is_compilable(problem.link)
    place = devices.resolve(device, prefer="cpu" if can_compile else None)
    seed = checks.whole_number("seed", seed, least=0)
    simulate = _compiled if place.type == "cpu" and can_compile else _tensor_program
    return simulate(problem, start, seed, place)


@devices.one_thread()
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
    r"""Full-batch gradient descent with the exact law of `sgd.full_batch`, but without its n × d matrices.

    Descent asks its Gaussian batch X ∈ R^{n×d} for a few products only: X w and Xᵀ r, twice a step. Given the earlier
    answers, a new one is Gaussian with a known mean: for orthonormal queries u_k (answers X u_k) and v_l (answers
    Xᵀ v_l), a new unit vector u ⟂ u_1, u_2, … has

        X u = Σ_l v_l ⟨Xᵀ v_l, u⟩ + (I − Σ_l v_l v_lᵀ) ξ,     ξ ~ N(0, I_n),

    and the same holds with both sides exchanged. Memory and time are of order runs · (n + d) · steps, so that d = 10⁶
    is within reach. Same arguments and result as `sgd.full_batch`.
    """
    problem, n = prepare_batch(target, d, n, steps, lr, runs, student, loss)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    options = {"device": place, "dtype": torch.float64}
    r = problem.directions
    teacher = torch.eye(problem.d, r, **options)
    m = start_tensor(problem, start, generator, options)
    w = torch.randn(problem.runs, problem.d - r, generator=generator, **options)
    w = w / torch.linalg.vector_norm(w, dim=1, keepdim=True) * (1 - m.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
    w = torch.cat([m, w], dim=1)
    recorder = results.BatchRecorder(w, teacher)
    batch = None
    for _ in bar(range(problem.steps), "full batch, exactly"):
        if batch is None or not reuse:
            batch = _Batch(problem.runs, n, problem.d, generator, options)
            z = torch.stack([batch.times(column.expand(problem.runs, -1)) for column in teacher.T], dim=-1)
            xi = torch.randn(problem.runs, n, generator=generator, **options) if problem.target.is_noisy else None
            y = problem.target.labels(z[..., 0] if r == 1 else z, xi)
        g = problem.gradient_factor(y, batch.times(w), None)
        w = recorder.step(w, w + problem.lr / n * batch.transposed_times(g))
    return results.finish_batch([recorder], problem.d, n, problem.lr)


class _Batch:
    """Gaussian matrices X [runs, n, d] that exist only through the products that were asked for."""

    def __init__(self, runs, n, d, generator, options):
        self.generator, self.options = generator, options
        # Orthonormal queries u [runs, k, d] with answers X u [runs, k, n]; v [runs, l, n] with Xᵀ v [runs, l, d].
        self.u, self.xu = torch.empty(runs, 0, d, **options), torch.empty(runs, 0, n, **options)
        self.v, self.xv = torch.empty(runs, 0, n, **options), torch.empty(runs, 0, d, **options)

    def times(self, w):
        """X w [runs, n] for w [runs, d]."""
        coefficients, u, length = _split(w, self.u)
        xu = _combine(_inner(self.xv, u), self.v) + self._fresh(self.v)
        answer = _combine(coefficients, self.xu) + length * xu
        self.u, self.xu = torch.cat([self.u, u[:, None]], 1), torch.cat([self.xu, xu[:, None]], 1)
        return answer

    def transposed_times(self, r):
        """Xᵀ r [runs, d] for r [runs, n]."""
        coefficients, v, length = _split(r, self.v)
        xv = _combine(_inner(self.xu, v), self.u) + self._fresh(self.u)
        answer = _combine(coefficients, self.xv) + length * xv
        self.v, self.xv = torch.cat([self.v, v[:, None]], 1), torch.cat([self.xv, xv[:, None]], 1)
        return answer

    def _fresh(self, basis):
        """Standard Gaussian vectors [runs, m], projected on the complement of the rows of `basis` [runs, k, m]."""
        g = torch.randn(basis.shape[0], basis.shape[2], generator=self.generator, **self.options)
        return g - _combine(_inner(basis, g), basis)


def _inner(rows, vector):
    """Inner products [runs, k] of rows [runs, k, m] with a vector [runs, m]."""
    return (rows @ vector[..., None])[..., 0]


def _combine(coefficients, rows):
    """Σ_k c_k row_k [runs, m] for c [runs, k] and rows [runs, k, m]."""
    return (coefficients[:, None, :] @ rows)[:, 0]


def _split(vector, basis):
    """Coefficients of `vector` in the orthonormal rows of `basis`, the unit vector of its rest or 0, and its length."""
    coefficients = _inner(basis, vector)
    rest = vector - _combine(coefficients, basis)
    # Once is not enough: rounding leaves a part along the basis, which a second projection removes.
    again = _inner(basis, rest)
    rest = rest - _combine(again, basis)
    length = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
    size = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    new = length > 1e-12 * size
    return coefficients + again, torch.where(new, rest / length.clamp(min=1e-300), 0.0), torch.where(new, length, 0.0)


# ---------------------------------------------------------------------------------------------- compiled, on the CPU


def _compiled(problem, start, seed, place):
    """The chain in compiled code.

    Drawing random numbers is the larger part of the work, so that χ² and Gaussian numbers are drawn in two threads,
    with a generator each: results do not depend on the number of cores.
    """
    runs, r = problem.runs, problem.directions
    streams = [np.random.Generator(np.random.SFC64(s)) for s in np.random.SeedSequence(seed).spawn(4)]
    m = start_overlaps(start, runs, r) if start is not None else uniform_start(problem, streams[3])
    rule = compiled.make_rule(problem)
    log = compiled.make_log(m, results.record_grid(problem.steps, problem.records), results.LEVELS)
    labels_inside = compiled.is_compilable(problem.target.link) and not problem.target.is_noisy
    link = compiled.encode(problem.target.link) if labels_inside else compiled.NO_LINK
    active = np.flatnonzero(np.abs(m[:, 0]) < rule.stop)
    seen = 0
    with ThreadPoolExecutor(1) as pool, bar(label="exact chain", total=problem.steps) as progress:
        while seen < problem.steps and len(active):
            block = int(min(problem.steps - seen, max(1, BLOCK // len(active))))
            rest = pool.submit(chi_square, streams[1], problem.d - r - 1, (len(active), block))
            gauss = streams[0].standard_normal((len(active), block, r + 1))
            y = compiled.NO_LABELS if labels_inside else _labels(problem, gauss[..., :r], streams[2])
            compiled.advance_chains(m, active, gauss, rest.result(), y, link, seen, rule, log)
            seen += block
            active = active[(np.abs(m[active, 0]) < rule.stop) & ~log.diverged[active]]
            progress.update(block)
    log.overlaps[:, log.samples > seen] = m[:, None, :]
    return results.finish(log.samples, log.overlaps, log.passages, log.diverged, problem.d, problem.lr)


def chi_square(stream, degrees, shape):
    """Draw χ² variables with `degrees` ≥ 0 degrees of freedom (zero degrees: the constant 0)."""
    return 2.0 * stream.standard_gamma(degrees / 2, shape) if degrees else np.zeros(shape)


def uniform_start(problem, stream):
    """Overlaps [runs, r] of a uniformly random point of the sphere in R^d: z/√(|z|² + χ²_{d−r})."""
    z = stream.standard_normal((problem.runs, problem.directions))
    rest = chi_square(stream, problem.d - problem.directions, problem.runs)
    return z / np.sqrt(np.sum(z**2, axis=1) + rest)[:, None]


def _labels(problem, z, stream):
    """Labels [runs, block] of the projections z [runs, block, r]."""
    h = z[..., 0] if problem.directions == 1 else z
    xi = stream.standard_normal(h.shape[:2]) if problem.target.is_noisy else None
    return np.ascontiguousarray(problem.target.labels(h, xi))


# ------------------------------------------------------------------------------- any student, any device: through torch


def _tensor_program(problem, start, seed, place):
    """The chain as a tensor program over the runs axis: one Python step per sample, no host reads inside the loop."""
    runs, r, d = problem.runs, problem.directions, problem.d
    generator = devices.generator(place, seed)
    options = {"device": place, "dtype": torch.float64}
    m = start_tensor(problem, start, generator, options)
    recorder = results.Recorder(m, problem.steps, problem.records)
    state = results.RunState(m[:, 0], problem.stop_at)
    shape_of_rest = torch.full((), (d - r - 1) / 2, **options)
    with bar(label="exact chain", total=problem.steps) as progress:
        for block in recorder.blocks(BLOCK // (runs * (r + 2))):
            gauss = torch.randn(block, runs, r + 1, generator=generator, **options)
            rest = torch.zeros(block, runs, **options)
            if d > r + 1:
                rest = 2 * torch._standard_gamma(shape_of_rest.expand(block, runs), generator=generator)
            z, u = gauss[..., :r], gauss[..., r]
            xi = torch.randn(block, runs, generator=generator, **options) if problem.target.is_noisy else None
            y = problem.target.labels(z[..., 0] if r == 1 else z, xi)
            squared_x = gauss.square().sum(-1) + rest
            history = torch.empty(block, runs, r, **options)
            for t in range(block):
                h = (m * z[t]).sum(-1) + (1 - m.square().sum(-1)).clamp(min=0).sqrt() * u[t]
                step = problem.lr * problem.gradient_factor(y[t], h, squared_x[t])
                norm = (1 + step.square() * (squared_x[t] - h.square()).clamp(min=0)).sqrt()
                new = ((m + step[:, None] * (z[t] - h[:, None] * m)) / norm[:, None]).clamp(-1, 1)
                m = torch.where(state.moving(new.sum(-1) + norm)[:, None], new, m)
                state.note(m[:, 0])
                history[t] = m
            recorder.add(history)
            progress.update(block)
    return recorder.finish(state.diverged, d, problem.lr)


@devices.one_thread()
def spiked_gradient(target, d, n, theta, *, alignment=1.0, whiten=False, student=None, runs=16, seed=0, device=None):
    r"""The gradient of one neuron at a random unit vector w, over n samples of N(0, Σ), Σ = I + θμμᵀ, in its exact law.

        G = (1/n) Σ_i y_i σ'(⟨w, x_i⟩) x_i,      y = f(⟨x, β⟩/√κ),   κ = 1 + θ⟨μ, β⟩²       (correlation loss)

    Outside the span of μ, β and w the samples are independent of the factors c_i = y_iσ'(h_i), so that this part of G
    is a Gaussian vector of squared length χ²_{d−3} Σ_i c_i²/n²: three numbers a sample are drawn instead of d.

    whiten=True  takes the gradient for whitened inputs Σ^{−1/2}x and a neuron normalised to see a unit variance,
                 h = ⟨w, x⟩/|Σ^{1/2}w|: the direction in which the normalised and preconditioned flow starts
    Returns a `results.SpikedGradient`: squared cosines of G with teacher and spike, and how well ⟨G, x⟩ knows z.
    """
    problem, n = prepare_batch(target, d, n, 1, 1.0, runs, student, "correlation")
    if problem.directions > 1 or problem.target.is_noisy:
        raise ValueError(f"target is {problem.target.name!r}; it must have one direction and no noise")
    if problem.d < 4:
        raise ValueError(f"d is {problem.d}; it must be a whole number ≥ 4")
    theta, s = checks.not_negative("theta", theta), overlap("alignment", alignment)
    place = devices.resolve(device, prefer="cpu")
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    options = {"device": place, "dtype": torch.float32}

    def chi_square(degrees):
        shape = torch.full((problem.runs,), degrees / 2, **options)
        return 2 * torch._standard_gamma(shape, generator=generator)

    # Coordinates: along μ, along the rest of β, along the rest of w.
    roots = torch.tensor([(1 + theta) ** 0.5, 1.0, 1.0], **options)
    beta = torch.tensor([s, (1 - s**2) ** 0.5, 0.0], **options)
    w = torch.randn(problem.runs, 2, generator=generator, **options)
    w = torch.nn.functional.normalize(torch.cat([w, chi_square(problem.d - 2).sqrt()[:, None]], dim=1), dim=1)
    teacher = torch.nn.functional.normalize(roots * beta, dim=0)
    w = roots * w
    if whiten:
        w, roots, beta = torch.nn.functional.normalize(w, dim=1), torch.ones_like(roots), teacher
    w = w * torch.where(w @ teacher < 0, -1.0, 1.0)[:, None]
    total, squares, seen = torch.zeros_like(w, dtype=torch.float64), 0.0, 0
    with bar(label=f"gradient, d={problem.d}", total=n) as progress:
        while seen < n:
            block = min(n - seen, max(1, BLOCK // problem.runs))
            g = torch.randn(problem.runs, block, 3, generator=generator, **options)
            c = problem.gradient_factor(problem.target.labels(g @ teacher), (g @ w[..., None])[..., 0], None)
            total = total + (c[:, None] @ g)[:, 0]
            squares = squares + c.square().sum(1)
            seen += block
            progress.update(block)
    inside = roots * total / n
    length = inside.square().sum(1) + chi_square(problem.d - 3) * squares / n**2
    # What a neuron with the direction of G sees, ⟨G, x⟩, has variance ⟨G, ΣG⟩ and covariance ⟨G, Σβ⟩/√κ with z.
    seen = length + (roots.square() - 1).to(inside.dtype) @ inside.square().T
    shares = [(inside @ beta.to(inside.dtype)).square() / length, inside[:, 0].square() / length]
    shares.append((inside @ (roots * teacher).to(inside.dtype)).square() / seen)
    return results.SpikedGradient(*(devices.to_host(share) for share in shares))
