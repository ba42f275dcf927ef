"""What a trainer of one neuron returns: overlaps against samples seen, and first passages tracked at every step."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch

from lowdim import checks
from lowdim.device import to_host

# First passages of |overlap| are kept for the levels 0, 0.001, …, 1, whatever the record grid.
LEVELS = 1000


@dataclass(frozen=True)
class OverlapResult:
    """Overlaps m = ⟨w, w*⟩ of `runs` repetitions.

    samples        [records]           samples seen at each record, log-spaced, beginning with 0
    overlaps       [runs, records]     m (for a target with r > 1 directions: [runs, records, r])
    first_passage  [runs, r, 1001]     samples seen when |m_i| first reached 0, 0.001, …, 1; inf where never
    diverged       [runs]              True where the run left the range of floating-point numbers; such a run stays
                                       at its last finite state
    d, lr                              dimension and step size γ of the run
    """

    samples: np.ndarray
    overlaps: np.ndarray
    first_passage: np.ndarray
    diverged: np.ndarray
    d: int
    lr: float

    def samples_to_reach(self, level, direction=0):
        """Samples seen when |m| first reached `level` (0 < level ≤ 1), one float per run; inf where it never did.

        First passages were tracked at every step. Levels are resolved to 0.001: others are rounded up. `direction`
        picks m_i for targets with several directions.
        """
        level = checks.fraction("level", level)
        directions = self.first_passage.shape[1]
        direction = checks.whole_number("direction", direction, least=0)
        if direction >= directions:
            raise ValueError(f"direction is {direction}; this target has {directions} directions, 0..{directions - 1}")
        return self.first_passage[:, direction, int(np.ceil(level * LEVELS - 1e-9))]

    def quantile(self, q, absolute=True):
        """The `q`-quantile over runs of |m| (or of m): shape [records], or [records, r] for several directions."""
        return np.quantile(np.abs(self.overlaps) if absolute else self.overlaps, q, axis=0)


@dataclass(frozen=True)
class BatchResult:
    """Full-batch gradient descent of one neuron without normalisation, in `runs` repetitions.

    magnetisations  [runs, steps + 1]   ⟨w_t, w*⟩ (for a target with r > 1 directions: [runs, steps + 1, r])
    norms           [runs, steps + 1]   |w_t|
    diverged        [runs]              True where the run left the range of floating-point numbers; such a run stays
                                        at its last finite state
    d, n, lr                            dimension, batch size and step size η
    """

    magnetisations: np.ndarray
    norms: np.ndarray
    diverged: np.ndarray
    d: int
    n: int
    lr: float

    @property
    def overlaps(self):
        """Overlaps ⟨w_t, w*⟩/|w_t|, of the shape of `magnetisations`."""
        return self.magnetisations / (self.norms if self.magnetisations.ndim == 2 else self.norms[..., None])


class BatchRecorder:
    """Collects w_t [runs, d] of full-batch descent; a step that is not finite is not taken. No host reads."""

    def __init__(self, w, teacher):
        """`teacher` [d, r] has orthonormal columns."""
        self.teacher, self.diverged = teacher, torch.zeros(len(w), dtype=torch.bool, device=w.device)
        self.magnetisations, self.norms = [], []
        self._note(w)

    def step(self, w, new):
        """Record and return the next weights: `new`, or `w` for the runs where `new` is not finite."""
        self.diverged = self.diverged | ~torch.isfinite(new.square().sum(-1))
        w = torch.where(self.diverged[:, None], w, new)
        self._note(w)
        return w

    def _note(self, w):
        self.magnetisations.append(w @ self.teacher)
        self.norms.append(torch.linalg.vector_norm(w, dim=-1))

    def stacked(self):
        """Magnetisations [runs, steps + 1, r], norms [runs, steps + 1] and the mask [runs] of runs that diverged."""
        return torch.stack(self.magnetisations, 1), torch.stack(self.norms, 1), self.diverged


def finish_batch(recorders, d, n, lr):
    """Build a `BatchResult` on the host from the recorders of all groups of runs; warn about runs that diverged."""
    parts = zip(*(recorder.stacked() for recorder in recorders), strict=True)
    magnetisations, norms, diverged = (to_host(torch.cat(part)) for part in parts)
    magnetisations = magnetisations[..., 0] if magnetisations.shape[-1] == 1 else magnetisations
    _warn_of(diverged, d, lr)
    return BatchResult(magnetisations, norms, diverged, d, n, lr)


@dataclass(frozen=True)
class TwoLayerResult:
    """A two-layer network at several moments of its first-layer training.

    samples   [k]            samples seen at each moment, as asked for
    networks  k networks     `nets.TwoLayer`, with unit rows
    overlaps  [runs, k, N]   ⟨w_j, w*⟩ of every neuron (for r > 1 directions [runs, k, N, r]; without a runs axis if the
                             network had none)
    """

    samples: np.ndarray
    networks: tuple
    overlaps: np.ndarray


def record_grid(steps, records):
    """About `records` whole numbers from 0 to `steps`, log-spaced, each once."""
    grid = np.unique(np.round(np.geomspace(1, steps, max(records - 1, 2))).astype(np.int64))
    return np.concatenate([[0], grid])


class RunState:
    """Which runs still move: one that diverged or reached `stop_at` stays where it is. Masks [runs], no host reads."""

    def __init__(self, m, stop_at):
        self.stop_at = stop_at
        self.diverged = torch.zeros(len(m), dtype=torch.bool, device=m.device)
        self.stopped = torch.zeros_like(self.diverged)
        self.note(m)

    def moving(self, witness):
        """Mark runs whose `witness` [runs] is not finite as diverged; return the mask of runs that take this step."""
        self.diverged = self.diverged | ~torch.isfinite(witness)
        return ~(self.diverged | self.stopped)

    def note(self, m):
        """Mark runs whose overlap m [runs] has reached the stopping level."""
        if self.stop_at is not None:
            self.stopped = self.stopped | (m.abs() >= self.stop_at)


class Recorder:
    """Collects a tensor program's overlaps block by block: log-spaced records, and first passages at every step."""

    def __init__(self, m, steps, records):
        """`m` [runs, r] holds the overlaps at the start."""
        self.samples = record_grid(steps, records)
        self.steps, self.seen = steps, 0
        self.overlaps = m.new_empty(m.shape[0], len(self.samples), m.shape[1])
        self.overlaps[:, 0] = m
        self.passages = torch.full((*m.shape, LEVELS + 1), torch.inf, device=m.device, dtype=torch.float64)
        self.best = torch.full_like(m, -1.0)
        self._pass(m.abs()[None], torch.zeros(1, device=m.device, dtype=torch.float64))

    def blocks(self, most):
        """Yield block sizes of at most `most` steps until all steps are done."""
        while self.seen < self.steps:
            yield int(min(self.steps - self.seen, max(1, most)))

    def add(self, history):
        """Take in the overlaps after each step of a block, history [block, runs, r]."""
        block = len(history)
        first, last = np.searchsorted(self.samples, [self.seen + 1, self.seen + block + 1])
        if last > first:
            rows = torch.as_tensor(self.samples[first:last] - self.seen - 1, device=history.device)
            self.overlaps[:, first:last] = history[rows].transpose(0, 1)
        times = torch.arange(self.seen + 1, self.seen + block + 1, device=history.device, dtype=torch.float64)
        self._pass(history.abs(), times)
        self.seen += block

    def add_curve(self, history, times, since):
        """Like `add` for a smooth curve given at arbitrary `times` [n] after `since`: passages are interpolated."""
        on_grid = torch.as_tensor(np.flatnonzero(np.isin(times, self.samples)), device=history.device)
        first = np.searchsorted(self.samples, times[0])
        self.overlaps[:, first : first + len(on_grid)] = history[on_grid].transpose(0, 1)
        self._pass(history.abs(), torch.as_tensor(times, device=history.device, dtype=torch.float64), since)

    def _pass(self, sizes, times, since=None):
        """Update first passages [runs, r, levels] with |m| = sizes [block, runs, r] at `times` [block]."""
        running = torch.cummax(torch.cat([self.best[None], sizes]), dim=0).values
        rows = running.permute(1, 2, 0).contiguous()
        levels = torch.arange(LEVELS + 1, device=sizes.device, dtype=sizes.dtype) / LEVELS
        # An overlap of 1 − 1e-16 counts as 1.
        levels = (levels - 4 * torch.finfo(sizes.dtype).eps).expand(*self.passages.shape).contiguous()
        # Index 0 is the state before the block: a level found there was passed earlier and keeps its time.
        first = torch.searchsorted(rows, levels)
        within = first.clamp(1, len(sizes))
        passed = times[within - 1]
        if since is not None:
            before = torch.cat([times.new_full((1,), since), times])[within - 1]
            low, high = rows.gather(-1, within - 1), rows.gather(-1, within)
            passed = torch.lerp(before, passed, ((levels - low) / (high - low)).clamp(0, 1).to(passed.dtype))
        is_new = (first > 0) & (first <= len(sizes))
        self.passages = torch.where(is_new, torch.minimum(self.passages, passed), self.passages)
        self.best = running[-1]

    def finish(self, diverged, d, lr):
        """Build the result."""
        return finish(self.samples, self.overlaps, self.passages, diverged, d, lr)


