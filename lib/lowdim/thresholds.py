r"""Weak-recovery thresholds: is a target trivial, easy or hard for a learner that knows it?

The model: y = g(h) + t ξ with h = (⟨w*_1, x⟩, …, ⟨w*_r, x⟩), x ~ N(0, I_d), and r ≤ 3 hidden orthonormal directions.
The learner knows g and t, not the directions, and has n = α d samples. If E[h | y] ≠ 0, any α > 0 tells something.
Otherwise weak recovery begins at α_c, where 1/α_c is the top eigenvalue of M ↦ E[G M G], G = E[h hᵀ − I | y], over
positive semidefinite M (Troiani et al. 2025). The public names are those of `lowdim.amp`.
"""

import functools
import itertools
import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from lowdim import checks, functions, queries, targets

MOST_DIRECTIONS = 3


@dataclass(frozen=True)
class Model:
    """A target with its noise: y = g(h + s ξ) + t ξ for h [..., r] (a last axis also for r = 1)."""

    target: targets.Target
    noise: float

    @property
    def r(self):
        """Number of hidden directions."""
        return self.target.directions

    @property
    def inside(self):
        """Standard deviation s of the noise inside the link."""
        return self.target.noise_inside

    @property
    def is_noisy(self):
        """Whether the label is random once h is known."""
        return bool(self.noise or self.inside)

    def link(self, h):
        """The noiseless label g(h) for h [..., r] (NumPy or torch)."""
        g = self.target.noiseless or self.target.vectorised
        return g(h[..., 0]) if self.r == 1 else g(h)

    def labels(self, h, xi=None):
        """Labels for h [..., r] and standard Gaussians ξ [...] (not needed without noise)."""
        if not self.is_noisy:
            return self.link(h)
        return self.link(h + self.inside * xi[..., None]) + self.noise * xi


def model_of(target, r, noise):
    """The `Model` of a name, a `Target` or a callable g(h), checked."""
    noise = checks.not_negative("noise", noise)
    if r is not None and checks.whole_number("r", r, least=1) > MOST_DIRECTIONS:
        raise ValueError(f"r is {r}; at most {MOST_DIRECTIONS} directions are possible here")
    if isinstance(target, str):
        target = targets.get(target)
    if not isinstance(target, targets.Target):
        target = _custom(target, r)
    if r is not None and target.directions != r:
        raise ValueError(f"r is {r}; target {target.name!r} has {target.directions} directions")
    if target.directions > MOST_DIRECTIONS:
        raise ValueError(f"target {target.name!r} has {target.directions} directions; at most 3 are possible here")
    if noise and target.noise_inside:
        raise ValueError(f"noise is {noise}; target {target.name!r} has noise inside its link already: noise must be 0")
    return Model(target, math.hypot(noise, target.noise_outside))


def _custom(f, r):
    """A target from a callable: h […] → […] or h [..., 1] → […] for r = 1, h [..., r] → […] for more directions."""
    if not callable(f):
        raise ValueError(f"target is {f!r}; it must be a name, a target, or a vectorised function of h [..., r]")
    fitting = [k for k in range(1, MOST_DIRECTIONS + 1) if _accepts(f, k) is not None]
    if r is None:
        if 1 in fitting and _accepts(f, 1) == "elements":
            r = 1
        elif fitting:
            r = fitting[0]
            if len(fitting) > 1 and _uses(f, fitting[1]):
                raise ValueError("r is None; this function accepts several numbers of directions, so r must be given")
        else:
            r = 1
    if r == 1 and _accepts(f, 1) == "vectors":
        return targets.Target("custom", "", 1, functions.vectorised(lambda z: f(z[..., None]), "target"), math.nan)
    return targets.Target("custom", "", r, functions.vectorised(f, "target", r), math.nan)


def _accepts(f, r):
    """How f takes r directions: "elements" (h […], r = 1), "vectors" (h [..., r]), or None."""
    shapes = {"elements": (5,), "vectors": (5, 1)} if r == 1 else {"vectors": (5, r)}
    for kind, shape in shapes.items():
        points = np.resize(np.array(functions.PROBE), shape)
        for values in (points, torch.tensor(points, requires_grad=True)):
            try:
                if tuple(f(values).shape) == (5,):
                    return kind
            except Exception:  # written for the other kind of array
                continue
    return None


