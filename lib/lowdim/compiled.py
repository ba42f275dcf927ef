"""The inner loops of the trainers, compiled by numba. All kernels live in this one file, because numba's cache on disk
notices changes of the file that holds a kernel, not of the files it calls.

A link is handed over as numbers (`encode`); what a run is doing, as two named tuples of arrays (`Rule`, `Log`).
"""

import math
from typing import NamedTuple

import numba
import numpy as np

from lowdim import hermite, links, problem

HERMITE, RELU, TANH, ERF, ABS, SIGN, SIN, COS, BUMP = range(len(links.FAMILIES))
LOOK_AHEAD, TWO_STEPS, SHARPNESS_AWARE = range(len(problem.VARIANTS))
MOST_TERMS = 64


class Rule(NamedTuple):
    """The update rule of `problem.Problem`: step sizes, loss, the student's link, and when a run stops."""

    lr: float
    lookahead: float
    variant: int
    square: bool
    code: int
    parameters: np.ndarray
    slopes: np.ndarray
    stop: float


class Log(NamedTuple):
    """What is written down: overlaps [runs, records, r] at `samples`, first passages [runs, r, levels + 1]."""

    samples: np.ndarray
    overlaps: np.ndarray
    passages: np.ndarray
    next_level: np.ndarray
    diverged: np.ndarray


def is_compilable(link):
    """Whether `encode` can hand this link (or None) to compiled code."""
    return link is not None and len(link.parameters) <= MOST_TERMS


def encode(link):
    """A link as numbers: its family's code, its parameters, and (Hermite) the coefficients of its derivative."""
    parameters = np.array([*link.parameters] or [0.0])
    slopes = hermite.derivative(parameters) if link.family == "hermite" else np.zeros(1)
    return links.FAMILIES.index(link.family), parameters, slopes if len(slopes) else np.zeros(1)


def make_rule(p):
    """The `Rule` of a `problem.Problem` whose student is compilable."""
    stop = math.inf if p.stop_at is None else p.stop_at
    variant = problem.VARIANTS.index(p.variant)
    return Rule(p.lr, p.lookahead, variant, p.loss == "square", *encode(p.link), stop)


# Stands for "the labels were computed outside": by any function, noisy, or of several directions.
NO_LINK = (-1, np.zeros(1), np.zeros(1))
NO_LABELS = np.zeros((1, 1))


def make_log(m, samples, levels):
    """A `Log` that begins with the overlaps m [runs, r]; passages are kept for 0, 1/levels, …, 1."""
    runs, r = m.shape
    log = Log(
        samples=samples,
        overlaps=np.empty((runs, len(samples), r)),
        passages=np.full((runs, r, levels + 1), np.inf),
        next_level=np.zeros((runs, r), dtype=np.int64),
        diverged=np.zeros(runs, dtype=np.bool_),
    )
    log.overlaps[:, 0] = m
    for run in range(runs):
        note_passages(log, run, m[run], 0.0)
    return log


# h_k = A_k z h_{k−1} − B_k h_{k−2} with A_k = 1/√k and B_k = √(k−1)/√k, tabulated for the inner loop.
RECURRENCE_A = np.array([0.0, *(1 / math.sqrt(k) for k in range(1, MOST_TERMS))])
RECURRENCE_B = np.array([0.0, *(math.sqrt((k - 1) / k) for k in range(1, MOST_TERMS))])


@numba.njit(cache=True)
def _series(alpha, z):
    """Σ_k α_k h_k(z)."""
    before, now, total = 0.0, 1.0, alpha[0]
    for k in range(1, len(alpha)):
        before, now = now, RECURRENCE_A[k] * z * now - RECURRENCE_B[k] * before
        total += alpha[k] * now
    return total


@numba.njit(cache=True)
def value(code, parameters, z):
    """σ(z)."""
    if code == HERMITE:
        return _series(parameters, z)
    if code == RELU:
        return max(z + parameters[0], 0.0)
    if code == TANH:
        return math.tanh(z)
    if code == ERF:
        return math.erf(parameters[0] * z)
    if code == ABS:
        return abs(z + parameters[0])
    if code == SIGN:
        return 0.0 if z == 0 else math.copysign(1.0, z)
    if code == SIN:
        return math.sin(z)
    if code == COS:
        return math.cos(z)
    return z * z * math.exp(-z * z)


@numba.njit(cache=True)
def slope(code, parameters, slopes, z):
    """σ'(z)."""
    if code == HERMITE:
        return _series(slopes, z)
    if code == RELU:
        return 1.0 if z + parameters[0] > 0 else 0.0
    if code == TANH:
        return 1.0 - math.tanh(z) ** 2
    if code == ERF:
        return 2.0 * parameters[0] / math.sqrt(math.pi) * math.exp(-((parameters[0] * z) ** 2))
    if code == ABS:
        return 0.0 if z + parameters[0] == 0 else math.copysign(1.0, z + parameters[0])
    if code == SIGN:
        return 0.0
    if code == SIN:
        return math.cos(z)
    if code == COS:
        return -math.sin(z)
    return 2.0 * z * (1.0 - z * z) * math.exp(-z * z)


@numba.njit(cache=True)
def gradient_factor(rule, label, h, squared_x):
    """The factor g of `problem.Problem`, for one sample."""
    residual = label - value(rule.code, rule.parameters, h) if rule.square else label
    g = residual * slope(rule.code, rule.parameters, rule.slopes, h)
    if rule.lookahead > 0:
        ahead = h + rule.lookahead * squared_x * g
        if rule.variant == SHARPNESS_AWARE:
            ahead = h if g == 0 else h - math.copysign(rule.lookahead * math.sqrt(squared_x), g)
        residual = label - value(rule.code, rule.parameters, ahead) if rule.square else label
        first = g if rule.variant == TWO_STEPS else 0.0
        g = first + residual * slope(rule.code, rule.parameters, rule.slopes, ahead)
    return g