def finish(samples, overlaps, passages, diverged, d, lr):
    """Build the result on the host from tensors or arrays; warn about runs that diverged.

    overlaps [runs, records, r] loses its last axis when r = 1.
    """
    arrays = [to_host(a) if isinstance(a, torch.Tensor) else a for a in (overlaps, passages, diverged)]
    overlaps, passages, diverged = arrays
    overlaps = overlaps[..., 0] if overlaps.shape[-1] == 1 else overlaps
    _warn_of(diverged, d, lr)
    return OverlapResult(samples, overlaps, passages, diverged, d, lr)


def _warn_of(diverged, d, lr):
    if isinstance(diverged, np.ndarray) and diverged.any():
        warnings.warn(
            f"{int(diverged.sum())} of {len(diverged)} runs diverged (lr = {lr:g} is too large for d = {d}); "
            "they stay at their last finite state, see result.diverged",
            RuntimeWarning,
            stacklevel=5,
        )


@dataclass(frozen=True)
class SpikedResult:
    r"""One neuron on inputs of covariance Σ = I + θμμᵀ, as a flow (`flow.spiked`) or on a sample (`sgd.spiked`).

    times        [runs, T]   time of the flow at each record, beginning with 0
    teacher      [runs, T]   ⟨w, β⟩/|w|
    spike        [runs, T]   ⟨w, μ⟩/|w|
    correlation  [runs, T]   u = ⟨w, Σβ⟩/(|Σ^{1/2}w| |Σ^{1/2}β|), between what the neuron sees and what the label sees
    diverged     [runs]      True where the run left the range of floating-point numbers and stopped there
    """

    times: np.ndarray
    teacher: np.ndarray
    spike: np.ndarray
    correlation: np.ndarray
    diverged: np.ndarray
    d: int
    theta: float
    alignment: float

    def time_to_reach(self, level):
        """Time at which |u| first reached `level` in (0, 1], interpolated between records; inf where it never did."""
        level = checks.fraction("level", level)
        size = np.abs(self.correlation)
        found = size >= level
        last = np.where(found.any(axis=1), found.argmax(axis=1), 0)
        first = np.maximum(last - 1, 0)
        rows = np.arange(len(size))
        low, high = size[rows, first], size[rows, last]
        part = np.where(last > 0, (level - low) / np.where(high > low, high - low, 1.0), 0.0)
        time = self.times[rows, first] + part * (self.times[rows, last] - self.times[rows, first])
        return np.where(found.any(axis=1), time, np.inf)


