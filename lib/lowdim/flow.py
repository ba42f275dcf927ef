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

from lowdim import checks, compiled, hermite, results
from lowdim import device as devices
from lowdim.problem import prepare, start_tensor
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
    problem = prepare(target, d, steps, lr, runs, student, loss, lookahead, records, stop_at)
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
    """Averages by a product rule over (z, u), tabulated in m. |x|² is replaced by its mean d."""
    nodes, weights = _composite_rule()
    z, u = (torch.as_tensor(a) for a in np.meshgrid(nodes, nodes, indexing="ij"))
    weight = torch.as_tensor(np.outer(weights, weights))
    y = problem.target.labels(z)
    length = torch.full_like(z, float(problem.d))
    table = np.linspace(-1, 1, PRODUCT_TABLE_SIZE)
    drift, noise = np.empty_like(table), np.empty_like(table)
    for i, m in enumerate(bar(table, "averages over (z, h)")):
        h = m * z + (1 - m**2) ** 0.5 * u
        g = problem.gradient_factor(y, h, length)
        drift[i] = float((weight * g * (z - h * m)).sum())
        noise[i] = float((weight * g**2).sum())
    return lambda m: np.interp(m, table, drift), lambda m: np.interp(m, table, noise)


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
