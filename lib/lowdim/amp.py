r"""Bayes-AMP for multi-index models: what can be learned from n = αd samples when the link is known.

The model: y = g(h) + t ξ with h = (⟨w*_1, x⟩, …, ⟨w*_r, x⟩), x ~ N(0, I_d), and r ≤ 3 hidden orthonormal directions.
The learner knows g and t, not the directions. With X = x/√d [n, d] and W = √d ŵ [d, r], Bayes-AMP for a Gaussian
prior is

    Ω = X W − g(y, Ω_before, V_before) V,     A = −(1/d) Σ_i ∂_ω g(y_i, ω_i, V),
    B = Xᵀ g(y, Ω, V) + W A,                   V = (I + A)^{−1},    W = B V,

with g(y, ω, V) = V^{−1}(E[h | y] − ω) for h ~ N(ω, V). Its overlaps M = Wᵀ W*/d follow state evolution,

    M̂ = α E[g gᵀ],   M = M̂ (I + M̂)^{−1},     ω ~ N(0, M),  V = I − M,

which is unstable at M = 0 beyond the weak-recovery threshold: 1/α_c is the top eigenvalue of M ↦ E[G M G],
G = E[h hᵀ − I | y], over positive semidefinite M (Troiani et al. 2025).
"""

import functools
import itertools
import math
import time
import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from lowdim import checks, functions, queries, targets
from lowdim import device as devices
from lowdim.progress import bar

__all__ = [
    "AMPResult",
    "Channel",
    "Classification",
    "Evolution",
    "SpectralStart",
    "Step",
    "channel",
    "classify",
    "generalisation_error",
    "overlap_map",
    "run",
    "spectral_start",
    "state_evolution",
    "weak_recovery_threshold",
]

MOST_DIRECTIONS = 3
INITS = ("random", "spectral", "informed")
# Eigenvalues of V = I − M are kept above TINY in state evolution: below it a direction is known for all purposes.
TINY = 1e-10
# AMP denoises with V + EASE · I, as if every field had noise of that variance: it never divides by less than rounding.
EASE = 1e-9
# Nodes per sample times samples that a denoiser handles at once (memory of some 100 MB).
BLOCK = 1_500_000
# Design matrices larger than this (bytes) are drawn and used in groups of runs.
MOST_BYTES = 600_000_000

# ------------------------------------------------------------------------------------------------------------ models


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


def _model(target, r, noise):
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
PATIENCE = 10.0  # seconds that refinement may take
# λ = 1/α_c below FAINT, or within four standard errors of zero, counts as zero.
FAINT = 2e-5
FIRST_FAINT = 1e-6
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
    model = _model(target, r, noise)
    if model.r == 1:
        return _single_threshold(model)
    return _first_step(model, np.zeros((model.r, 0))).threshold


def classify(target, r=None, noise=0.0):
    """Classify a target: a `Classification` with kind, α_c, what is learned first, and the chain of thresholds.

    Directions that are known count as part of the label for those that are not: after h_U is found,
    G = E[h h ᵀ − I | y, h_U] on the remaining directions decides what opens next (a grand staircase). A direction with
    E[h_j | y, h_U] ≠ 0 opens at once, with conditional threshold 0. Arguments as in `weak_recovery_threshold`.
    """
    model = _model(target, r, noise)
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
            return 1 / (2 * moments.strength[2]) if answer is None else answer
        if size[k] > queries.ZERO:
            raise ValueError(
                f"target has E[h_{k} 1{{y ≤ c}}] up to {size[k]:.1e}, between rounding and signal: whether it is "
                f"{'trivial' if k == 1 else 'easy'} cannot be decided numerically"
            )
    return math.inf


def _first_step(model, known):
    """The next `Step` of the chain when the directions `known` [r, k] are given."""
    free = np.eye(model.r) if known.shape[1] == 0 else _complement(known)
    nodes, weights = _known_nodes(known.shape[1])
    if free.shape[1] == 1 and not model.is_noisy:
        try:
            return _last_step(model, known, free, nodes, weights)
        except ValueError:
            pass  # too many level sets for root finding: points and bins below need none
    began = time.perf_counter()
    while True:
        estimate = _refined(model, known, free, nodes, weights, began)
        found = estimate.space()
        if found is None or _on_axes(found) or estimate.is_aligned(found) or time.perf_counter() - began > PATIENCE:
            break
        # Points are symmetric under flips of the axes of `free`: along the right axes the noise of the others cancels.
        free = free @ np.concatenate([found, _complement(found)], axis=1)
    top, error = estimate.top()
    if estimate.is_trivial():
        return Step(0.0, free @ found, "trivial")
    if found is None:
        return Step(math.inf, free, "hard")
    if error > 0.005 * top:
        warnings.warn(f"α_c = {1 / top:.4g} has a relative standard error of {error / top:.1%}", stacklevel=4)
    return Step(1 / top, _tidy(free @ found), "easy")


def _refined(model, known, free, nodes, weights, began):
    """Moments with as many replicates as the accuracy asks for, or as fit into the time."""
    estimate = _Moments(model, known, free, nodes, weights)
    while True:
        estimate.add(REPLICATES)
        top, error = estimate.top()
        settled = error <= ACCURACY * top or top + 4 * error < FAINT
        if estimate.is_trivial() or settled or time.perf_counter() - began > PATIENCE / 2:
            return estimate


def _last_step(model, known, free, nodes, weights):
    """The step of a single remaining direction, from its level sets at every node of the known ones."""
    first = second = 0.0
    for node, weight in zip(nodes, weights, strict=True):
        start = node @ known.T
        line = functions.Vectorised(lambda z, start=start: model.link(start + z[..., None] * free[:, 0]), "numpy")
        moments = queries.label_moments(line, 2, bins=LINE_BINS)
        first, second = first + weight * moments.strength[1], second + weight * 2 * moments.strength[2]
    threshold = 0.0 if first > FIRST_FAINT else 1 / second if second > FAINT else math.inf
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
            u = ndtri(_sobol(self.m + 1, self.power, 1000 + len(self.mass)))
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
        return first > max(4 * error, FIRST_FAINT if _on_axes(self.known) else 1e-2)

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
def _sobol(dimension, power, seed):
    """2^power scrambled Sobol points in (0, 1)^dimension."""
    points = qmc.Sobol(dimension, seed=seed).random_base2(power)
    points = np.clip(points, 2.0**-40, 1 - 2.0**-40)
    points.setflags(write=False)
    return points


# ---------------------------------------------------------------------------------------------------------- channels

REACH = 9.0  # level sets of one direction are searched on [−9, 9]
GRID = 4001
HALVINGS = 55
ORTHANT_NODES = 8
LINE_NODES, PLANE_NODES, COMMITTEE_NODES, PARITY_NODES = 121, 49, 21, 24
MOST_LINE_NODES = 1601
CLIP = 8.0  # standard deviations beyond which orthant probabilities are not followed
STEEPEST = 20.0  # bound on the gradient of log-probabilities of orthants, in those units