def finish_spiked(times, teacher, spike, correlation, diverged, d, theta, alignment):
    """Build a `SpikedResult` on the host from tensors; warn about runs that diverged."""
    arrays = [to_host(value) for value in (times, teacher, spike, correlation, diverged)]
    if isinstance(arrays[-1], np.ndarray) and arrays[-1].any():
        warnings.warn(
            f"{int(arrays[-1].sum())} of {len(arrays[-1])} runs diverged (d = {d}, theta = {theta:g}); they stay at "
            "their last finite state, see result.diverged",
            RuntimeWarning,
            stacklevel=3,
        )
    return SpikedResult(*arrays, d, theta, alignment)


@dataclass(frozen=True)
class LangevinResult:
    """Noisy gradient descent of a mean-field network (`sgd.langevin`).

    network   the trained networks, a `nets.TwoLayer` of `runs` networks (or one, if the data had no runs axis)
    steps     [T]         steps after which the loss was recorded
    losses    [runs, T]   empirical loss without the regularisation (or [T])
    diverged  [runs]      True where the run left the range of floating-point numbers
    """

    network: object
    steps: np.ndarray
    losses: np.ndarray
    diverged: np.ndarray


def finish_langevin(network, steps, losses, diverged, lr):
    """Build a `LangevinResult` on the host; warn about runs that diverged."""
    losses, diverged = to_host(losses), to_host(diverged)
    if isinstance(diverged, np.ndarray) and diverged.any():
        warnings.warn(
            f"{int(diverged.sum())} of {diverged.size} runs diverged (lr = {lr:g} is too large); they stay at their "
            "last finite state, see result.diverged",
            RuntimeWarning,
            stacklevel=3,
        )
    return LangevinResult(network, steps, losses, diverged)