def _uses(f, r):
    """Whether f(h), h [..., r], depends on its last coordinate."""
    for kind in (np.array, torch.tensor):
        points = np.resize(np.array(functions.PROBE), (5, r))
        moved = points.copy()
        moved[:, -1] = -1.7 * points[:, -1] + 0.3
        try:
            return not np.allclose(np.asarray(f(kind(points))), np.asarray(f(kind(moved))))
        except Exception:
            continue
    return True


# -------------------------------------------------------------------------------------------------------- thresholds

BINS, NOISY_BINS, LINE_BINS = 3200, 400, 400  # of the label, one direction
# Edges of the label's bins in normal scores, several directions: fine in the middle, coarse in the tails.
SCORES = np.concatenate([np.linspace(-4.6, -2.8, 65), np.linspace(-2.8, 2.8, 3073)[1:-1], np.linspace(2.8, 4.6, 65)])
REPLICATES = 8
POINTS = 16  # 2^16 quasi-random points a replicate
NODES = {1: 40, 2: 16}  # nodes for each known direction, when one or two are known
ACCURACY = 0.002  # relative standard error asked of a threshold with several directions
# What refinement may cost, counted in replicates and not in seconds, so that every machine gives the same answer.
MOST_REPLICATES, REPLICATES_OF_A_STEP = 32, 64
# λ = 1/α_c below FAINT, or within four standard errors of zero, counts as zero; E|E[h | y]|² likewise. A known
# direction that is no axis is right to about 1e-3 at worst: that shows as E[h | y, h_U] ≠ 0 where there is none.
FAINT = 2e-5
FIRST_FAINT, FIRST_FAINT_OFF_AXES = 1e-6, 1e-2
SAME_EIGENVALUE = 0.02


@dataclass(frozen=True)
class Step:
    """One step of a chain: directions that open together once all earlier ones are known.

    threshold  samples per dimension from which they are found (0.0: at once, inf: never with n = O(d))
    subspace   [r, k], an orthonormal basis of the directions
    kind       "trivial", "easy" or "hard"
    """

    threshold: float
    subspace: np.ndarray
    kind: str


@dataclass(frozen=True)
class Classification:
    """What AMP can do with a target; see `classify`.

    kind      "trivial" (E[h | y] ≠ 0), "easy" (a finite threshold) or "hard" (none)
    alpha_c   weak-recovery threshold: 0.0, a number, or inf
    subspace  [r, k], an orthonormal basis of what is learned first (k = 0 when hard)
    chain     the `Step`s; each threshold is conditional: all earlier directions are taken as known
    """

    kind: str
    alpha_c: float
    subspace: np.ndarray
    chain: tuple


def weak_recovery_threshold(target, r=None, noise=0.0):
    """The α_c such that n > α_c d samples let AMP leave the equator: 0.0 if trivial, math.inf if hard.

    target  a name, a target, or a vectorised callable g(h) with h of shape [..., r] (or elementwise for r = 1)
    r       number of directions, at most 3; needed when a callable does not tell
    noise   standard deviation t of Gaussian label noise (added to the target's own)

    1/α_c is the top eigenvalue of M ↦ E[G M G] over positive semidefinite M, G = E[h hᵀ − I | y]. One direction: level
    sets are found exactly (`queries.label_moments`), relative error below 1e-3. Two or three: quasi-Monte Carlo with a
    product of independent replicates, so that the noise of G has no bias, refined until the standard error is 0.2 %.
    A threshold beyond about 10⁴ (10⁸ for one direction) is not told apart from infinity.
    """
    model = model_of(target, r, noise)
    if model.r == 1:
        return _single_threshold(model)
    return _first_step(model, np.zeros((model.r, 0)), threshold_only=True).threshold


def classify(target, r=None, noise=0.0):
    """Classify a target: a `Classification` with kind, α_c, what is learned first, and the chain of thresholds.

    Directions that are known count as part of the label for those that are not: after h_U is found,
    G = E[h h ᵀ − I | y, h_U] on the remaining directions decides what opens next (a grand staircase). A direction with
    E[h_j | y, h_U] ≠ 0 opens at once, with conditional threshold 0. Arguments as in `weak_recovery_threshold`.
    """
    model = model_of(target, r, noise)
    known, chain = np.zeros((model.r, 0)), []
    while known.shape[1] < model.r:
        if model.r == 1:
            threshold = _single_threshold(model)
            step = Step(threshold, np.ones((1, 1)), _kind(threshold))
        else:
            step = _first_step(model, known)
        chain.append(step)
        if step.kind == "hard":
            break
        known = np.concatenate([known, step.subspace], axis=1)
    first = chain[0]
    subspace = first.subspace[:, :0] if first.kind == "hard" else first.subspace
    return Classification(first.kind, first.threshold, subspace, tuple(chain))


