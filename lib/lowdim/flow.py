r"""Population ODEs of the order parameters.

`online_sgd` follows the mean of the exact chain. With drift(m) = E[g (z − h m)] and C(m) = E[g²], where (z, h) are
standard Gaussians of correlation m and g is the gradient factor of `problem.Problem`, one sample moves m on average by

    dm/dt = γ drift(m) − ½ γ² (d − 1) C(m) m.

Without look-ahead both functions are power series in m. For link f = Σ α_k h_k and student σ = Σ β_k h_k,

    drift(m) = (1 − m²) Σ_k k α_k β_k m^{k−1},       E[A(z) B(h)] = Σ_k A_k B_k m^k   gives C(m).
"""

import functools
import math

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline

from lowdim import checks, compiled, hermite, results, targets
from lowdim import device as devices
from lowdim.data import overlap
from lowdim.problem import prepare, start_overlaps, start_tensor
from lowdim.progress import bar

# Terms of the power series. Polynomials need few; links with kinks converge slowly, but only near |m| = 1.
SERIES_DEGREE = 120
TABLE_SIZE = 4001
# With look-ahead the averages are two-dimensional integrals, done by a product rule with this many nodes a side.
PRODUCT_ORDER = 160
PRODUCT_TABLE_SIZE = 401
# One Runge–Kutta step moves the slowest-to-resolve direction by at most this factor: error ~ (0.05)⁴ a step.
STEP_FACTOR = 0.05
MOST_STEPS = 2_000_000
BLOCK = 1 << 16


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
    """Integrate the population ODE of online SGD for a target with one direction; `runs` starts at once.

    Same arguments and result type as `sgd.online_sgd`, so that theory and simulation are drawn by the same call twice.
    `seed` draws the starts (uniform on the sphere), unless `start` gives them. Time is counted in samples.
    """
    problem = prepare(target, d, steps, lr, runs, student, loss, lookahead, records, stop_at, variant)
    if problem.directions > 1:
        raise ValueError(f"target is {problem.target.name!r} with {problem.directions} directions; the flow takes one")
    # A handful of numbers a step: nothing for a GPU, unless it is asked for by name.
    place = devices.resolve(device, prefer="cpu")
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    options = {"device": place, "dtype": torch.float64}
    drift, noise = averages(problem)
    grid = np.linspace(-1, 1, TABLE_SIZE)
    velocity = problem.lr * drift(grid) - 0.5 * problem.lr**2 * (d - 1) * noise(grid) * grid
    table = torch.as_tensor(velocity, **options)
    samples = results.record_grid(problem.steps, problem.records)
    times = _time_grid(velocity, grid, samples)
    return _integrate(problem, table, times, start_tensor(problem, start, generator, options))


def velocity(target, d, lr, m, *, student=None, loss="correlation", lookahead=0.0, variant="look-ahead", noise=True):
    """The right-hand side dm/dt of the population ODE at overlaps m (a number or an array [n]), per sample.

    noise=False leaves out the second term, so that γ·drift(m) remains. Other arguments as in `online_sgd`.
    """
    problem = prepare(target, d, 1, lr, 1, student, loss, lookahead, 2, None, variant)
    if problem.directions > 1 or problem.target.is_noisy:
        raise ValueError(f"target is {problem.target.name!r}; the flow takes one direction, without label noise")
    m = np.asarray(m, dtype=float)
    if not (np.abs(m) <= 1).all():
        raise ValueError(f"m is {m!r}; overlaps lie in [−1, 1]")
    drift, square = _product_rule(problem, m.ravel())
    shrink = 0.5 * problem.lr**2 * (problem.d - 1) * square * m.ravel() if noise else 0.0
    return (problem.lr * drift - shrink).reshape(m.shape)