@dataclass(frozen=True)
class SpikedGradient:
    """The direction of a gradient G on spiked inputs x ~ N(0, Σ), see `exact.spiked_gradient`.

    teacher      [runs]  squared cosine of G and β              spike  [runs]  squared cosine of G and μ
    correlation  [runs]  squared correlation of ⟨G, x⟩, what a neuron along G sees, with z, what the label sees
    """

    teacher: np.ndarray
    spike: np.ndarray
    correlation: np.ndarray


@dataclass(frozen=True)
class AdditiveResult:
    """A network in layer-wise training on an additive target of M tasks. Without a runs axis if the network had none.

    samples   [k]               samples seen at each moment that was asked for
    networks  k networks        `nets.TwoLayer`, with unit rows
    overlaps  [runs, k, N, M]   ⟨w_j, θ_m⟩ of every neuron with every task
    seen      [T + 1]           samples seen after each step, from 0 on
    best      [runs, T + 1, M]  max_j |⟨w_j, θ_m⟩| after each step
    diverged  [runs]            True where a neuron left the range of floating-point numbers; it stays where it was
    """

    samples: np.ndarray
    networks: tuple
    overlaps: np.ndarray
    seen: np.ndarray
    best: np.ndarray
    diverged: np.ndarray

    def task_times(self, level, keep=False):
        """Samples seen when some neuron first had |overlap| ≥ `level` with each task: [runs, M]; inf where never.

        keep=True asks that from then on, up to the end of the run, some neuron always had it: a step so large that
        overlaps come and go finds nothing.
        """
        reached = self.best >= checks.fraction("level", level)
        if keep:
            reached = np.logical_and.accumulate(reached[..., ::-1, :], axis=-2)[..., ::-1, :]
        first = self.seen[reached.argmax(axis=-2)].astype(float)
        return np.where(reached.any(axis=-2), first, np.inf)

    def samples_to_find(self, level, share=1.0, keep=False):
        """Samples seen when at least the fraction `share` of all tasks had been found: [runs]; inf where never."""
        times = np.sort(self.task_times(level, keep), axis=-1)
        return times[..., math.ceil(checks.fraction("share", share) * times.shape[-1] - 1e-9) - 1]

    def found(self, level):
        """Fraction of the tasks that some neuron had found by then, at `level`: [runs, T + 1], never falling."""
        return (self.task_times(level)[..., None, :] <= self.seen[:, None]).mean(axis=-1)


def finish_additive(samples, networks, overlaps, seen, best, diverged, d):
    """Build an `AdditiveResult`; warn about runs that diverged."""
    diverged = to_host(diverged)
    if isinstance(diverged, np.ndarray) and diverged.any():
        warnings.warn(
            f"{int(diverged.sum())} of {diverged.size} networks have neurons that diverged (lr is too large for "
            f"d = {d}, or the transformed label is not finite); these stay where they were, see result.diverged",
            RuntimeWarning,
            stacklevel=3,
        )
    return AdditiveResult(samples, networks, overlaps, seen, best, diverged)


@dataclass(frozen=True)
class ThreeLayerResult:
    """A three-layer network after layer-wise training on n samples, in `runs` repetitions: `sgd.train_three_layer`.

    scenario  "I", "II" or "III"                   network  the trained `nets.ThreeLayer`
    errors    [runs]              mean squared test error over the variance of the labels
    overlaps  [runs, steps + 1]   fraction of the first layer's directions in the span of W*, step by step
    shallow   [runs, k + 1]       test error of the two-layer network made of the first layer and a linear head, at the
                                  start and after each of the k preconditioned steps
    branches  [runs, steps + 1, r]  R² of h*_i given the learned second-layer directions, step by step (first entry:
                                  r untrained neurons)
    diverged  [runs]              True where the error is not finite; it is then set to infinity
    d, n                          dimension and number of samples, the held-out ones included
    Without a runs axis in network and target, the runs axis is missing here too.
    """

    scenario: str
    network: object
    errors: np.ndarray
    overlaps: np.ndarray
    shallow: np.ndarray
    branches: np.ndarray
    diverged: np.ndarray
    d: int
    n: int


def warn_of_infinite_errors(diverged, d, n):
    """Say how many runs of a layer-wise training have no finite error; `diverged` [runs] or one truth value."""
    if isinstance(diverged, np.ndarray) and diverged.any():
        warnings.warn(
            f"{int(diverged.sum())} of {diverged.size} runs diverged (d = {d}, n = {n}): their features are not "
            "finite, see result.diverged",
            RuntimeWarning,
            stacklevel=4,
        )