def _kind(threshold):
    return "trivial" if threshold == 0 else "hard" if math.isinf(threshold) else "easy"


def _single_threshold(model):
    """α_c for one direction: 1/(2 λ_2²) from the moments of the label's level sets."""
    target = model.target
    own = isinstance(target.noise_inside, float) and target.noise_inside
    f = target if own else target.vectorised
    moments = queries.label_moments(f, 2, noise=0.0 if own else model.noise, bins=NOISY_BINS if model.noise else BINS)
    size = np.abs(moments.below).max(axis=0, initial=0.0)
    for k, answer in ((1, 0.0), (2, None)):
        if size[k] > queries.SIGNAL:
            return float(1 / (2 * moments.strength[2])) if answer is None else answer
        if size[k] > queries.ZERO:
            raise ValueError(
                f"target has E[h_{k} 1{{y ≤ c}}] up to {size[k]:.1e}, between rounding and signal: whether it is "
                f"{'trivial' if k == 1 else 'easy'} cannot be decided numerically"
            )
    return math.inf


def _first_step(model, known, threshold_only=False):
    """The next `Step` of the chain when the directions `known` [r, k] are given.

    `threshold_only`: the subspace of a trivial step, which has no threshold to refine, may be rough.
    """
    free = np.eye(model.r) if known.shape[1] == 0 else _complement(known)
    nodes, weights = _known_nodes(known.shape[1])
    if free.shape[1] == 1 and not model.is_noisy:
        try:
            return _last_step(model, known, free, nodes, weights)
        except ValueError:
            pass  # too many level sets for root finding: points and bins below need none
    used = 0
    while True:
        estimate = _refined(model, known, free, nodes, weights)
        found = estimate.space()
        used += len(estimate.mass)
        if threshold_only and estimate.is_trivial():
            break
        if found is None or _on_axes(found) or estimate.is_aligned(found) or used >= REPLICATES_OF_A_STEP:
            break
        # Points are symmetric under flips of the axes of `free`: along the right axes the noise of the others cancels.
        free = free @ np.concatenate([found, _complement(found)], axis=1)
    top, error = estimate.top()
    if estimate.is_trivial():
        return Step(0.0, free @ found, "trivial")
    if found is None:
        return Step(math.inf, free, "hard")
    if error > 0.01 * top:
        warnings.warn(f"α_c = {1 / top:.4g} has a relative standard error of {error / top:.1%}", stacklevel=4)
    return Step(1 / top, _tidy(free @ found), "easy")


def _refined(model, known, free, nodes, weights):
    """Moments with as many replicates as the accuracy asks for, or as are allowed."""
    estimate = _Moments(model, known, free, nodes, weights)
    while True:
        estimate.add(REPLICATES)
        top, error = estimate.top()
        settled = error <= ACCURACY * top or top + 4 * error < FAINT
        if estimate.is_trivial() or settled or len(estimate.mass) >= MOST_REPLICATES:
            return estimate


def _last_step(model, known, free, nodes, weights):
    """The step of a single remaining direction, from its level sets at every node of the known ones."""
    first = second = 0.0
    for node, weight in zip(nodes, weights, strict=True):
        start = node @ known.T
        line = functions.Vectorised(lambda z, start=start: model.link(start + z[..., None] * free[:, 0]), "numpy")
        moments = queries.label_moments(line, 2, bins=LINE_BINS)
        first, second = first + weight * moments.strength[1], second + weight * 2 * moments.strength[2]
    threshold = 0.0 if first > _first_faint(known) else 1 / second if second > FAINT else math.inf
    return Step(float(threshold), free, _kind(threshold))


def _known_nodes(k):
    """Nodes [C, k] and weights [C] of the midpoint rule for N(0, I_k)."""
    if k == 0:
        return np.zeros((1, 0)), np.ones(1)
    edges = np.linspace(-4.8, 4.8, NODES[k] + 1)
    c = (edges[1:] + edges[:-1]) / 2
    nodes = np.stack(np.meshgrid(*[c] * k, indexing="ij"), axis=-1).reshape(-1, k)
    weights = np.exp(-np.sum(nodes**2, axis=1) / 2)
    return nodes, weights / weights.sum()