@numba.njit(cache=True)
def note_passages(log, run, m, seen):
    """Write down every level that some |m_i| reaches now for the first time."""
    levels = log.passages.shape[2] - 1
    for i in range(len(m)):
        reached = min(math.floor(abs(m[i]) * levels + 1e-12), levels)
        while log.next_level[run, i] <= reached:
            log.passages[run, i, log.next_level[run, i]] = seen
            log.next_level[run, i] += 1


@numba.njit(cache=True, parallel=True)
def advance_chains(m, active, gauss, rest, labels, link, seen, rule, log):
    """Advance the exact chains m [runs, r] of all active runs by one block of samples.

    gauss [active, block, r + 1] holds z and u, rest [active, block] the χ² part, labels [active, block] the labels
    (or [1, 1] when `link`, an encoded link, is to compute them from z).
    """
    for a in numba.prange(len(active)):
        _advance_chain(m[active[a]], active[a], gauss[a], rest[a], labels[a % len(labels)], link, seen, rule, log)


@numba.njit(cache=True)
def _advance_chain(m, run, gauss, rest, labels, link, seen, rule, log):
    r = len(m)
    new = np.empty(r)
    label_code, label_parameters, _ = link
    record = np.searchsorted(log.samples, seen + 1)
    moving = True
    for t in range(len(rest)):
        if moving:
            label = labels[t] if label_code < 0 else value(label_code, label_parameters, gauss[t, 0])
            h, squared_m, squared_x = 0.0, 0.0, gauss[t, r] ** 2 + rest[t]
            for i in range(r):
                h += m[i] * gauss[t, i]
                squared_m += m[i] * m[i]
                squared_x += gauss[t, i] ** 2
            h += math.sqrt(max(1.0 - squared_m, 0.0)) * gauss[t, r]
            step = rule.lr * gradient_factor(rule, label, h, squared_x)
            norm = math.sqrt(1.0 + step**2 * max(squared_x - h * h, 0.0))
            finite = math.isfinite(norm)
            for i in range(r):
                new[i] = min(max((m[i] + step * (gauss[t, i] - h * m[i])) / norm, -1.0), 1.0)
                finite = finite and math.isfinite(new[i])
            if finite:
                m[:] = new
                note_passages(log, run, m, seen + t + 1.0)
            else:
                log.diverged[run] = True
            moving = finite and abs(m[0]) < rule.stop
        if record < len(log.samples) and log.samples[record] == seen + t + 1:
            log.overlaps[run, record] = m
            record += 1


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def _dot(a, b):
    total = a[0] * b[0]
    for i in range(1, len(a)):
        total += a[i] * b[i]
    return total


@numba.njit(cache=True, parallel=True)
def advance_vectors(w, active, x, labels, teacher, seen, rule, log):
    """Advance the d-dimensional neurons w [runs, d] by the samples x [active, block, d], labels [active, block].

    teacher [r, d] has orthonormal rows.
    """
    for a in numba.prange(len(active)):
        _advance_vector(w[active[a]], active[a], x[a], labels[a], teacher, seen, rule, log)


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def _advance_vector(w, run, x, labels, teacher, seen, rule, log):
    r = len(teacher)
    m = np.empty(r)
    for i in range(r):
        m[i] = _dot(w, teacher[i])
    record = np.searchsorted(log.samples, seen + 1)
    moving = True
    for t in range(len(labels)):
        if moving:
            h = float(_dot(w, x[t]))
            squared_x = float(_dot(x[t], x[t]))
            step = rule.lr * gradient_factor(rule, float(labels[t]), h, squared_x)
            norm = math.sqrt(1.0 + step**2 * max(squared_x - h * h, 0.0))
            keep, move = np.float32((1.0 - step * h) / norm), np.float32(step / norm)
            finite = math.isfinite(norm) and math.isfinite(keep) and math.isfinite(move)
            if finite:
                for j in range(len(w)):
                    w[j] = keep * w[j] + move * x[t, j]
                for i in range(r):
                    m[i] = min(max(float(_dot(w, teacher[i])), -1.0), 1.0)
                note_passages(log, run, m, seen + t + 1.0)
            else:
                log.diverged[run] = True
            moving = finite and abs(m[0]) < rule.stop
        if record < len(log.samples) and log.samples[record] == seen + t + 1:
            log.overlaps[run, record] = m
            record += 1
    # The norm in closed form keeps |w| = 1 up to rounding; rounding is removed once per block.
    scale = np.float32(1.0 / math.sqrt(_dot(w, w)))
    for j in range(len(w)):
        w[j] *= scale


@numba.njit(cache=True)
def _interpolate(table, m):
    position = (min(max(m, -1.0), 1.0) + 1.0) * (len(table) - 1) / 2
    left = min(int(position), len(table) - 2)
    return table[left] + (position - left) * (table[left + 1] - table[left])


@numba.njit(cache=True)
def integrate(table, times, m, stop):
    """Runge–Kutta of order 4 for dm/dt = v(m), v tabulated on [−1, 1]: [n − 1, runs] at times[1:], from m [runs]."""
    history = np.empty((len(times) - 1, len(m)))
    for run in range(len(m)):
        now = m[run]
        for t in range(len(times) - 1):
            if abs(now) < stop:
                dt = times[t + 1] - times[t]
                a = _interpolate(table, now)
                b = _interpolate(table, now + dt / 2 * a)
                c = _interpolate(table, now + dt / 2 * b)
                now += dt / 6 * (a + 2 * b + 2 * c + _interpolate(table, now + dt * c))
            history[t, run] = now
    return history