@devices.one_thread()
def full_batch(target, alpha, lr, *, reuse=True, student=None, loss="correlation", start=0.0):
    r"""The two-step cavity prediction for `sgd.full_batch`: magnetisations ⟨w_t, w*⟩ [3] at t = 0, 1, 2 for d → ∞.

    n/d = α and η = lr stay fixed. With (z, h) standard Gaussians of correlation m_0, g ~ N(0, 1) and r = e(h) σ'(h),
    the gradient of the first step is a w* + b w_0 + noise of squared length E[r²]/α, where a + b m_0 = E[r z] and
    a m_0 + b = E[r h]. A sample that belongs to the batch has met its own gradient already, so that its field moves by
    η r/α on top (reuse=True):

        m_1 = m_0 + η E[r z],   h' = h + η (a z + b h + √(E[r²]/α) g + r/α),   m_2 = m_1 + η E[e(h') σ'(h') z].
    """
    problem = prepare(target, 2, 1, lr, 1, student, loss, 0.0, 2, None)
    if problem.directions > 1 or problem.target.is_noisy:
        raise ValueError(f"target is {problem.target.name!r}; the cavity calculation takes one direction without noise")
    alpha, eta = checks.positive("alpha", alpha), problem.lr
    m = float(start_overlaps(start, 1, 1)[0, 0])
    nodes, weights = (torch.as_tensor(v) for v in _composite_rule())
    # The student may have kinks anywhere: a fine midpoint rule does not mind them, and g smooths them in step two.
    fine = torch.linspace(-8, 8, 801, dtype=torch.float64)
    fine = (fine[1:] + fine[:-1]) / 2
    noise_nodes, noise_weights = (torch.as_tensor(v.copy()) for v in hermite.gauss(64))
    h, g = torch.meshgrid(fine, noise_nodes, indexing="ij")
    weight = torch.outer(torch.softmax(-(fine**2) / 2, dim=0), noise_weights)

    def average(function):
        """E[function(z, h, r)], one z at a time to keep memory small."""
        total = 0.0
        for v, p in zip(nodes, weights, strict=True):
            z = m * h + (1 - m**2) ** 0.5 * v
            r = problem.gradient_factor(problem.target.labels(z), h, None)
            total = total + p * torch.stack([(weight * value).sum() for value in function(z, h, r)])
        return total

    rz, rh, squared = average(lambda z, h, r: (r * z, r * h, r**2))
    a, b = (rz - m * rh) / (1 - m**2), (rh - m * rz) / (1 - m**2)
    noise = (squared / alpha).sqrt()

    def second(z, h, r):
        field = h + eta * (a * z + b * h + noise * g + (r / alpha if reuse else 0.0))
        return (problem.gradient_factor(problem.target.labels(z), field, None) * z,)

    first = m + eta * float(rz)
    return np.array([m, first, first + eta * float(average(second)[0])])


def averages(problem):
    """Return the functions m ↦ drift(m) and m ↦ C(m) of the module's docstring, on NumPy arrays of overlaps."""
    if problem.target.is_noisy:
        raise ValueError(f"target is {problem.target.name!r}; the flow takes targets without label noise")
    if problem.lookahead:
        return _product_averages(problem)
    return _series_averages(problem.target.vectorised, problem.student, problem.loss)


@functools.lru_cache(maxsize=32)
def _series_averages(f, sigma, loss):
    """The averages as power series. They depend neither on d nor on the step size, so that sweeps reuse them."""
    slope = _numpy_derivative(sigma)
    alpha = hermite.coefficients(f, SERIES_DEGREE)
    beta = hermite.coefficients(sigma, SERIES_DEGREE)
    k = np.arange(1, SERIES_DEGREE + 1)
    drift_series = k * alpha[1:] * beta[1:]

    def pair(label, student):
        return hermite.coefficients(label, SERIES_DEGREE) * hermite.coefficients(student, SERIES_DEGREE)

    noise_series = pair(lambda z: f.numpy(z) ** 2, lambda h: slope(h) ** 2)
    if loss == "square":
        noise_series = noise_series - 2 * pair(f.numpy, lambda h: sigma.numpy(h) * slope(h) ** 2)
        noise_series[0] += hermite.coefficients(lambda h: (sigma.numpy(h) * slope(h)) ** 2, 0)[0]
    polynomial = np.polynomial.polynomial.polyval
    return lambda m: (1 - m**2) * polynomial(m, drift_series), lambda m: polynomial(m, noise_series)


def _product_averages(problem):
    """Averages by a product rule, tabulated in m."""
    table = np.linspace(-1, 1, PRODUCT_TABLE_SIZE)
    drift, noise = _product_rule(problem, table)
    return lambda m: np.interp(m, table, drift), lambda m: np.interp(m, table, noise)