def _complement(basis):
    """Orthonormal basis of the complement of the columns of `basis`; coordinate axes where they span it."""
    r, k = basis.shape
    rest = np.linalg.svd(np.eye(r) - basis @ basis.T)[0][:, : r - k]
    return _tidy(rest)


def _on_axes(basis):
    return np.allclose(np.sort(np.abs(basis), axis=0)[:-1], 0)


def _first_faint(known):
    """The level below which E|E[h | y, h_U]|² counts as zero when the directions `known` are given."""
    return FIRST_FAINT if _on_axes(known) else FIRST_FAINT_OFF_AXES


def _tidy(basis):
    """The same space with coordinate axes as basis where they span it; the largest entries positive."""
    share = np.sum(basis**2, axis=1)
    axes = np.flatnonzero(share > 1 - 1e-9)
    if len(axes) == basis.shape[1]:
        return np.eye(len(basis))[:, axes]
    return basis * np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(basis.shape[1])])


class _Moments:
    """E[h | y] and E[h hᵀ − I | y] on bins of the label, from independent replicates of quasi-random points.

    For each replicate j and bin b let s_b^j be the mean of (h hᵀ − I) 1{y ∈ b}, and G_b the conditional mean that the
    other replicates find. Their noises are independent, so that Σ_b s_b^j ⊗ G_b estimates E[G ⊗ G] without bias.
    """

    def __init__(self, model, known, free, nodes, weights):
        self.model, self.known, self.free, self.nodes, self.weights = model, known, free, nodes, weights
        self.m = free.shape[1]
        self.power, self.scores = (POINTS, SCORES) if len(nodes) == 1 else (POINTS - 4, SCORES[::8])
        # A known direction is exact if it is an axis, and else right to about 1e-5: finer labels would show the error.
        self.resolution = 1e-9 if _on_axes(known) else 1e-3
        self.edges = [None] * len(nodes)
        self.mass, self.one, self.two = [], [], []

    def add(self, replicates):
        """Draw more replicates; each appends its sums over all nodes and bins."""
        flips = np.array(list(itertools.product([1.0, -1.0], repeat=self.m)))
        for _ in range(replicates):
            u = ndtri(sobol(self.m + 1, self.power, 1000 + len(self.mass)))
            z = u[:, : self.m] / np.sqrt(np.mean(u[:, : self.m] ** 2, axis=0))
            h = (flips[:, None, :] * z).reshape(-1, self.m)
            xi = np.tile(u[:, -1], len(flips)) if self.model.is_noisy else None
            parts = [self._bin(i, h, xi) for i in range(len(self.nodes))]
            for store, values in zip((self.mass, self.one, self.two), zip(*parts, strict=True), strict=True):
                store.append(np.concatenate([w * v for w, v in zip(self.weights, values, strict=True)]))

    def _bin(self, i, h, xi):
        """Mass [B], first moments [B, m] and second moments minus identity [B, m²] of the label's bins at one node."""
        y = np.asarray(self.model.labels(h @ self.free.T + self.nodes[i] @ self.known.T, xi), dtype=float)
        if not np.isfinite(y).all():
            raise ValueError("target returns values that are not finite")
        if self.edges[i] is None:
            self.edges[i] = _label_edges(y, self.scores, self.resolution)
        place, bins = np.searchsorted(self.edges[i], y, side="right"), len(self.edges[i]) + 1
        mass = np.bincount(place, minlength=bins) / len(y)
        one = np.stack([np.bincount(place, h[:, a], bins) for a in range(self.m)], axis=1) / len(y)
        two = np.empty((bins, self.m, self.m))
        for a, b in itertools.combinations_with_replacement(range(self.m), 2):
            two[:, a, b] = two[:, b, a] = np.bincount(place, h[:, a] * h[:, b], bins) / len(y) - mass * (a == b)
        return mass, one, two.reshape(bins, -1)

    def _product(self, sums, skip=None):
        """The mean over j of Σ_b s_b^j ⊗ S_b/P_b [q, q] (S, P: sums over the other replicates), without `skip`."""
        keep = [j for j in range(len(sums)) if j != skip]
        s, mass = np.stack([sums[j] for j in keep]), np.stack([self.mass[j] for j in keep])
        others, weight = s.sum(0) - s, mass.sum(0) - mass
        means = np.divide(others, weight[..., None], out=np.zeros_like(others), where=weight[..., None] > 0)
        return np.einsum("jbp,jbq->pq", s, means, optimize=True) / len(keep)

    def _operator(self, skip=None):
        """The matrix [m², m²] of M ↦ E[G M G] on vec(M)."""
        k = self._product(self.two, skip).reshape((self.m,) * 4)  # k[a, c, b, d] = E[G_ac G_bd]
        matrix = k.transpose(0, 2, 1, 3).reshape(self.m**2, self.m**2)  # row (a, b), column (c, d)
        return (matrix + matrix.T) / 2

    def top(self):
        """Top eigenvalue λ of M ↦ E[G M G] and its jackknife standard error."""
        return self._jackknife(lambda skip: _symmetric_eigen(self._operator(skip), self.m)[0][-1])

    def first(self):
        """E|E[h | y]|² and its jackknife standard error."""
        return self._jackknife(lambda skip: np.trace(self._product(self.one, skip)))

    def _jackknife(self, statistic):
        count = len(self.mass)
        each = np.array([statistic(j) for j in range(count)])
        return float(statistic(None)), float(math.sqrt((count - 1) / count * np.sum((each - each.mean()) ** 2)))

    def is_trivial(self):
        """Whether E[h | y] ≠ 0, beyond the noise."""
        first, error = self.first()
        return first > max(4 * error, _first_faint(self.known))

    def space(self):
        """Orthonormal basis [m, k] of what opens first; None if nothing does.

        For E[h | y] ≠ 0 its span; else the range of the projection of I on the top eigenspace, which is the largest
        positive semidefinite element of that space.
        """
        if self.is_trivial():
            return _range(self._product(self.one))
        top, error = self.top()
        if top < max(4 * error, FAINT):
            return None
        values, vectors = _symmetric_eigen(self._operator(), self.m)
        space = vectors[:, values > (1 - SAME_EIGENVALUE) * values[-1]]
        return _range((space @ (space.T @ np.eye(self.m).ravel())).reshape(self.m, self.m))

    def is_aligned(self, found):
        """Whether `found` is spanned by axes of `free` to within 1e-5 (or is the whole space)."""
        share = np.sort(np.sum(found**2, axis=1))[::-1]
        return bool(np.all(share[: found.shape[1]] > 1 - 1e-10))