@dataclass(frozen=True)
class Channel:
    """What a label says about h when h ~ N(ω, V): the denoiser of a model; made by `channel`.

    `prepare(y)` turns labels [runs, n] into what the denoiser needs (done once, labels do not change). `posterior`
    maps (prepared, ω [runs, n, r], V [runs, r, r]) to mean [runs, n, r] and covariance [runs, n, r, r] of h given y.
    `nodes` is the number of points that it evaluates for a sample. `bounded` says for each direction whether a label
    leaves h spread out (discrete or noisy labels) instead of pinning it to points.
    """

    model: Model
    prepare: object = field(repr=False)
    posterior: object = field(repr=False)
    nodes: int = 1
    bounded: tuple = (False,)

    def denoise(self, prepared, omega, V):
        """g = V^{−1}(E[h | y] − ω) [runs, n, r] and its derivative V^{−1}(Cov[h | y] − V)V^{−1} [runs, n, r, r]."""
        runs, n = omega.shape[:2]
        rows = max(1, BLOCK // (runs * self.nodes))
        if rows >= n:
            mean, cov = self.posterior(prepared, omega, V)
        else:
            parts = [
                self.posterior(tuple(p[:, i : i + rows] for p in prepared), omega[:, i : i + rows], V)
                for i in range(0, n, rows)
            ]
            mean, cov = torch.cat([p[0] for p in parts], 1), torch.cat([p[1] for p in parts], 1)
        inverse = torch.linalg.inv(V)
        g = (mean - omega) @ inverse
        return g, inverse[:, None] @ (cov - V[:, None]) @ inverse[:, None]

    def g(self, y, omega, V):
        """The denoiser for labels y [runs, n] (tensors, float64); see `denoise`."""
        return self.denoise(self.prepare(y), omega, V)[0]


def channel(target, r=None, noise=0.0):
    """The `Channel` of a target. Arguments as in `weak_recovery_threshold`.

    One direction: any piecewise monotone link without noise (level sets by bisection, flat pieces as intervals), any
    link with noise (quadrature). Two: sign(h_1 h_2) in closed form; any function with label noise, or with at most 64
    values, by quadrature. Three: sign(h_1 h_2 h_3), f(h_1) + sign(h_1 h_2 h_3), and the noisy committee.
    """
    model = _model(target, r, noise)
    return _channel(model)


def _channel(model):
    name = _recognised(model)
    if model.r == 1:
        return _line_channel(model) if model.is_noisy else _level_channel(model)
    if name == "parity2" and not model.noise:
        return Channel(model, lambda y: (torch.sign(y),), _parity2_posterior, 1, (True, True))
    if name == "parity3" and not model.noise:
        nodes = 2 * PARITY_NODES * ORTHANT_NODES
        return Channel(model, lambda y: (torch.sign(y),), _parity3_posterior, nodes, (True, True, True))
    if name.endswith("+parity3") and not model.noise:
        return _sum_channel(model)
    if name == "committee":
        return _committee_channel(model)
    if model.r == 2:
        return _plane_channel(model)
    raise ValueError(
        f"target is {name!r} with r = 3 and noise = {model.noise}; with three directions a channel exists for parity3, "
        "He2+parity3, He4+parity3, square+parity3 (without noise) and committee"
    )


def _recognised(model):
    """The name of the target in the book that a function of several directions equals, else its own name."""
    h = ndtri(_sobol(model.r, 6, 7))
    values = np.asarray(model.link(h), dtype=float)
    for name in ("parity2", "parity3", "square+parity3", "He2+parity3", "He4+parity3"):
        known = targets.get(name)
        if known.directions == model.r and np.allclose(known(h.copy()), values, atol=1e-12):
            return name
    return model.target.name


def _moments(h, logits):
    """Mean [..., r] and covariance [..., r, r] of points h [..., K, r] with log-weights [..., K]."""
    p = torch.softmax(logits, dim=-1)[..., None]
    mean = (p * h).sum(-2)
    shifted = h - mean[..., None, :]
    return mean, (p * shifted).mT @ shifted


def _branches(f):
    """Monotone branches [(a, b)] and flat pieces [(a, b, value)] of a NumPy function on [−9, 9]."""
    z, values = queries._grid_with_extrema(f, GRID)
    z, values = z[np.abs(z) <= REACH], values[np.abs(z) <= REACH]
    size = np.abs(values).max() + 1e-300
    step = np.where(np.abs(np.diff(values)) <= 1e-12 * size, 0.0, np.sign(np.diff(values)))
    starts = np.flatnonzero(np.concatenate([[True], step[1:] != step[:-1]]))
    ends = np.concatenate([starts[1:], [len(step)]])
    monotone, flat = [], []
    for i, j in zip(starts, ends, strict=True):
        if step[i] == 0:
            if j - i > 3:  # shorter ties are the neighbourhood of an extremum
                flat.append([z[i], z[j], values[i]])
        else:
            monotone.append((z[i], z[j]))
    for piece in flat:  # a flat piece begins where the grid says only roughly: halve the last step
        for end, outside in ((0, -1), (1, 1)):
            inner, outer = piece[end], piece[end] + outside * (z[1] - z[0]) * 1.01
            if abs(inner) >= REACH:
                piece[end] = outside * math.inf
                continue
            for _ in range(HALVINGS):
                middle = (inner + outer) / 2
                same = abs(f(np.array([middle, middle]))[0] - piece[2]) <= 1e-12 * size
                inner, outer = (middle, outer) if same else (inner, middle)
            piece[end] = inner
    if len(monotone) > 200:
        raise ValueError("target has more than 200 monotone pieces; a channel needs fewer")
    return monotone, flat


def _roots(function, monotone, y):
    """Solutions h [..., K] of function(h) = y on each monotone branch, and log-weights −log|f'| (−inf where none)."""
    found, logs = [], []
    for a, b in monotone:
        left, right = torch.full_like(y, a), torch.full_like(y, b)
        low, high = function.torch(left), function.torch(right)
        rising = high > low
        inside = (y >= torch.minimum(low, high)) & (y <= torch.maximum(low, high))
        for _ in range(HALVINGS):
            middle = (left + right) / 2
            below = (function.torch(middle) < y) == rising
            left, right = torch.where(below, middle, left), torch.where(below, right, middle)
        h = (left + right) / 2
        slope = function.derivative(h).abs().clamp_min(1e-12)
        found.append(h)
        logs.append(torch.where(inside, -slope.log(), torch.full_like(y, -math.inf)))
    return torch.stack(found, -1), torch.stack(logs, -1)


def _level_channel(model):
    """One direction without noise: h lies on the level set of y, which is a few points or a few intervals."""
    function = model.target.vectorised
    monotone, flat = _branches(function.numpy)
    size = max([abs(v) for *_, v in flat], default=1.0)

    def prepare(y):
        h, logs = _roots(function, monotone, y) if monotone else (y[..., None], torch.zeros_like(y)[..., None])
        atom = torch.zeros_like(y)
        for number, (_, _, value) in enumerate(flat):
            atom = torch.where((y - value).abs() <= 1e-7 * (1 + size), torch.full_like(y, number + 1.0), atom)
        nowhere = torch.isinf(logs).all(-1, keepdim=True)
        return h, torch.where(nowhere, torch.zeros_like(logs), logs), atom

    def posterior(prepared, omega, V):
        h, logs, atom = prepared
        v = V[:, 0, 0][:, None]
        mean, cov = _moments(h[..., None], logs - (h - omega).square() / (2 * v[..., None]))
        if flat:
            inside = _interval_moments(flat, atom, omega[..., 0], v)
            held = atom > 0
            mean = torch.where(held[..., None], inside[0][..., None], mean)
            cov = torch.where(held[..., None, None], inside[1][..., None, None], cov)
        return mean, cov

    return Channel(model, prepare, posterior, max(1, len(monotone) + len(flat)), (not monotone,))


def _interval_moments(flat, atom, omega, v):
    """Mean and variance [runs, n] of N(ω, v) on the union of the intervals that share the label of piece `atom`."""
    deviation = v.sqrt()
    values = torch.tensor([value for *_, value in flat], dtype=omega.dtype, device=omega.device)
    mine = values[(atom.long() - 1).clamp_min(0)]
    parts = []
    for a, b, value in flat:
        low, high = (a - omega) / deviation, (b - omega) / deviation
        flip = high < 0  # measure distances from ω outwards: exp(−a²/2) is then factored out without loss
        near, far = torch.where(flip, -high, low), torch.where(flip, -low, high)
        belongs = (mine - value).abs() <= 1e-7 * (1 + values.abs().max())
        parts.append((near, far, torch.where(flip, -1.0, 1.0), belongs))
    shift = torch.stack([torch.where(m, near.clamp_min(0), torch.full_like(near, math.inf)) for near, _, _, m in parts])
    shift = shift.amin(0).square() / 2
    zero = torch.zeros_like(omega)
    z0, z1, z2 = zero, zero, zero
    for near, far, sign, belongs in parts:
        outside = near > 0
        positive = near.clamp_min(0)
        tail = 0.5 * torch.special.erfcx(positive / math.sqrt(2)) * torch.exp(shift - positive.square() / 2)
        end = torch.where(torch.isinf(far), zero, far)
        beyond = 0.5 * torch.special.erfcx(end.clamp_min(0) / math.sqrt(2)) * torch.exp(shift - end.square() / 2)
        beyond = torch.where(torch.isinf(far), zero, beyond)
        mass = torch.where(outside, tail - beyond, torch.special.ndtr(far) - torch.special.ndtr(near))
        start = torch.where(torch.isinf(near), zero, near)
        density_a = torch.where(torch.isinf(near), zero, torch.exp(shift - start.square() / 2) / math.sqrt(2 * math.pi))
        density_b = torch.where(torch.isinf(far), zero, torch.exp(shift - end.square() / 2) / math.sqrt(2 * math.pi))
        weight = belongs.to(omega.dtype)
        z0 = z0 + weight * mass
        z1 = z1 + weight * sign * (density_a - density_b)
        z2 = z2 + weight * (mass + start * density_a - end * density_b)
    z0 = z0.clamp_min(1e-300)
    first = z1 / z0
    variance = (z2 / z0 - first.square()).clamp_min(1e-14)
    return omega + deviation * first, v * variance


def _log_likelihood(model):
    """log P(y | h) up to a constant, for h [..., r] and y [...] that broadcast to one shape."""
    if model.inside:
        s = model.inside
        probe = model.link(torch.tensor([[-7.7], [-0.31], [0.31], [7.7]], dtype=torch.float64))
        if model.noise or not bool(torch.isin(probe, torch.tensor([-1.0, 1.0], dtype=torch.float64)).all()):
            raise ValueError(f"target {model.target.name!r}: noise inside the link has a channel for sign only")
        return lambda y, h: torch.special.log_ndtr(torch.sign(y) * h[..., 0] / s)
    return lambda y, h: -(y - model.link(h)).square() / (2 * model.noise**2)


def _line_channel(model):
    """One direction with noise: the trapezoid rule on ω ± 7√V, fine enough for the likelihood's width."""
    loglik, count = _log_likelihood(model), LINE_NODES
    if model.noise:
        z = np.linspace(-4, 4, 401)
        slope = np.quantile(np.abs(np.gradient(model.link(z[:, None]), z)), 0.95)
        count = int(np.clip(14 * slope / (1.2 * model.noise), LINE_NODES, MOST_LINE_NODES))

    def posterior(prepared, omega, V):
        t = torch.linspace(-7, 7, count, dtype=omega.dtype, device=omega.device)
        h = omega + V[:, :, 0].sqrt()[..., None] * t
        logits = loglik(prepared[0][..., None], h[..., None]) - t.square() / 2
        return _moments(h[..., None], logits)

    return Channel(model, lambda y: (y,), posterior, count, (True,))


def _plane_channel(model):
    """Two directions, any function: a grid of ω + V^{1/2} t, for noisy labels or labels with few values."""
    if model.inside:
        raise ValueError(f"target {model.target.name!r} has noise inside its link; a channel for it needs r = 1")
    if not model.noise:
        h = ndtri(_sobol(2, 12, 3))
        values = np.unique(np.round(np.asarray(model.link(h)), 9))
        if len(values) > 64:
            raise ValueError(
                f"noise is 0 and target {model.target.name!r} has infinitely many labels; a channel with two "
                "directions needs noise > 0, or a function with at most 64 values"
            )
        width = np.diff(values).min(initial=1.0) / 3
        loglik = lambda y, h: torch.where((y - model.link(h)).abs() < width, 0.0, -1e4)  # noqa: E731
    else:
        loglik = _log_likelihood(model)
    # Where a label jumps the error is that of a midpoint rule, so that it takes more nodes.
    edges = np.linspace(-6, 6, PLANE_NODES if model.noise else 2 * PLANE_NODES)
    grid = np.stack(np.meshgrid(edges, edges + 0.37 * (edges[1] - edges[0]), indexing="ij"), -1).reshape(-1, 2)

    def posterior(prepared, omega, V):
        t = torch.as_tensor(grid, dtype=omega.dtype, device=omega.device)
        h = omega[..., None, :] + (t @ _root(V))[:, None]
        return _moments(h, loglik(prepared[0][..., None], h) - t.square().sum(-1) / 2)

    return Channel(model, lambda y: (y,), posterior, len(grid) * 2, (True, True))


def _root(matrix):
    """Symmetric square root of positive semidefinite matrices [..., r, r]."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT


# Parities. With a_i = ω_i/√V_ii and correlation ρ, P(h_1 h_2 > 0) = 1 − Φ(−a_1) − Φ(−a_2) + 2 Φ_2(−a_1, −a_2; ρ).


def _parity2(sign, omega, V):
    """log P(sign(h_1 h_2) = sign) and its gradient [..., 2] and Hessian [..., 2, 2] in ω.

    sign [...], ω [..., 2], V broadcastable [..., 2, 2]. The rarer of the two events is computed directly, with both ω_i
    turned positive, so that it keeps its relative accuracy.
    """
    s1, s2 = V[..., 0, 0].sqrt(), V[..., 1, 1].sqrt()
    rho = (V[..., 0, 1] / (s1 * s2)).clamp(-1 + 1e-9, 1 - 1e-9)
    a, b = omega[..., 0] / s1, omega[..., 1] / s2
    flip_a, flip_b = torch.where(a < 0, -1.0, 1.0), torch.where(b < 0, -1.0, 1.0)
    both = flip_a * flip_b
    a, b, rho, sign = (a * flip_a).clamp_max(CLIP), (b * flip_b).clamp_max(CLIP), rho * both, sign * both
    tail_a, tail_b = torch.special.ndtr(-a), torch.special.ndtr(-b)
    differ = (tail_a + tail_b - 2 * _orthant(a, b, rho, tail_a * tail_b)).clamp_min(1e-17)
    differ = torch.minimum(differ, torch.full_like(differ, 1 - 1e-12))
    z = torch.where(sign > 0, 1 - differ, differ)
    c = (1 - rho.square()).sqrt()
    u, v = (b - rho * a) / c, (a - rho * b) / c
    density_a, density_b = _density(a), _density(b)
    joint = 2 * density_a * _density(u) / c
    along_a = density_a * torch.erf(u / math.sqrt(2))  # ∂P(h_1 h_2 > 0)/∂a
    along_b = density_b * torch.erf(v / math.sqrt(2))
    ga, gb = ((sign * v / z).clamp(-STEEPEST, STEEPEST) for v in (along_a, along_b))
    bound = STEEPEST**2
    haa = (sign * (-a * along_a - rho * joint) / z - ga.square()).clamp(-bound, bound)
    hbb = (sign * (-b * along_b - rho * joint) / z - gb.square()).clamp(-bound, bound)
    hab = (sign * joint / z - ga * gb).clamp(-bound, bound)
    s1, s2 = s1 * flip_a, s2 * flip_b
    gradient = torch.stack([ga / s1, gb / s2], -1)
    row1 = torch.stack([haa / s1.square(), hab / (s1 * s2)], -1)
    row2 = torch.stack([hab / (s1 * s2), hbb / s2.square()], -1)
    return z.log(), gradient, torch.stack([row1, row2], -2)


def _density(a):
    return torch.exp(-a.square() / 2) / math.sqrt(2 * math.pi)


def _orthant(a, b, rho, product):
    """P(h_1 > a, h_2 > b) = Φ(−a)Φ(−b) + (1/2π)∫_0^{arcsin ρ} exp(−(a² + b² − 2ab sin θ)/(2 cos² θ)) dθ (Plackett)."""
    x, w = np.polynomial.legendre.leggauss(ORTHANT_NODES)
    angle, total = torch.arcsin(rho), torch.zeros_like(product)
    squares, cross = a.square() + b.square(), 2 * a * b
    for node, weight in zip(x, w, strict=True):
        sine = torch.sin(angle * (0.5 * (node + 1)))
        total = total + weight * torch.exp(-(squares - cross * sine) / (2 * (1 - sine.square())))
    return product + angle * total / (4 * math.pi)


def _parity2_posterior(prepared, omega, V):
    _, gradient, hessian = _parity2(prepared[0], omega, V[:, None])
    return omega + gradient @ V, V[:, None] + V[:, None] @ hessian @ V[:, None]


def _parity_mixture(h1, logits, sign, omega, V):
    """Posterior of h in R³ when h_1 is one of the points h1 [runs, n, K] and sign(h_2 h_3) = sign [runs, n, K].

    `logits` are log-weights of the points without the factor P(sign(h_2 h_3) = sign | h_1).
    """
    slope = V[:, 1:, 0] / V[:, :1, 0]
    rest = V[:, 1:, 1:] - slope[:, :, None] * V[:, :1, 1:]
    rest = rest + TINY * torch.eye(2, dtype=V.dtype, device=V.device)
    shifted = omega[..., None, 1:] + (h1 - omega[..., :1])[..., None] * slope[:, None, None, :]
    log_z, gradient, hessian = _parity2(sign, shifted, rest[:, None, None])
    inner = shifted + gradient @ rest[:, None]
    spread = rest[:, None, None] + rest[:, None, None] @ hessian @ rest[:, None, None]
    logits = logits + log_z
    mean, cov = _moments(torch.cat([h1[..., None], inner], -1), logits)
    p = torch.softmax(logits, -1)[..., None, None]
    return mean, cov + torch.nn.functional.pad((p * spread).sum(-3), (1, 0, 1, 0))


def _parity3_posterior(prepared, omega, V):
    """sign(h_1 h_2 h_3): Gauss–Legendre in h_1 on both half lines, orthants of (h_2, h_3) in closed form."""
    x, w = np.polynomial.legendre.leggauss(PARITY_NODES)
    x, w = (torch.as_tensor(v, dtype=omega.dtype, device=omega.device) for v in (x, w))
    deviation = V[:, 0, 0].sqrt()[:, None]
    a = omega[..., 0] / deviation
    pieces = []
    for side in (1.0, -1.0):
        low = (-side * a).clamp(-7, 7)  # the half line in units of the deviation, measured from ω
        half = ((14 - 7 - low) / 2).clamp_min(1e-3)
        t = low[..., None] + half[..., None] * (1 + x)
        pieces.append((side * t, half[..., None].log() + w.log() - t.square() / 2))
    t, logits = (torch.cat([p[i] for p in pieces], -1) for i in (0, 1))
    h1 = omega[..., :1] + deviation[..., None] * t
    return _parity_mixture(h1, logits, prepared[0][..., None] * torch.sign(h1), omega, V)


def _sum_channel(model):
    """f(h_1) + sign(h_1 h_2 h_3) with an even f: the level sets of y ∓ 1 give h_1, and with it the sign of h_2 h_3."""
    full = model.target.vectorised

    def f(z):
        ones = torch.ones_like(z)
        return full.torch(torch.stack([z.abs() + 1e-300, ones, ones], -1)) - 1

    function = functions.Vectorised(f, "torch")
    monotone, _ = _branches(function.numpy)

    def prepare(y):
        parts = [(*_roots(function, monotone, y - s), s) for s in (1.0, -1.0)]
        h1 = torch.cat([h for h, _, _ in parts], -1)
        logs = torch.cat([logs for _, logs, _ in parts], -1)
        sign = torch.cat([s * torch.sign(h) for h, _, s in parts], -1)
        return h1, logs.clamp_min(-1e4), sign

    def posterior(prepared, omega, V):
        h1, logs, sign = prepared
        logits = logs - (h1 - omega[..., :1]).square() / (2 * V[:, :1, :1])
        return _parity_mixture(h1, logits, sign, omega, V)

    return Channel(model, prepare, posterior, 2 * len(monotone) * ORTHANT_NODES, (False, True, True))


def _committee_channel(model):
    """y = (1/3) Σ max(h_i, 0) + t ξ: a grid in (h_1, h_2); given them h_3 is one of two truncated Gaussians."""
    tau = 3 * model.noise
    edges = np.linspace(-5, 5, COMMITTEE_NODES)
    grid = np.stack(np.meshgrid(edges, edges, indexing="ij"), -1).reshape(-1, 2)

    def posterior(prepared, omega, V):
        t = torch.as_tensor(grid, dtype=omega.dtype, device=omega.device)
        h = omega[..., None, :2] + (t @ _root(V[:, :2, :2]))[:, None]
        slope = torch.linalg.solve(V[:, :2, :2], V[:, :2, 2:])
        v = (V[:, 2, 2] - (slope * V[:, :2, 2:]).sum((1, 2))).clamp_min(TINY)[:, None, None]
        mu = omega[..., 2:] + ((h - omega[..., None, :2]) @ slope[:, None])[..., 0]
        rest = 3 * prepared[0][..., None] - torch.relu(h).sum(-1)
        prior = -t.square().sum(-1) / 2
        below = _half_line(-mu, v)
        log_below = prior + below[0] - rest.square() / (2 * tau**2) - math.log(tau)
        shrunk = (mu * tau**2 + rest * v) / (v + tau**2)
        above = _half_line(shrunk, v * tau**2 / (v + tau**2))
        log_above = prior + above[0] - (rest - mu).square() / (2 * (v + tau**2)) - (v + tau**2).log() / 2
        points = torch.cat([h, h], -2)
        third = torch.cat([-below[1], above[1]], -1)
        logits = torch.cat([log_below, log_above], -1)
        mean, cov = _moments(torch.cat([points, third[..., None]], -1), logits)
        spread = (torch.softmax(logits, -1) * torch.cat([below[2], above[2]], -1)).sum(-1)
        return mean, cov + torch.nn.functional.pad(spread[..., None, None], (2, 0, 2, 0))

    return Channel(model, lambda y: (y,), posterior, 4 * len(grid), (True, True, True))


def _half_line(mu, v):
    """log P(h > 0), mean and variance given h > 0, for h ~ N(μ, v)."""
    deviation = v.sqrt()
    a = mu / deviation
    log_p = torch.special.log_ndtr(a)
    ratio = torch.exp(-a.square() / 2 - log_p) / math.sqrt(2 * math.pi)
    return log_p, mu + deviation * ratio, (v * (1 - ratio * (ratio + a))).clamp_min(1e-14)


# --------------------------------------------------------------------------------------------------- state evolution

SE_POINTS = {1: 13, 2: 12, 3: 11}  # 2^p quasi-random points, each with its mirror image
SE_START = 1e-4
ERROR_POINTS = 13
# Added to M at each step, so that a direction that opens later is not missed because it is exactly zero.
SE_FLOOR = 1e-4


@dataclass(frozen=True)
class Evolution:
    """State evolution at one or several α; leading shape [A] if `alpha` was a list, none if it was a number.

    overlap     [(A,) r, r]         the fixed point M*
    error       [(A,)]              E(y − E[y | ω])² there: the error of the Bayes-optimal prediction on a fresh sample
    trajectory  [(A,) steps+1, r, r] M at each iteration
    converged   [(A,)]              whether the last steps changed nothing
    """

    alpha: np.ndarray
    overlap: np.ndarray
    error: np.ndarray
    trajectory: np.ndarray
    converged: np.ndarray

    @property
    def diagonal(self):
        """The overlaps M_ii [(A,) r]."""
        return np.diagonal(self.overlap, axis1=-2, axis2=-1)


def state_evolution(
    target, alpha, *, r=None, noise=0.0, init="uninformed", iterations=600, tol=1e-5, points=None, device=None
):
    """Iterate M̂ = α E[g gᵀ], M = M̂ (I + M̂)^{−1} to its fixed point: an `Evolution`.

    alpha       samples per dimension, a number or a list (all of them are iterated at once)
    init        "uninformed" (M = 10^{−4} I), "informed" (M = (1 − 10^{−3}) I), or a matrix [r, r]
    iterations  at most so many; `converged` says whether they were enough
    points      the expectation is an average over 2^(points + 1) quasi-random (h, ω), the same at every step

    `target`, `r`, `noise` as in `weak_recovery_threshold`; see `channel` for which targets there is a denoiser.
    """
    model = _model(target, r, noise)
    alphas = np.atleast_1d(np.asarray(alpha, dtype=float))
    if alphas.ndim != 1 or not np.isfinite(alphas).all() or (alphas <= 0).any():
        raise ValueError(f"alpha is {alpha!r}; it must be a finite number > 0, or a list of them")
    iterations = checks.whole_number("iterations", iterations, least=1)
    place = devices.resolve(device, prefer="cpu")
    step = _Averages(model, points, place)
    M = _start_matrix(init, model.r, len(alphas)).to(place)
    ratio = torch.as_tensor(alphas, device=place)[:, None, None]
    history, settled = [M], torch.zeros(len(alphas), dtype=torch.bool, device=place)
    active = torch.arange(len(alphas), device=place)  # those that still move
    progress = bar(total=iterations, label="state evolution")
    for t in range(iterations):
        new = M.clone()
        new[active] = step.next(M[active], ratio[active])
        change = (new - M).abs().amax((1, 2))
        settled = change <= tol * new.abs().amax((1, 2)).clamp_min(0.1)
        M = new
        history.append(M)
        progress.update()
        if t > 20 and t % 10 == 9 and not M.is_meta:
            active = active[~settled[active]]
            if not len(active):
                break
    progress.close()
    error = _prediction_error(model, M, M)
    shape = slice(None) if np.ndim(alpha) else 0
    path = torch.stack(history, 1)
    parts = (devices.to_host(v)[shape] for v in (M, error, path, settled))
    return Evolution(alphas[shape], *parts)


def overlap_map(target, alpha, overlap, *, r=None, noise=0.0, points=None):
    """One step of state evolution from M = `overlap` [..., r, r] (a number m is read as m I): the next M."""
    model = _model(target, r, noise)
    alpha = checks.positive("alpha", alpha)
    M = np.asarray(overlap, dtype=float)
    scalar = M.ndim < 2 or M.shape[-2:] != (model.r, model.r)
    full = M[..., None, None] * np.eye(model.r) if scalar else M
    if not np.isfinite(full).all() or np.linalg.eigvalsh(full).min() < -1e-9 or np.linalg.eigvalsh(full).max() > 1:
        raise ValueError("overlap must hold symmetric matrices (or numbers) with eigenvalues in [0, 1]")
    step = _Averages(model, points, torch.device("cpu"), floor=0.0)
    flat = torch.as_tensor(full.reshape(-1, model.r, model.r))
    return step.next(flat, torch.full((len(flat), 1, 1), alpha, dtype=torch.float64)).numpy().reshape(full.shape)


def _start_matrix(init, r, count):
    eye = np.eye(r)
    if isinstance(init, str):
        checks.one_of("init", init, ("uninformed", "informed"))
        M = SE_START * eye if init == "uninformed" else (1 - 1e-3) * eye
    else:
        M = np.asarray(init, dtype=float)
        if M.shape != (r, r) or not np.isfinite(M).all() or np.abs(M - M.T).max() > 1e-9:
            raise ValueError(
                f"init has shape {M.shape}; it must be 'uninformed', 'informed' or a symmetric matrix [{r}, {r}]"
            )
    return torch.as_tensor(np.broadcast_to(M, (count, r, r)).copy())


class _Averages:
    """E[g gᵀ] over quasi-random h ~ N(0, I), labels y, and ω = M h + (M − M²)^{1/2} z, which has the right joint law.

    Points h and labels are the same for every M, so that level sets are found once and the map is smooth in M.
    """

    def __init__(self, model, points, place, floor=SE_FLOOR):
        self.channel, self.floor, r = _channel(model), floor, model.r
        points = SE_POINTS[r] if points is None else checks.whole_number("points", points, least=4)
        draws = torch.as_tensor(ndtri(_sobol(2 * r + 1, points, 11)).copy(), device=place)
        h, z, xi = draws[:, :r], draws[:, r : 2 * r], draws[:, -1]
        h = h / h.square().mean(0).sqrt()
        self.h, self.z, xi = torch.cat([h, -h]), torch.cat([z, z]), torch.cat([xi, -xi])
        self.prepared = self.channel.prepare(model.labels(self.h, xi).to(torch.float64)[None])
        self.eye = torch.eye(r, dtype=torch.float64, device=place)

    def next(self, M, alpha):
        """One step for matrices M [A, r, r] and α [A, 1, 1]."""
        values, vectors = torch.linalg.eigh(M + self.floor * (self.eye - M))
        values = values.clamp(0.0, 1 - TINY)
        M = (vectors * values[:, None, :]) @ vectors.mT
        spread = (vectors * (values * (1 - values)).sqrt()[:, None, :]) @ vectors.mT
        V = (vectors * (1 - values)[:, None, :]) @ vectors.mT
        omega = self.h @ M + self.z @ spread
        prepared = tuple(p.expand(len(M), *p.shape[1:]) for p in self.prepared)
        g, _ = self.channel.denoise(prepared, omega, V)
        hat = alpha * (g.mT @ g) / g.shape[1]
        hat = torch.nan_to_num(hat, nan=0.0, posinf=1 / TINY)
        values, vectors = torch.linalg.eigh((hat + hat.mT) / 2)
        return (vectors * (values / (1 + values)).clamp(0, 1 - TINY)[:, None, :]) @ vectors.mT


def _prediction_error(model, overlap, norm):
    """E(y − ŷ)² [runs] of ŷ(x) = E[g(ω + V^{1/2} u)], ω = x Ŵ, V = I − Q, for M = Wᵀ W* and Q = Wᵀ W [runs, r, r].

    Expanded: E y² − 2 E[y ŷ] + E ŷ², each the mean of a product of two labels with correlated fields.
    """
    r, place = model.r, overlap.device
    draws = torch.as_tensor(ndtri(_sobol(3 * r + 2, ERROR_POINTS, 13)).copy(), device=place)
    a, b, c = draws[:, :r], draws[:, r : 2 * r], draws[:, 2 * r : 3 * r]
    one, two = draws[:, -2], draws[:, -1]
    eye = torch.eye(r, dtype=torch.float64, device=place)

    def clean(h, xi):
        if model.inside:
            return model.link(h + model.inside * xi[..., None])
        return model.link(h)

    values, vectors = torch.linalg.eigh((norm + norm.mT) / 2)
    values = values.clamp(1e-12, 1.0)
    root = (vectors * values.sqrt()[:, None, :]) @ vectors.mT
    inverse = (vectors * values.rsqrt()[:, None, :]) @ vectors.mT
    spread = _root(eye - (vectors * values[:, None, :]) @ vectors.mT)
    omega = a @ root
    first = clean(omega + b @ spread, one.expand(omega.shape[:2]))
    again = clean(omega + c @ spread, two.expand(omega.shape[:2]))
    # h given ω: mean M Q^{−1} ω, covariance I − M Q^{−1} Mᵀ (transposes as the rows of a are the vectors).
    cross = overlap.mT @ inverse  # h = a crossᵀ + …
    truth = a @ cross.mT + c @ _root(eye - cross @ cross.mT)
    label = clean(truth, two.expand(omega.shape[:2]))
    plain = clean(a, one)
    square = (plain.square()).mean()
    return (square - 2 * (label * first).mean(1) + (first * again).mean(1)).clamp_min(0.0) + model.noise**2


def generalisation_error(target, overlap, norm=None, *, r=None, noise=0.0):
    """E(y − ŷ)² [...] of the prediction ŷ(x) = E[g(h)], h ~ N(Wᵀx, I − Q), for overlaps M = Wᵀ W* [..., r, r].

    `norm` is Q = Wᵀ W; it equals M for a Bayes-optimal W, and is taken so if None. Noise of the labels is counted.
    """
    model = _model(target, r, noise)
    M = np.asarray(overlap, dtype=float)
    Q = M if norm is None else np.asarray(norm, dtype=float)
    if M.shape[-2:] != (model.r, model.r) or Q.shape != M.shape:
        raise ValueError(f"overlap has shape {M.shape}; it must be [..., {model.r}, {model.r}], and norm the same")
    flat = [torch.as_tensor(v.reshape(-1, model.r, model.r).copy()) for v in (M, Q)]
    return _prediction_error(model, *flat).numpy().reshape(M.shape[:-2])[()]


# --------------------------------------------------------------------------------------------------------- Bayes-AMP

CHECK_EVERY = 10


@dataclass(frozen=True)
class AMPResult:
    """Bayes-AMP in `runs` repetitions.

    overlap     [runs, r, r]            M = Wᵀ W*/d at the end, after the signed permutation of the target's symmetry
                                        group that makes its trace largest
    norm        [runs, r, r]            Q = Wᵀ W/d in the same order; equal to M in the limit d → ∞
    trajectory  [runs, iterations+1, r] the diagonal of M at each iteration (each with its best symmetry)
    error       [runs]                  E(y − ŷ)² on fresh samples, see `generalisation_error`
    converged   [runs]                  whether W stopped changing
    diverged    [runs]                  True where the run left the range of floating-point numbers; it stays where it
                                        was last finite
    """

    overlap: np.ndarray
    norm: np.ndarray
    trajectory: np.ndarray
    error: np.ndarray
    converged: np.ndarray
    diverged: np.ndarray
    alpha: float
    d: int

    @property
    def diagonal(self):
        """The overlaps M_ii [runs, r], to be compared with those of `state_evolution`."""
        return np.diagonal(self.overlap, axis1=-2, axis2=-1)

    @property
    def cosines(self):
        """|⟨ŵ_i, w*_i⟩|/‖ŵ_i‖ [runs, r]: 0 where ŵ_i vanishes."""
        size = np.sqrt(np.diagonal(self.norm, axis1=-2, axis2=-1))
        return np.divide(np.abs(self.diagonal), size, out=np.zeros_like(size), where=size > 1e-12)


def run(
    target, alpha, d, *, r=None, noise=0.0, runs=16, seed=0, device=None, init="random", iterations=200, tol=1e-5,
    onsager=True,
):  # fmt: skip
    """Run Bayes-AMP with a Gaussian prior on n = alpha · d samples, all runs at once: an `AMPResult`.

    target, r, noise  as in `weak_recovery_threshold`; see `channel` for which targets there is a denoiser
    alpha, d          samples per dimension, dimension
    init              "random" (W of norm 0.1), "spectral" (`spectral_start`), or "informed" (M = 0.9 I)
    iterations        at most so many; every tenth asks whether all runs have settled
    tol               a run has converged when the mean square change of W in one iteration is below tol times that of W
    onsager           False leaves out the Onsager term: an algorithm that is wrong on purpose

    Runs have independent design matrices. Because the law of x is rotation invariant, w*_i is the i-th axis. Large
    products are in single precision, denoisers in double. A run that does not converge says so; none returns NaN.
    """
    model = _model(target, r, noise)
    alpha, d = checks.positive("alpha", alpha), checks.whole_number("d", d, least=model.r + 1)
    runs, iterations = (
        checks.whole_number("runs", runs, least=1),
        checks.whole_number("iterations", iterations, least=1),
    )
    checks.one_of("init", init, INITS)
    n = max(2, round(alpha * d))
    place = devices.resolve(device)
    generator = devices.generator(place, seed)
    law = _channel(model)
    group = max(1, min(runs, MOST_BYTES // (8 * n * d)))
    starts = range(0, runs, group)
    with devices.one_thread():
        parts = [
            _run_group(law, n, d, min(group, runs - start), init, iterations, tol, onsager, generator, place)
            for start in (bar(starts, label="AMP") if len(starts) > 1 else starts)
        ]
    length = max(p[2].shape[1] for p in parts)
    path = [torch.cat([p[2], p[2][:, -1:].expand(-1, length - p[2].shape[1], -1, -1)], 1) for p in parts]
    overlap, norm, converged, diverged = (torch.cat([p[i] for p in parts]) for i in (0, 1, 3, 4))
    result = _result(model, overlap, norm, torch.cat(path), converged, diverged, alpha, d)
    if not overlap.is_meta and diverged.any():
        warnings.warn(
            f"{int(diverged.sum())} of {runs} AMP runs diverged and stay at their last finite state", stacklevel=2
        )
    return result


def _run_group(law, n, d, runs, init, iterations, tol, onsager, generator, place):
    """AMP of some runs. Returns M, Q [runs, r, r], the path of M [runs, T, r, r], converged and diverged [runs]."""
    model, r = law.model, law.model.r
    single = {"dtype": torch.float32, "device": place}
    double = {"dtype": torch.float64, "device": place}
    X = torch.randn(runs, n, d, generator=generator, **single) / math.sqrt(d)
    h = X[..., :r].to(torch.float64) * math.sqrt(d)
    xi = torch.randn(runs, n, generator=generator, **double) if model.is_noisy else None
    y = model.labels(h, xi).to(torch.float64)
    prepared = law.prepare(y)
    eye = torch.eye(r, **double)
    teacher = math.sqrt(d) * torch.eye(d, r, **double)
    noise = torch.randn(runs, d, r, generator=generator, **double)
    g = torch.zeros(runs, n, r, **double)
    if init == "informed":
        W, level = 0.9 * teacher + math.sqrt(0.09) * noise, 0.9
    elif init == "spectral":
        W, g, level = _spectral_state(law, X, prepared, noise)
    else:
        W, level = 0.1 * noise, 0.01
    V = ((1 - level) * eye).expand(runs, r, r)
    path = [W[:, :r] / math.sqrt(d)]
    diverged = torch.zeros(runs, dtype=torch.bool, device=place)
    converged = torch.zeros_like(diverged)
    Xt = X.mT.contiguous()  # products with few columns are several times faster as rows times a matrix
    for t in range(iterations):
        omega = (W.mT.to(torch.float32) @ Xt).mT.to(torch.float64) - (g @ V if onsager else 0.0)
        new_g, slope = law.denoise(prepared, omega, V + EASE * eye)
        A = _precision(law, n / d, new_g, slope)
        B = (new_g.mT.to(torch.float32) @ X).mT.to(torch.float64) + (W @ A if onsager else 0.0)
        new_V = _covariance(A)
        new_W = _bounded(B @ new_V)
        fine = torch.isfinite(new_W).all(-1).all(-1) & torch.isfinite(new_V).all(-1).all(-1)
        diverged = diverged | ~fine
        keep = (~diverged)[:, None, None]
        change = (new_W - W).square().sum(1) / W.square().sum(1).clamp_min(1e-6 * d)
        converged = (change.amax(1) < tol) & ~diverged
        W, V, g = torch.where(keep, new_W, W), torch.where(keep, new_V, V), torch.where(keep, new_g, g)
        path.append(W[:, :r] / math.sqrt(d))
        if t % CHECK_EVERY == CHECK_EVERY - 1 and not W.is_meta and bool((converged | diverged).all()):
            break
    # W[:r]/√d has row i = w*_i, column j = ŵ_j; M_ji = ⟨ŵ_j, w*_i⟩.
    M = torch.stack(path, 1).mT
    return M[:, -1], W.mT @ W / d, M, converged, diverged


def _precision(law, alpha, g, slope):
    """A = −α ⟨∂_ω g⟩; in directions where the label says a bounded amount, its mean with α ⟨g gᵀ⟩.

    Both have the same expectation on the Bayes-optimal path. At finite d the first alone lets runs on discrete labels
    grow confident in noise; the second is useless where h is pinned to points, as its tails are heavy there.
    """
    divergence = -alpha * slope.mean(1)
    if not any(law.bounded):
        return divergence
    weight = torch.tensor([0.5**0.5 if b else 0.0 for b in law.bounded], dtype=g.dtype, device=g.device)
    square = alpha * (g.mT @ g) / g.shape[1]
    return divergence + weight[:, None] * (square - divergence) * weight


def _bounded(W):
    """W with the eigenvalues of Q = Wᵀ W/d kept below 1.05: no posterior mean is longer than what it estimates."""
    Q = torch.nan_to_num(W.mT @ W / W.shape[1], nan=0.0, posinf=1e300)
    values, vectors = torch.linalg.eigh(Q)
    factor = (1.05 / values.clamp_min(1e-30)).sqrt().clamp_max(1.0)
    return W @ ((vectors * factor[:, None, :]) @ vectors.mT)


def _covariance(A):
    """V = (I + A)^{−1} with eigenvalues kept in [TINY, 1]."""
    finite = torch.nan_to_num(A, nan=0.0, posinf=1 / TINY, neginf=0.0)
    values, vectors = torch.linalg.eigh((finite + finite.mT) / 2)
    return (vectors / (1 + values.clamp(0.0, 1 / TINY))[:, None, :]) @ vectors.mT


def _result(model, overlap, norm, path, converged, diverged, alpha, d):
    """The `AMPResult`, with every M brought into its best order."""
    if overlap.is_meta:
        return AMPResult(
            overlap, norm, path.diagonal(dim1=-2, dim2=-1), overlap[:, 0, 0], converged, diverged, alpha, d
        )
    group = torch.as_tensor(_symmetries(model), device=overlap.device)
    traces = torch.einsum("sij,rtji->rts", group, path)
    best = group[traces.argmax(-1)]
    diagonal = (best @ path).diagonal(dim1=-2, dim2=-1)
    last = best[:, -1]
    M, Q = last @ overlap, last @ norm @ last.mT
    error = _prediction_error(model, M, Q)
    return AMPResult(*(devices.to_host(v) for v in (M, Q, diagonal, error, converged, diverged)), alpha, d)


def _symmetries(model):
    """All signed permutation matrices S [count, r, r] with g(S h) = g(h) (for noise inside, of the link)."""
    h = ndtri(_sobol(model.r, 8, 17))
    values = np.asarray(model.link(h), dtype=float)
    found = []
    for order in itertools.permutations(range(model.r)):
        for signs in itertools.product([1.0, -1.0], repeat=model.r):
            s = np.eye(model.r)[list(order)] * np.array(signs)[:, None]
            if np.allclose(model.link(h @ s.T), values, atol=1e-9):
                found.append(s)
    return np.array(found)


# ---------------------------------------------------------------------------------------------------- spectral start

LANCZOS_STEPS = 80


@dataclass(frozen=True)
class SpectralStart:
    """Linearised AMP. Shapes have a leading runs axis if the samples had one.

    directions   [(runs,) d, r]   the estimate W, of norm ‖W‖² = k, the number of top eigenvectors that it combines
    eigenvalues  [(runs,) k]      the top eigenvalues, ascending; empty for a trivial target, which needs none
    """

    directions: np.ndarray
    eigenvalues: np.ndarray


def spectral_start(x, y, target, *, r=None, noise=0.0, seed=0, device=None):
    """Estimate W* by linearised AMP: top eigenvectors of T = (1/d) Σ_i x_i x_iᵀ ⊗ G_i (I + G_i)^{−1}.

    For ω → 0 the denoiser is linear, g = G(y) ω with G = E[h hᵀ − I | y], and AMP is a power iteration whose fixed
    vectors are those of T with eigenvalue 1. The estimate is the sum of as many top eigenvectors [d, r] as the operator
    S ↦ E[G S G] has equal top eigenvalues. For a trivial target (E[h | y] ≠ 0) it is Σ_i x_i E[h | y_i]ᵀ.

    x [n, d] or [runs, n, d] with standard Gaussian entries, y [n] or [runs, n]; the rest as in
    `weak_recovery_threshold`. Returns a `SpectralStart`.
    """
    law = _channel(_model(target, r, noise))
    x, y = queries._samples(x, y, device)
    batched = x.dim() == 3
    X, labels = (x, y) if batched else (x[None], y[None])
    runs, _, d = X.shape
    generator = devices.generator(x.device, seed)
    start = torch.randn(runs, d, law.model.r, generator=generator, dtype=torch.float64, device=x.device)
    W, values, _ = _spectral(law, X / math.sqrt(d), law.prepare(labels.to(torch.float64)), start)
    shape = slice(None) if batched else 0
    return SpectralStart(devices.to_host(W)[shape], devices.to_host(values)[shape])


def _first_moments(law):
    """Whether the target is trivial, and how many equal top eigenvalues S ↦ E[G S G] has (all r × r matrices S)."""
    model = law.model
    h = ndtri(_sobol(model.r + 1, 12, 19))
    h, xi = torch.as_tensor(h[:, : model.r].copy()), torch.as_tensor(h[:, -1].copy())
    flips = torch.as_tensor(list(itertools.product([1.0, -1.0], repeat=model.r)), dtype=torch.float64)
    h = (flips[:, None] * h).reshape(-1, model.r)
    y = model.labels(h, xi.repeat(len(flips))).to(torch.float64)[None]
    mean, G = _at_zero(law, law.prepare(y), y)
    if float(mean.square().sum(-1).mean()) > 1e-4:
        return True, 0
    operator = torch.einsum("nac,nbd->abcd", G[0], G[0]).reshape(model.r**2, model.r**2) / len(h)
    values = torch.linalg.eigvalsh((operator + operator.T) / 2)
    return False, int((values > 0.95 * values[-1]).sum())


def _at_zero(law, prepared, y):
    """E[h | y] [runs, n, r] and G = E[h hᵀ − I | y] [runs, n, r, r] without any estimate."""
    r = law.model.r
    eye = torch.eye(r, dtype=torch.float64, device=y.device)
    # ω = 0 exactly is a symmetric point where closed forms are safe.
    g, slope = law.denoise(
        prepared, torch.zeros(*y.shape, r, dtype=torch.float64, device=y.device), eye.expand(len(y), r, r)
    )
    return g, slope + g[..., :, None] * g[..., None, :]


def _spectral(law, X, prepared, start):
    """The estimate W [runs, d, r], the top eigenvalues [runs, k], and F = G(I + G)^{−1} [runs, n, r, r]."""
    trivial, count = _first_moments(law)
    r = law.model.r
    mean, G = _at_zero(law, prepared, X[..., 0].to(torch.float64))
    if trivial:
        W = X.mT.to(torch.float64) @ mean
        return W / W.square().sum((1, 2), keepdim=True).sqrt(), W.new_zeros(len(W), 0), None
    values, vectors = torch.linalg.eigh(G)
    values = values.clamp_min(-1 + 0.02)  # G > −1; labels that say "h = 0" would dominate the spectrum from below
    F = (vectors * (values / (1 + values))[..., None, :]) @ vectors.mT

    Xt = X.mT.contiguous()

    def apply(W):
        fields = (W.mT.to(X.dtype) @ Xt).mT.to(torch.float64)
        return ((F @ fields[..., None])[..., 0].mT.to(X.dtype) @ X).mT.to(torch.float64)

    values, vectors = _lanczos(apply, start, min(LANCZOS_STEPS, start.shape[1] * r))
    return vectors[..., -count:].sum(-1), values[:, -count:], F


def _lanczos(apply, start, steps):
    """Ritz values [runs, steps] (ascending) and vectors [runs, d, r, steps] of a symmetric map on [runs, d, r]."""
    runs, d, r = start.shape
    basis = torch.zeros(runs, steps, d * r, dtype=start.dtype, device=start.device)
    images = torch.zeros_like(basis)
    v = start.reshape(runs, -1)
    for j in range(steps):
        for _ in range(2):  # twice is enough: full reorthogonalisation
            v = v - (basis.mT @ (basis @ v[..., None]))[..., 0]
        v = v / v.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-30)
        basis[:, j] = v
        v = apply(v.reshape(runs, d, r)).reshape(runs, -1)
        images[:, j] = v
    small = basis @ images.mT
    values, vectors = torch.linalg.eigh((small + small.mT) / 2)
    return values, (basis.mT @ vectors).reshape(runs, d, r, steps)


def _spectral_state(law, X, prepared, noise):
    """W, the previous g and the level q that start AMP: small, with the memory that linear AMP would have."""
    W, _, F = _spectral(law, X, prepared, noise)
    level = 0.05
    d = W.shape[1]
    W = W * math.sqrt(level * d) / W.square().sum(1, keepdim=True).amax(2, keepdim=True).sqrt()
    W = W + 0.03 * noise  # directions that open later must not start at zero
    if F is None:
        return W, torch.zeros(*X.shape[:2], W.shape[2], dtype=W.dtype, device=W.device), level
    fields = (X @ W.to(X.dtype)).to(torch.float64)
    return W, (F @ fields[..., None])[..., 0], level