@devices.one_thread()
def _product_rule(problem, overlaps):
    """drift and C at the given overlaps [n] by a product rule over (z, u). |x|² is replaced by its mean d."""
    nodes, weights = _composite_rule()
    z, u = (torch.as_tensor(a) for a in np.meshgrid(nodes, nodes, indexing="ij"))
    weight = torch.as_tensor(np.outer(weights, weights))
    y = problem.target.labels(z)
    length = torch.full_like(z, float(problem.d))
    drift, noise = np.empty(len(overlaps)), np.empty(len(overlaps))
    for i, m in enumerate(bar(overlaps, "averages over (z, h)")):
        h = m * z + (1 - m**2) ** 0.5 * u
        g = problem.gradient_factor(y, h, length)
        drift[i] = float((weight * g * (z - h * m)).sum())
        noise[i] = float((weight * g**2).sum())
    return drift, noise


def _composite_rule():
    """Gauss–Legendre nodes and N(0, 1) weights on panels of [−8, 8] that meet at 0, where most links have a kink."""
    x, v = np.polynomial.legendre.leggauss(PRODUCT_ORDER // 16)
    edges = np.linspace(-8, 8, 17)
    nodes = (((edges[1:] + edges[:-1])[:, None] + np.diff(edges)[:, None] * x) / 2).ravel()
    weights = (np.diff(edges)[:, None] / 2 * v).ravel() * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    return nodes, weights


def _numpy_derivative(function):
    return lambda z: function.derivative(torch.as_tensor(np.ascontiguousarray(z))).numpy()


def _time_grid(velocity, grid, samples):
    """Times [n] from 0 to the last record that contain every record and are dense enough for the velocity's slope."""
    rate = max(float(np.abs(np.gradient(velocity, grid)).max()), float(np.abs(velocity).max()))
    pieces = np.maximum(1, np.ceil(np.diff(samples) * rate / STEP_FACTOR)).astype(np.int64)
    if pieces.sum() > MOST_STEPS:
        raise ValueError(
            f"steps is {samples[-1]}; with this step size the flow would need {pieces.sum():,} integration steps "
            f"(at most {MOST_STEPS:,}): choose fewer steps or a smaller lr"
        )
    parts = [np.linspace(a, b, n, endpoint=False) for a, b, n in zip(samples[:-1], samples[1:], pieces, strict=True)]
    return np.concatenate([*parts, samples[-1:]])


def _integrate(problem, table, times, m):
    """Follow the flow over the times from the overlaps m [runs, 1], block by block."""
    recorder = results.Recorder(m, problem.steps, problem.records)
    stop = math.inf if problem.stop_at is None else problem.stop_at
    with bar(label="population flow", total=len(times) - 1) as progress:
        for first in range(0, len(times) - 1, BLOCK):
            block = times[first : first + BLOCK + 1]
            if m.device.type == "cpu":
                history = torch.as_tensor(compiled.integrate(table.numpy(), block, m[:, 0].numpy(), stop))[..., None]
            else:
                history = _runge_kutta(table, block, m, stop)
            m = history[-1]
            recorder.add_curve(history, block[1:], block[0])
            progress.update(len(block) - 1)
    diverged = torch.zeros(problem.runs, dtype=torch.bool, device=m.device)
    return recorder.finish(diverged, problem.d, problem.lr)


def _runge_kutta(table, times, m, stop):
    """The same steps as `compiled.integrate`, as a tensor program for other devices: states [n − 1, runs, 1]."""

    def velocity(m):
        position = (m.clamp(-1, 1) + 1) * ((len(table) - 1) / 2)
        left = position.floor().clamp(max=len(table) - 2).long()
        return torch.lerp(table[left], table[left + 1], position - left)

    history = m.new_empty(len(times) - 1, *m.shape)
    for t, dt in enumerate(np.diff(times)):
        a = velocity(m)
        b = velocity(m + dt / 2 * a)
        c = velocity(m + dt / 2 * b)
        new = m + dt / 6 * (a + 2 * b + 2 * c + velocity(m + dt * c))
        m = torch.where(m.abs() < stop, new, m)
        history[t] = m
    return history


DYNAMICS = ("spherical", "normalized")
# Averages over the student's field use a fine trapezoidal rule: exact for smooth students, to 1e-5 with kinks.
FIELD = np.linspace(-10, 10, 4001)
FIELD_WEIGHTS = np.exp(-(FIELD**2) / 2) / np.exp(-(FIELD**2) / 2).sum()
SPIKED_DEGREE = 40
SCALES = 160


def spiked(
    target,
    d,
    theta,
    time,
    *,
    alignment=1.0,
    dynamics="normalized",
    precondition=False,
    loss="square",
    student=None,
    runs=16,
    start=None,
    seed=0,
    records=200,
):
    r"""Population gradient flow of one neuron on inputs x ~ N(0, Σ), Σ = I + θμμᵀ: a `results.SpikedResult`.

    The label is y = f(z), z = ⟨x, β⟩/√κ, κ = 1 + θ⟨μ, β⟩². With R = ½ E(y − f_w(x))² (loss="correlation": −E y f_w(x))

        dynamics="spherical"    f_w = σ(⟨w, x⟩),                 dw/dt = −(I − wwᵀ)∇R(w),  |w| = 1,
        dynamics="normalized"   f_w = σ(⟨w, x⟩/|Σ^{1/2}w|),      dw/dt = −⟨w, Σw⟩∇R(w),

    and precondition=True multiplies the gradient of the second by Σ⁻¹. By Stein's identity ∇R lies in the span of
    Σβ and Σw, so that three numbers close the equation exactly in every dimension: the components of w along μ, along
    the part of β orthogonal to μ, and the length of the rest.

    target     as in `online_sgd`, of one direction and without noise; student: default the target's own link
    d          dimension; it enters through the random starts only
    time       how long to follow the flow; records, about `records` of them, are log-spaced
    alignment  ⟨μ, β⟩ in [−1, 1]
    start      None: uniform on the sphere; or the components of w along μ and along the rest of β, [2] or [runs, 2]
    Starts get the sign for which u ≥ 0, as half of the neurons of a network with random output signs have.
    """
    problem = prepare(target, d, 1, 1.0, runs, student, loss, 0.0, 2, None)
    if problem.directions > 1 or problem.target.is_noisy:
        raise ValueError(f"target is {problem.target.name!r}; the flow takes one direction, without label noise")
    theta, time = checks.not_negative("theta", theta), checks.positive("time", time)
    s, records = overlap("alignment", alignment), checks.whole_number("records", records, least=2)
    check_dynamics(dynamics, precondition)
    variances = np.array([1 + theta, 1.0, 1.0])
    beta = np.array([s, math.sqrt(1 - s**2), 0.0])
    teacher = beta / math.sqrt(beta @ (variances * beta))
    field = _spherical_field if dynamics == "spherical" else _normalised_field
    velocity_of = field(problem, variances, teacher, precondition)
    times = np.concatenate([[0.0], np.geomspace(time / 1e5, time, records - 1)])
    w = _spiked_start(start, problem, seed)
    w *= np.where(w @ (variances * teacher) < 0, -1.0, 1.0)[:, None]
    paths = np.empty((problem.runs, records, 3))
    options = {"method": "LSODA", "rtol": 1e-8, "atol": 1e-11}
    for path, w0 in zip(paths, bar(w, f"{dynamics} flow"), strict=True):
        path[:] = solve_ivp(lambda t, v: velocity_of(v), (0, time), w0, t_eval=times, **options).y.T
    norms = np.linalg.norm(paths, axis=-1)
    seen = np.sqrt(np.einsum("rti,i,rti->rt", paths, variances, paths))
    return results.SpikedResult(
        np.broadcast_to(times, norms.shape).copy(),
        paths @ beta / norms,
        paths[..., 0] / norms,
        paths @ (variances * teacher) / seen,
        np.zeros(problem.runs, dtype=bool),
        problem.d,
        theta,
        s,
    )


def check_dynamics(dynamics, precondition):
    """Raise ValueError for an unknown dynamics, or for preconditioning where it is not defined."""
    checks.one_of("dynamics", dynamics, DYNAMICS)
    if precondition and dynamics == "spherical":
        raise ValueError("precondition is True; it goes with dynamics='normalized' only")


def _normalised_field(problem, variances, teacher, precondition):
    """dw/dt = ζ(u) [S Σβ/√κ − u Σw], ζ(u) = Σ_k k α_k β_k u^{k−1}, S = |Σ^{1/2}w|; `teacher` is β/√κ."""
    alpha = hermite.coefficients(problem.target.vectorised, SPIKED_DEGREE)
    series = np.arange(1, SPIKED_DEGREE + 1) * (alpha * hermite.coefficients(problem.student, SPIKED_DEGREE))[1:]
    metric = np.ones(3) if precondition else variances

    def velocity(w):
        size = math.sqrt(w @ (variances * w))
        u = (w @ (variances * teacher)) / size
        return np.polynomial.polynomial.polyval(u, series) * metric * (size * teacher - u * w)

    return velocity


def _spherical_field(problem, variances, teacher, precondition):
    r"""dw/dt = (I − wwᵀ)(p Σβ/√κ + q Σw) with p = E[f'(z)σ'(h)] and p uS + q S² = E[(y − σ(h)) σ'(h) h], h = ⟨w, x⟩.

    With a standard Gaussian t and β_k(S) = E[σ(S t) h_k(t)] the averages are p = S⁻¹ Σ_k k α_k β_k(S) u^{k−1},
    E[y σ'(h) h] = S Σ_k α_k β_k'(S) u^k and E[σσ'(h) h]: functions of S alone are tabulated.
    """
    alpha = hermite.coefficients(problem.target.vectorised, SPIKED_DEGREE)
    # Rounding errors of coefficients that are zero would be multiplied by large β_k(S).
    keep = np.flatnonzero(np.abs(alpha) > 1e-9 * np.abs(alpha).max())
    alpha, top = alpha[: keep[-1] + 1], keep[-1]
    sizes = np.linspace(1, math.sqrt(variances[0]) + 1e-9, SCALES)
    points = np.outer(sizes, FIELD)
    values, slopes = problem.student.numpy(points), _numpy_derivative(problem.student)(points)
    weighted = hermite.basis(FIELD, top) * FIELD_WEIGHTS[:, None]
    repulsion = (values * slopes * points) @ FIELD_WEIGHTS if problem.loss == "square" else np.zeros(SCALES)
    table = np.column_stack([values @ weighted, (slopes * FIELD) @ weighted, repulsion])
    at = CubicSpline(sizes, table)
    k = np.arange(top + 1)

    def velocity(w):
        w = w / math.sqrt(w @ w)  # errors of the integration off the sphere must not grow
        size = math.sqrt(w @ (variances * w))
        u = (w @ (variances * teacher)) / size
        row = at(size)
        powers = u**k
        p = (k[1:] * alpha[1:] * row[1 : top + 1]) @ powers[:-1] / size
        field = size * (alpha * row[top + 1 : -1]) @ powers - row[-1]
        force = variances * (p * teacher + (field - p * u * size) / size**2 * w)
        return force - (force @ w) * w

    return velocity


def _spiked_start(start, problem, seed):
    """States [runs, 3] on the unit sphere: components along μ, along the rest of β, and the length of what is left."""
    rng = np.random.default_rng(checks.whole_number("seed", seed, least=0))
    if start is None:
        w = rng.standard_normal((problem.runs, 2))
        rest = np.sqrt(rng.chisquare(problem.d - 2, problem.runs)) if problem.d > 2 else np.zeros(problem.runs)
        w = np.column_stack([w, rest])
        return w / np.linalg.norm(w, axis=1, keepdims=True)
    w = start_overlaps(np.asarray(start, dtype=float), problem.runs, 2)
    return np.column_stack([w, np.sqrt(np.maximum(1 - np.sum(w**2, axis=1), 0))])


# Degrees that count in the drift of `additive`.
ADDITIVE_DEGREE = 20


def additive(link, start, times, lr, *, student=None, coefficients=None, d=None):
    r"""Population flow of one neuron's overlaps m_1..m_M with the M orthonormal tasks of `targets.additive`.

    On the correlation loss neurons do not interact, and one sample moves the overlaps of a neuron on average by

        dm_i/dt = γ (A_i(m_i) − m_i Σ_j m_j A_j(m_j)),      A_i(m) = (c_i/√M) Σ_k k α_ik β_k m^{k−1},

    with the Hermite coefficients α_i of σ_i and β of the student. With a dimension d the noise of the steps is included
    to leading order, − ½ γ² (d − 1) E[y²] E[σ'(h)²] m_i, as if label and neuron were independent: right while overlaps
    are small, or M is large.

    link, coefficients  as in `targets.additive`; M is the last axis of `start`
    start               overlaps at time 0, [runs, M] with Σ m_i² ≤ 1
    times               increasing numbers of samples ≥ 0, [T]
    lr                  γ, the step per sample
    student             a name, a `Link` or a function; default: the link, if all tasks share one
    Returns an array [runs, T, M].
    """
    start = np.array(start, dtype=float)
    if start.ndim != 2 or not np.isfinite(start).all() or (np.sum(start**2, axis=1) > 1 + 1e-9).any():
        raise ValueError(f"start has shape {start.shape}; it must be finite, of shape [runs, M], with Σ m_i² ≤ 1")
    tasks = start.shape[1]
    times = np.atleast_1d(np.asarray(times, dtype=float))
    if times.ndim != 1 or (np.diff(times, prepend=0) < 0).any() or not np.isfinite(times).all():
        raise ValueError(f"times is {times!r}; it must be an increasing list of finite numbers ≥ 0")
    gamma = checks.positive("lr", lr)
    if student is None and isinstance(link, list | tuple):
        raise ValueError("student is None; it must be given when every task has its own link")
    sigma = targets.resolve(link if student is None else student)
    parts = link if isinstance(link, list | tuple) else [link] * tasks
    model = targets.additive(parts, tasks, coefficients)  # checks the parts and their coefficients
    c = np.ones(tasks) if coefficients is None else np.asarray(coefficients, dtype=float)
    alpha = np.stack([hermite.coefficients(targets.resolve(part), ADDITIVE_DEGREE) for part in parts])
    beta = hermite.coefficients(sigma, ADDITIVE_DEGREE)
    k = np.arange(1, ADDITIVE_DEGREE + 1)
    series = gamma * c[:, None] / math.sqrt(tasks) * (k * alpha[:, 1:] * beta[1:])  # [M, K]
    used = np.flatnonzero(np.abs(series).max(axis=0) > 1e-12 * np.abs(series).max())
    series = series[:, : used[-1] + 1 if len(used) else 1]
    decay = 0.0
    if d is not None:
        d = checks.whole_number("d", d, least=model.directions + 1)
        slope = hermite.coefficients(lambda z: sigma.vectorised.derivative(torch.as_tensor(z)).numpy() ** 2, 0)[0]
        mean = c @ alpha[:, 0] / math.sqrt(tasks)
        variance = np.sum(c**2 * [_variance(part) for part in parts]) / tasks
        decay = gamma**2 / 2 * (d - 1) * (variance + mean**2) * slope

    def rate(m):
        pull = np.polynomial.polynomial.polyval(m, series.T, tensor=False)
        return pull - m * (np.sum(m * pull, axis=-1, keepdims=True) + decay)

    fastest = np.abs(series).sum(axis=1).max() + decay
    history, m, now = [], start, 0.0
    for time in bar(times, "flow of an additive model"):
        steps = max(1, math.ceil((time - now) * fastest / STEP_FACTOR)) if time > now else 0
        dt = (time - now) / max(1, steps)
        for _ in range(steps):
            a = rate(m)
            b = rate(m + dt / 2 * a)
            e = rate(m + dt / 2 * b)
            m = m + dt / 6 * (a + 2 * b + 2 * e + rate(m + dt * e))
        history.append(m)
        now = time
    return np.stack(history, axis=1)


def _variance(link):
    """Var f(z) of a link, z ~ N(0, 1)."""
    function = targets.resolve(link).vectorised
    mean = hermite.coefficients(function, 0)[0]
    return hermite.coefficients(lambda z: (function.numpy(z) - mean) ** 2, 0)[0]