def _range(matrix):
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return _tidy(vectors[:, values > 0.03 * values[-1]][:, ::-1])


def _symmetric_eigen(matrix, m):
    """Eigenvalues (ascending) and eigenvectors [m², ·] of an operator on vec(M), on symmetric M only."""
    basis = []
    for a, b in itertools.combinations_with_replacement(range(m), 2):
        e = np.zeros((m, m))
        e[a, b] = e[b, a] = 1.0
        basis.append(e.ravel() / np.linalg.norm(e))
    basis = np.array(basis).T
    values, vectors = np.linalg.eigh(basis.T @ matrix @ basis)
    return values, basis @ vectors


def _label_edges(y, scores, resolution):
    """Edges that cut labels into bins: at normal scores of their ranks, or between the values of a discrete label.

    Labels closer than `resolution` (in units of the largest) count as equal; atoms get bins of their own.
    """
    y = np.sort(y)
    gap = resolution * max(abs(y[0]), abs(y[-1]), 1e-300)
    cuts = np.flatnonzero(np.diff(y) > gap)
    first, last = np.concatenate([[0], cuts + 1]), np.concatenate([cuts, [len(y) - 1]])
    if len(cuts) < 64 and (y[last] - y[first]).max() <= 50 * gap:
        return (y[cuts] + y[cuts + 1]) / 2
    edges = y[np.minimum((ndtr(scores) * len(y)).astype(int), len(y) - 1)]
    atoms = np.unique(edges[:-1][np.diff(edges) <= gap])
    edges = np.sort(np.concatenate([edges, atoms - 2 * gap, atoms + 2 * gap]))
    return edges[np.concatenate([[True], np.diff(edges) > gap / 2])]


@functools.lru_cache(maxsize=8)
def sobol(dimension, power, seed):
    """2^power scrambled Sobol points in (0, 1)^dimension."""
    points = qmc.Sobol(dimension, seed=seed).random_base2(power)
    points = np.clip(points, 2.0**-40, 1 - 2.0**-40)
    points.setflags(write=False)
    return points
