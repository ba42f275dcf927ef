r"""Statistical queries: oracles to play with, label transformations, generative exponents and spectral estimators.

Throughout x ~ N(0, I_d), z = ⟨w*, x⟩ and y = f(z) with a hidden unit vector w*. A learner that asks for E[φ(x, y)]
makes a statistical query (SQ); one that may only ask for E[φ(x) y] makes a correlational one (CSQ). The difference is
that the former may transform the label: the information exponent of f belongs to CSQ, its generative exponent to SQ.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from lowdim import checks, functions, hermite, polynomials, targets
from lowdim import device as devices
from lowdim.polynomials import superorthogonal

__all__ = [
    "LabelMoments",
    "Oracle",
    "SpectralEstimate",
    "additive_strength",
    "csq_queries_needed",
    "generative_exponent",
    "label_moments",
    "sample_power",
    "spectral_estimate",
    "superorthogonal",
    "transformed_exponents",
    "unfolded_estimate",
]

# ------------------------------------------------------------------------------------------------ the oracle game

KINDS = ("SQ", "CSQ")
ANSWERS = ("lazy", "random", "sample")
SERIES_DEGREE = 100
ROWS = 1 << 15  # samples drawn at once by the sampling oracle


class Oracle:
    r"""An oracle that hides a direction w* in R^d and answers statistical queries within a tolerance τ.

    A query is a function φ and a unit vector v. With h = ⟨v, x⟩ it asks for

        E[φ(h, y)]   (kind "SQ")        or        E[φ(h) y]   (kind "CSQ").

    The tolerance is meant for queries of size one: the answer is within τ · size of the truth, where size is the root
    mean square of the query when h and y are independent. How the oracle uses its freedom (`answers`):

        "lazy"    says as little as it may: it answers what a world without w* would answer (h and y independent),
                  moved towards the truth only as far as the tolerance demands: the opponent of the lower bounds
        "random"  the truth plus a uniform error in [−τ, τ] · size
        "sample"  the average over n = 1/τ² fresh samples, whose error is of order τ but not bounded by it

    The true value depends on v through m = ⟨v, w*⟩ only: E[φ(h, y)] = Σ_k c_k m^k with
    c_k = E[φ(h', f(z)) h_k(h') h_k(z)] for independent h', z. The series is cut at degree 100. The attributes
    `tolerance` (which may be changed in the course of a game) and `asked` (the number of queries so far) are public.
    """

    def __init__(self, target, d, tolerance, *, kind="SQ", answers="lazy", seed=0):
        self.target = _single_index(target)
        self.d = checks.whole_number("d", d, least=2)
        self.tolerance = checks.positive("tolerance", tolerance)
        self.kind = checks.one_of("kind", kind, KINDS)
        self.answers = checks.one_of("answers", answers, ANSWERS)
        self.asked = 0
        self._last = None
        # A stream of its own: a player who draws from default_rng(seed) must not hit on w* by accident.
        self._rng = np.random.default_rng([checks.whole_number("seed", seed, least=0), 0x5EC7E7])
        w = self._rng.standard_normal(self.d)
        self._w = w / np.linalg.norm(w)
        if self.target.is_noisy and answers != "sample":
            raise ValueError(
                f"target {self.target.name!r} has noisy labels; use answers='sample' or a noiseless target"
            )

    @property
    def samples(self):
        """The number n = 1/τ² of samples whose averages err by about τ."""
        return math.ceil(1 / self.tolerance**2)

    def ask(self, phi, v):
        """Answer the query φ in the direction(s) v: a float for shape [d], an array [q] for shape [q, d].

        φ(h, y) for kind "SQ", φ(h) for kind "CSQ"; both vectorised (arrays of one shape in, the same shape out). All
        directions of one call are different queries, and are answered from one sample if `answers` is "sample".
        """
        directions = self._unit_vectors(v)
        self.asked += len(directions)
        if self.answers == "sample":
            answer = self._average(phi, directions)
        else:
            if self._last is None or self._last[0] is not phi:
                series, size = self._series(phi)
                # Quadrature leaves some 1e-16 where a coefficient vanishes: an oracle must not whisper that.
                self._last = phi, np.where(np.abs(series) > 1e-12 * size, series, 0.0), size
            _, series, size = self._last
            truth = np.polynomial.polynomial.polyval(directions @ self._w, series)
            slack = self.tolerance * size
            if self.answers == "random":
                answer = truth + self._rng.uniform(-slack, slack, len(truth))
            else:
                signal = truth - series[0]
                answer = series[0] + np.sign(signal) * np.maximum(np.abs(signal) - slack, 0)
        return float(answer[0]) if np.ndim(v) == 1 else answer

    def overlap(self, w):
        """Reveal |⟨w, w*⟩|/|w| of a guess w [d] (0 for the zero vector): the score of the game."""
        w = np.asarray(w, dtype=float)
        norm = np.linalg.norm(w)
        return float(abs(w @ self._w) / norm) if norm else 0.0

    def _unit_vectors(self, v):
        directions = np.atleast_2d(np.asarray(v, dtype=float))
        if directions.ndim != 2 or directions.shape[1] != self.d:
            raise ValueError(f"v has shape {np.shape(v)}; it must be [{self.d}] or [q, {self.d}]")
        norms = np.linalg.norm(directions, axis=1)
        if not np.allclose(norms, 1, atol=1e-8):
            raise ValueError(f"v has a row of norm {norms[np.argmax(abs(norms - 1))]:.4g}; it must hold unit vectors")
        return directions

    def _series(self, phi):
        """Coefficients c_0..c_100 of the true answer in powers of m, and the size of the query."""
        label = self.target.vectorised
        z, weight_z = _trimmed(*hermite.rule(label, degree=20))
        y = label.numpy(z)
        if self.kind == "CSQ":
            phi = functions.vectorised(phi, "phi")
            h, weight_h = _trimmed(*hermite.rule(phi, degree=20))
            values = phi.numpy(h)
            moments = hermite.basis(h, SERIES_DEGREE).T @ (weight_h * values)
            size = math.sqrt((weight_h @ values**2) * (weight_z @ y**2))
            return moments * (hermite.basis(z, SERIES_DEGREE).T @ (weight_z * y)), size
        h, weight_h = _trimmed(*hermite.rule(lambda h: self._value(phi, h, np.full_like(h, y[len(y) // 3])), degree=20))
        left = hermite.basis(h, SERIES_DEGREE) * weight_h[:, None]
        right = hermite.basis(z, SERIES_DEGREE) * weight_z[:, None]
        series, square = np.zeros(SERIES_DEGREE + 1), 0.0
        for part in np.array_split(np.arange(len(z)), math.ceil(len(z) / 512)):
            values = self._value(phi, h[:, None], y[None, part])
            series += np.sum((left.T @ values) * right[part].T, axis=1)
            square += weight_h @ values**2 @ weight_z[part]
        return series, math.sqrt(square)

    def _average(self, phi, directions):
        """Averages [q] of the query over `samples` fresh samples of (x, y), the same for all directions."""
        total, left = np.zeros(len(directions)), self.samples
        while left:
            rows = min(left, ROWS)
            x = self._rng.standard_normal((rows, self.d))
            z = x @ self._w
            y = self.target.labels(z, self._rng.standard_normal(rows) if self.target.is_noisy else None)
            h = x @ directions.T
            if self.kind == "CSQ":
                values = functions.vectorised(phi, "phi").numpy(h.ravel()).reshape(h.shape) * y[:, None]
            else:
                values = self._value(phi, h, y[:, None])
            total += values.sum(axis=0)
            left -= rows
        return total / self.samples

    @staticmethod
    def _value(phi, h, y):
        """φ(h, y) on the broadcast shape of h and y, checked."""
        shape = np.broadcast_shapes(np.shape(h), np.shape(y))
        try:
            values = np.asarray(phi(np.broadcast_to(h, shape), np.broadcast_to(y, shape)), dtype=float)
        except Exception as error:
            raise ValueError(
                f"phi could not be evaluated on two arrays of shape {shape}: {type(error).__name__}: {error}. For kind "
                "'SQ' it must be a vectorised function phi(h, y)"
            ) from error
        if values.shape != shape:
            raise ValueError(
                f"phi returns shape {values.shape} for two inputs of shape {shape}; it must keep the shape"
            )
        return values


def _trimmed(nodes, weights):
    """The nodes of a quadrature whose weights matter in double precision."""
    keep = weights > 1e-22
    return nodes[keep], weights[keep]


def _single_index(target):
    target = targets.resolve(target)
    if target.directions != 1:
        raise ValueError(f"target {target.name!r} has {target.directions} directions; it must have one")
    return target


def csq_queries_needed(d, k, n):
    """The natural logarithm of a number of correlational queries that no learner can do without.

    Setting: y = h_k(⟨w*, x⟩), unknown w* among M unit vectors with pairwise overlaps at most ε, where
    ε² = 4 log(M)/d can be reached for every M; tolerance τ = n^{−1/2} and an oracle that answers 0 when it may. Each
    query rules out at most 1/(τ² − ε^k) directions, so that at least M (τ² − ε^k) queries are needed; the best M is
    taken. The result is 0 (one query) where the bound says nothing.
    """
    d, k = checks.whole_number("d", d, least=2), checks.whole_number("k", k, least=1)
    tau_squared = 1 / checks.positive("n", n)
    log_m = np.linspace(0, d / 4, 200_001)
    room = tau_squared - (4 * log_m / d) ** (k / 2)
    useful = room > 0
    return max(0.0, float(np.max(log_m[useful] + np.log(room[useful])))) if useful.any() else 0.0


METHODS = ("kernel", "online SGD", "smoothing", "CSQ", "SQ", "information")


def sample_power(method, information_exponent, generative_exponent=1, degree=None):
    """The power s in n ≈ d^s (up to logarithms) that `method` needs to learn the direction of a single-index model.

    kernel       p           the degree of the polynomial link (`degree`; the information exponent k if not given)
    online SGD   max(k − 1, 1)
    smoothing    max(k/2, 1)     and the lower bound for CSQ
    SQ           max(k*/2, 1)    with the generative exponent k*
    information  1           if computation is free
    """
    checks.one_of("method", method, METHODS)
    k = checks.whole_number("information_exponent", information_exponent, least=1)
    generative = checks.whole_number("generative_exponent", generative_exponent, least=1)
    degree = k if degree is None else checks.whole_number("degree", degree, least=k)
    return {
        "kernel": float(degree),
        "online SGD": max(k - 1.0, 1.0),
        "smoothing": max(k / 2, 1.0),
        "CSQ": max(k / 2, 1.0),
        "SQ": max(generative / 2, 1.0),
        "information": 1.0,
    }[method]


# -------------------------------------------------------------------------------------- transformations of the label


def transformed_exponents(f, powers):
    """Return {i: information exponent of f^i} for the whole numbers i ≥ 1 in `powers`.

    `f` is the name of a target, a target, a link, a `polynomials.Polynomial`, a series of numpy.polynomial, or a
    vectorised callable. For polynomials (of degree ≤ 20 when given as a callable) the moments E[f^i He_k] are computed
    with whole numbers and the answer is exact; otherwise by quadrature, see `hermite.information_exponent`.
    """
    powers = [checks.whole_number("powers", i, least=1) for i in np.atleast_1d(np.asarray(powers, dtype=object))]
    f = _single_index(f) if isinstance(f, str | targets.Target) else f
    exact = polynomials.recognise(f)
    if exact is not None:
        return {i: exact.exponent(i) for i in powers}
    function = functions.vectorised(f, "f").numpy
    return {i: hermite.information_exponent(lambda z, i=i: function(z) ** i) for i in powers}


# Half width of the line on which level sets are searched: what lies beyond has probability 10^−23.
REACH = 10.0
GRIDS = (1 << 13, 1 << 15, 1 << 17, 1 << 19)
BISECTIONS = 60
MOST_CROSSINGS = 1_000_000
# Levels are the labels of points spread this much wider than z, so that the tails of the label get bins too.
SPREAD = 2.0
# Two grids that see the same level sets agree to about 1e-12.
SAME = 1e-9
# |E[h_k(z) 1{y ≤ c}]| below ZERO for all levels c counts as zero; above SIGNAL for one level as not zero.
ZERO, SIGNAL = 1e-9, 1e-6
BINS, NOISY_BINS = 400, 96


@dataclass(frozen=True)
class LabelMoments:
    """What the label says about z: conditional means of Hermite polynomials on bins of labels.

    edges  [bins − 1]            inner edges c_1 < c_2 < …; the outer bins are unbounded
    mass   [bins]                probabilities of the bins
    means  [bins, degree + 1]    E[h_k(z) | y in the bin]
    below  [bins − 1, degree+1]  E[h_k(z) 1{y ≤ c}] at the edges
    labels [bins]                a label from the middle of each bin
    """

    edges: np.ndarray
    mass: np.ndarray
    means: np.ndarray
    below: np.ndarray
    labels: np.ndarray

    @property
    def strength(self):
        """λ_k² = E[E[h_k(z) | y]²] for k = 0..degree, on the bins: from below as bins get finer, and at most 1."""
        return self.mass @ self.means**2

    def transform(self, k):
        """The label transformation T(y) = E[h_k(z) | y in its bin], which maximises E[T(y) h_k(z)]² / E[T(y)²]."""
        k = checks.whole_number("k", k, least=1)
        if k >= self.means.shape[1]:
            raise ValueError(f"k is {k}; moments were computed up to degree {self.means.shape[1] - 1}")
        return self._by_bin(self.means[:, k])

    @property
    def threshold(self):
        """α_c = 1/(2 λ_2²): beyond n = α_c d, and not before, the best spectral estimator finds w* (for λ_1 = 0)."""
        strength = self.strength[2] if self.means.shape[1] > 2 else 0.0
        return 1 / (2 * strength) if strength > ZERO else math.inf

    def spectral_transform(self, alpha):
        """The best transformation for `spectral_estimate(…, centre=False, end="top")` at n = alpha · d samples.

        T(y) = g(y)/(g(y) + √(α/α_c)) with g(y) = E[z² − 1 | y] = √2 E[h_2(z) | y] > −1, for α > α_c = `threshold`; it
        is at most 1. Below the threshold, where no transformation works, the one of the threshold is returned.
        """
        alpha = checks.positive("alpha", alpha)
        if math.isinf(self.threshold):
            raise ValueError(
                "E[h_2(z) | y] vanishes (or degree < 2): a spectral estimator cannot find this link's direction"
            )
        g = math.sqrt(2) * self.means[:, 2]
        return self._by_bin(g / (g + math.sqrt(max(alpha / self.threshold, 1.0))))

    def spectral_overlap(self, transform, alpha, *, centre=True):
        """The overlap |⟨v, w*⟩| that `spectral_estimate(…, end="top")` reaches as d → ∞ with n = alpha · d.

        With T = transform(y) − (its mean, if centre), τ = sup T, φ(λ) = λ E[T z²/(λ − T)] and
        ψ(λ) = λ (1/α + E[T/(λ − T)]) for λ > τ: let ψ be least at λ_0 and φ(λ) = ψ(max(λ, λ_0)) at λ_1. The overlap is
        0 if λ_1 ≤ λ_0, and the root of ψ'(λ_1)/(ψ'(λ_1) − φ'(λ_1)) otherwise. T must be bounded above; it is taken as
        constant on the bins.
        """
        alpha = checks.positive("alpha", alpha)
        if self.means.shape[1] < 3:
            raise ValueError("the moments were computed up to degree 1; spectral_overlap needs degree ≥ 2")
        t = functions.vectorised(transform, "transform").numpy(self.labels)
        t = t - self.mass @ t if centre else t
        second = 1 + math.sqrt(2) * self.means[:, 2]  # E[z² | bin]
        top, width = t.max(), max(float(np.ptp(t)), 1e-12)
        gap = width * np.geomspace(1e-9, 1e6, 3001)
        resolvent = t[None, :] / (top + gap[:, None] - t[None, :])
        slope = -t[None, :] / (top + gap[:, None] - t[None, :]) ** 2
        level = top + gap
        psi = level * (1 / alpha + resolvent @ self.mass)
        phi = level * (resolvent @ (self.mass * second))
        psi_slope = 1 / alpha + resolvent @ self.mass + level * (slope @ self.mass)
        phi_slope = resolvent @ (self.mass * second) + level * (slope @ (self.mass * second))
        lowest = int(np.argmin(psi))
        crossing = np.flatnonzero(phi <= np.where(np.arange(len(psi)) < lowest, psi[lowest], psi))
        if not len(crossing) or crossing[0] <= lowest:
            return 0.0
        one = crossing[0]
        return math.sqrt(max(0.0, psi_slope[one] / (psi_slope[one] - phi_slope[one])))

    def _by_bin(self, values):
        """The function of the label that takes values[b] on bin b."""
        edges, values = torch.tensor(self.edges), torch.tensor(values)

        def look_up(y):
            place = torch.bucketize(y.detach().contiguous(), edges.to(y.device, y.dtype))
            return values.to(y.device, y.dtype)[place]

        return functions.Vectorised(look_up, "torch")


def label_moments(f, degree=8, *, noise=0.0, bins=None):
    """Return the `LabelMoments` of y = f(z) + noise · ξ, with z, ξ ~ N(0, 1) independent.

    `f` is the name of a target, a target (its own noise is included), or a vectorised callable; kinks, jumps, flat
    pieces and several branches are fine. Without noise the sets {z : f(z) ≤ c} are found as unions of intervals, and
    E[h_k 1{f ≤ c}] is a sum over their ends, because −h_{k−1}(z) φ(z)/√k is a primitive of h_k(z) φ(z). With noise, the
    indicator becomes a smooth function of z, which is integrated by quadrature. `bins` is a number of bins (400, with
    noise 96), or the list of their inner edges.
    """
    degree = checks.whole_number("degree", degree, least=1)
    function, noise, inside = _label(f, checks.not_negative("noise", noise))
    if np.ndim(bins):
        edges = np.asarray(bins, dtype=float)
        if not np.isfinite(edges).all() or edges.ndim != 1 or (np.diff(edges) <= 0).any():
            raise ValueError("bins is not an increasing list of finite levels")
    else:
        count = (NOISY_BINS if noise else BINS) if bins is None else bins
        edges = _label_edges(function, noise, checks.whole_number("bins", count, least=2))
    below = _smoothed_below(function, edges, noise, degree) if noise else _converged_below(function, edges, degree)
    # z and (z + sξ)/√(1 + s²) have correlation 1/√(1 + s²): noise inside the link only shrinks moments.
    below = below * (1 + inside**2) ** (-np.arange(degree + 1) / 2)
    total = np.zeros((1, degree + 1))
    total[0, 0] = 1.0
    parts = np.diff(np.concatenate([np.zeros_like(total), below, total]), axis=0)
    keep = parts[:, 0] > 1e-14
    if not keep.all():
        # A bin without mass joins its neighbour: drop the edge above it, or the last edge.
        drop = np.unique(np.minimum(np.flatnonzero(~keep), len(edges) - 1))
        edges, below = np.delete(edges, drop), np.delete(below, drop, axis=0)
        parts = np.diff(np.concatenate([np.zeros_like(total), below, total]), axis=0)
    mass = parts[:, 0]
    return LabelMoments(edges, mass, parts / mass[:, None], below, _middle_labels(function, noise, edges))


def generative_exponent(f, max_degree=8, noise=0.0):
    """Return the generative exponent of y = f(z) + noise · ξ: the least k ≥ 1 such that E[h_k(z) | y] is not zero.

    It is the smallest information exponent that a transformation of the label can reach. math.inf means that there is
    none up to max_degree (a constant has none at all). `f` as in `label_moments`. A conditional mean vanishes for all
    labels exactly if E[h_k(z) 1{y ≤ c}] does for all levels c; it counts as zero below 1e-9 and as not zero above 1e-6.
    A value between, or level sets that do not settle as the grid is refined, raise ValueError: then the question cannot
    be decided here.
    """
    max_degree = checks.whole_number("max_degree", max_degree, least=1)
    size = np.abs(label_moments(f, max_degree, noise=noise).below).max(axis=0, initial=0.0)
    for k in range(1, max_degree + 1):
        if size[k] > SIGNAL:
            return k
        if size[k] > ZERO:
            raise ValueError(
                f"f has E[h_{k}(z) 1{{y ≤ c}}] up to {size[k]:.1e}, between rounding ({ZERO:g}) and signal "
                f"({SIGNAL:g}): its generative exponent cannot be decided numerically; it is {k} if this value is real"
            )
    return math.inf


def _label(f, noise):
    """The noiseless label as a NumPy function of a standard Gaussian, the noise outside it and the noise inside it."""
    if not isinstance(f, str | targets.Target):
        return functions.vectorised(f, "f").numpy, noise, 0.0
    target = _single_index(f)
    if target.noise_inside and target.noise_outside:
        raise ValueError(f"target {target.name!r} has noise inside and outside its link; only one of them is allowed")
    function, inside = (target.noiseless or target.vectorised).numpy, target.noise_inside
    stretch = math.sqrt(1 + inside**2)
    return lambda z: function(stretch * z), math.hypot(noise, target.noise_outside), inside


def _finite_values(function, z):
    values = function(z)
    if not np.isfinite(values).all():
        bad = z[~np.isfinite(values)][0]
        raise ValueError(f"f is not finite at z = {bad:.6g}; it must be finite on [−{REACH:g}, {REACH:g}]")
    return values


def _spread_labels(function, noise, count):
    """Sorted labels of `count` points z (64 times as many with noise) that cover the tails too."""
    values = _finite_values(function, SPREAD * ndtri((np.arange(count) + 0.5) / count))
    if noise:
        shifts = SPREAD * noise * ndtri((np.arange(64) + 0.5) / 64)
        values = (values[:, None] + shifts).ravel()
    return np.sort(values)


def _middle_labels(function, noise, edges):
    """For each bin the median of the labels that fall into it; the middle of the bin where none does. [bins]"""
    values = _spread_labels(function, noise, 16 * (len(edges) + 1))
    first = np.concatenate([[0], np.searchsorted(values, edges, side="right")])
    last = np.concatenate([first[1:], [len(values)]])
    ends = np.concatenate([edges[:1], edges, edges[-1:]])
    middle = (ends[1:] + ends[:-1]) / 2 if len(edges) else values[:1]
    return np.where(last > first, values[np.minimum((first + last) // 2, len(values) - 1)], middle)


def _label_edges(function, noise, bins):
    """About `bins` − 1 levels that cut the labels into pieces; every atom of their law gets a piece of its own."""
    values = _spread_labels(function, noise, 16 * bins)
    # Rounding errors are relative to a typical label: the largest says nothing if the label has heavy tails.
    apart = np.diff(values) > 1e-12 * np.maximum(np.abs(values[1:]), np.quantile(np.abs(values), 0.5))
    gaps = np.flatnonzero(apart)
    if not len(gaps):
        return np.empty(0)
    wanted = np.linspace(0, len(values) - 1, bins + 1)[1:-1]
    chosen = gaps[np.minimum(np.searchsorted(gaps, wanted), len(gaps) - 1)]
    # A value taken five times or more is an atom (a level set with two to four branches is not): cut on both sides.
    runs = np.diff(np.concatenate([[-1], gaps, [len(values) - 1]]))
    ends = np.concatenate([gaps, [len(values) - 1]])[runs >= 5]
    starts = np.concatenate([[-1], gaps])[runs >= 5]
    cuts = np.unique(np.concatenate([chosen, ends[ends < len(values) - 1], starts[starts >= 0]]))
    edges = (values[cuts] + values[cuts + 1]) / 2
    # Conditional means jump where a branch of the level set is born: cut just beyond each critical value.
    critical = np.empty(0) if noise else _critical_levels(function)
    inner = critical[(critical > edges[0]) & (critical < edges[-1])]
    return np.unique(np.concatenate([edges, inner])) if len(inner) <= bins // 4 else edges


def _converged_below(function, edges, degree):
    """E[h_k 1{f ≤ c}] [levels, degree + 1], on finer and finer grids until two of them agree."""
    previous = None
    for points in GRIDS:
        below = _below(function, edges, degree, points)
        if below is None:
            break
        if previous is not None and np.abs(below - previous).max(initial=0.0) <= SAME:
            return below
        previous = below
    raise ValueError(
        "f has level sets that keep changing, or multiplying, as the grid is refined, so that E[h_k(z) | y] cannot be "
        "computed: it must be piecewise monotone with few pieces (a random or rapidly oscillating function is not)"
    )


def _below(function, edges, degree, points):
    """The same on one grid: sums over the ends of the intervals of {f ≤ c}. None if there are too many of them."""
    grid, values = _grid_with_extrema(function, points)
    inside_at_end = values[-1] <= edges
    # Each pair of neighbours crosses the levels between their values: list them all.
    low, high = np.minimum(values[:-1], values[1:]), np.maximum(values[:-1], values[1:])
    first, last = np.searchsorted(edges, low), np.searchsorted(edges, high)
    counts = last - first
    if counts.sum() > MOST_CROSSINGS:
        return None
    pair = np.repeat(np.arange(len(counts)), counts)
    level = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[pair]
    left, right = grid[pair], grid[pair + 1]
    starts_inside = values[pair] <= edges[level]
    for _ in range(BISECTIONS):
        middle = (left + right) / 2
        same = (function(middle) <= edges[level]) == starts_inside
        left, right = np.where(same, middle, left), np.where(same, right, middle)
    z = (left + right) / 2
    sign = np.where(starts_inside, 1.0, -1.0)
    below = np.zeros((len(edges), degree + 1))
    np.add.at(below, level, sign[:, None] * _primitive(z, degree))
    below[:, 0] += inside_at_end
    return below


def _primitive(z, degree):
    """∫_{−∞}^z h_k φ for k = 0..degree, [n, degree + 1]: the distribution function, then −h_{k−1}(z) φ(z)/√k."""
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    higher = -hermite.basis(z, degree - 1) * density[:, None] / np.sqrt(np.arange(1, degree + 1))
    return np.concatenate([ndtr(z)[:, None], higher], axis=1)


def _grid_with_extrema(function, points):
    """A grid on [−10, 10] with the local extrema of f between its points, so that no pair of crossings hides there."""
    grid = np.linspace(-REACH, REACH, points)
    extrema, _ = _extrema(function, grid)
    grid = np.unique(np.concatenate([grid, extrema]))
    return grid, _finite_values(function, grid)


def _critical_levels(function):
    """Levels just above the local maxima of f and just below its local minima, where it is likely to be seen."""
    extrema, sign = _extrema(function, np.linspace(-SPREAD * 3, SPREAD * 3, GRIDS[0]))
    values = function(extrema)
    return values + sign * 1e-7 * (np.abs(values) + np.ptp(values) if len(values) else 0.0)


def _extrema(function, grid):
    """Places of the local extrema of f, and whether each is a maximum (1) or a minimum (−1)."""
    values = _finite_values(function, grid)
    rises = np.sign(np.diff(values))
    moves = np.flatnonzero(rises)  # two equal neighbours may have an extremum between them, so ties are passed over
    turns = np.flatnonzero(rises[moves[:-1]] != rises[moves[1:]])
    sign = rises[moves[turns]]
    left, right = grid[moves[turns]], grid[moves[turns + 1] + 1]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(BISECTIONS):
        a, b = right - golden * (right - left), left + golden * (right - left)
        up = sign * function(a) < sign * function(b)
        left, right = np.where(up, a, left), np.where(up, right, b)
    return (left + right) / 2, sign


def _smoothed_below(function, edges, noise, degree):
    """E[h_k(z) P(f(z) + noise ξ ≤ c | z)] [levels, degree + 1] by adaptive quadrature."""
    moments = [hermite.coefficients(lambda z, c=c: ndtr((c - function(z)) / noise), degree) for c in edges]
    return np.array(moments).reshape(len(edges), degree + 1)


# ------------------------------------------------------------------------------------------------ spectral estimators


@dataclass(frozen=True)
class SpectralEstimate:
    """A unit vector and where it comes from. Shapes have a leading runs axis if the samples had one.

    direction    [(runs,) d]    the eigenvector
    eigenvalues  [(runs,) d]    all eigenvalues, ascending
    """

    direction: np.ndarray
    eigenvalues: np.ndarray

    def overlap(self, w):
        """|⟨direction, w⟩| for a unit vector w [d]: a float, or one number per run."""
        return np.abs(self.direction @ np.asarray(w, dtype=float))


def spectral_estimate(x, y, transform=None, *, centre=True, end="both", device=None):
    r"""Estimate w* by an extreme eigenvector of M = 1/n Σ_a T(y_a) (x_a x_aᵀ − I), whose mean is √2 E[T h_2] w* w*ᵀ.

    x           [n, d] or [runs, n, d], NumPy array or tensor
    y           [n] or [runs, n]
    transform   T, a vectorised function of the label; None is the identity
    centre      subtract the mean from T(y_a) first: the mean of M stays, its noise becomes smaller for most T
    end         "both": the eigenvalue largest in absolute value; "top": the largest one
    device      where NumPy samples are sent (see `lowdim.device.resolve`); tensors stay where they are
    """
    checks.one_of("end", end, ("both", "top"))
    x, y = _samples(x, y, device)
    weights = y if transform is None else functions.vectorised(transform, "transform").torch(y)
    if not weights.is_meta and not torch.isfinite(weights).all():
        raise ValueError("transform returns values that are not finite; it must be finite on all labels")
    mean = weights.mean(dim=-1, keepdim=True)
    if centre:
        weights, mean = weights - mean, torch.zeros_like(mean)
    matrix = (x * weights[..., None]).mT @ x / x.shape[-2]
    return _extreme_eigenvector(matrix - mean[..., None] * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device), end)


def unfolded_estimate(x, y, k, *, device=None):
    r"""Estimate w* from correlations with the label alone, for a link of information exponent k = 2, 3 or 4.

    The d × d^{k−1} matrix A = 1/n Σ_a y_a x_a ⊗ He_{k−1}(x_a) has mean √(k!) α_k w* (w*)^{⊗ k−1}. The estimate is the
    top eigenvector of A Aᵀ without the terms of a sample with itself, which carry no signal:

        1/n² Σ_{a≠b} y_a y_b κ(x_a, x_b) x_a x_bᵀ,     κ(x, x') = ⟨He_{k−1}(x), He_{k−1}(x')⟩.

    It works from n ≈ d^{k/2} on. Arguments as in `spectral_estimate`; cost n² d.
    """
    checks.one_of("k", k, (2, 3, 4))
    x, y = _samples(x, y, device)
    n, d = x.shape[-2:]
    inner, square = x @ x.mT, (x * x).sum(-1)
    squares = square[..., :, None] + square[..., None, :]
    kernel = {
        2: lambda: inner,
        3: lambda: inner**2 - squares + d,
        4: lambda: inner**3 - 3 * inner * squares + 3 * (d + 2) * inner,
    }[k]()
    kernel = kernel - torch.diag_embed(torch.diagonal(kernel, dim1=-2, dim2=-1))
    weighted = x * (y - y.mean(dim=-1, keepdim=True))[..., None]
    return _extreme_eigenvector(weighted.mT @ (kernel @ weighted) / n**2, "top")


def _samples(x, y, device):
    """Samples as tensors x [..., n, d] and y [..., n] on one device, checked."""
    if isinstance(x, torch.Tensor):
        place = x.device
    else:
        place, x = devices.resolve(device), np.asarray(x, dtype=float)
    x = torch.as_tensor(x, device=place)
    y = torch.as_tensor(y, device=place, dtype=x.dtype)
    if x.dim() not in (2, 3) or y.shape != x.shape[:-1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; they must be [n, d] and [n], "
            "or [runs, n, d] and [runs, n]"
        )
    if x.shape[-2] < 2:
        raise ValueError(f"x has n = {x.shape[-2]} samples; at least 2 are needed")
    return x, y


def _extreme_eigenvector(matrix, end):
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    top = vectors[..., -1]
    if end == "both":
        top = torch.where((values[..., -1:].abs() >= values[..., :1].abs()), top, vectors[..., 0])
    return SpectralEstimate(devices.to_host(top), devices.to_host(values))


# ------------------------------------------------------------------------------------------- labels of additive models

# Grids of `additive_strength`: z in [−REACH_Z, REACH_Z]; labels up to what one task makes of |z| = FAR, and more.
REACH_Z, POINTS_Z = 12.0, 16_001
FAR, LEAST_SPAN, MOST_SPAN, POINTS_Y = 5.5, 10.0, 64.0, 1 << 13
# Densities below this are lost in rounding and in what the grid wraps around: such labels are left out.
LEAST_DENSITY = 1e-9
# Frequencies at which the characteristic function is computed at once.
FREQUENCIES = 64


def additive_strength(f, tasks, degree=4):
    r"""What the label of an additive model says about one task: λ_k² = E[E[h_k(z_1) | y]²] for k = 0..degree.

    y = M^{−1/2} Σ_m f(z_m) with M = `tasks` independent z_m ~ N(0, 1); f (as in `label_moments`, without noise) is
    centred and scaled to variance one first. λ_k² bounds E[T(y) h_k(z_1)]²/E[T(y)²] for every transformation T of the
    label. With

        φ_k(t) = E[h_k(z) e^{it f(z)/√M}],    q_k(y) = (1/2π) ∫ φ_k(t) φ_0(t)^{M−1} e^{−ity} dt,

    q_0 is the density of the label and q_k/q_0 = E[h_k(z_1) | y], so that λ_k² = ∫ q_k²/q_0 dy. One task is left to
    `label_moments`. The density of two or three tasks is too rough for this inversion: `tasks` must be 1 or ≥ 4. Labels
    beyond 64 standard deviations or with a density below 1e-9 are left out, which makes λ_k² too small for links with
    very heavy tails and few tasks.
    """
    tasks = checks.whole_number("tasks", tasks, least=1)
    degree = checks.whole_number("degree", degree, least=1)
    if tasks in (2, 3):
        raise ValueError(f"tasks is {tasks}; it must be 1 or ≥ 4: the density of two or three tasks is too rough")
    if tasks == 1:
        return label_moments(f, degree).strength
    function, noise, inside = _label(f, 0.0)
    if noise or inside:
        raise ValueError("f has noise; additive_strength takes links without noise")
    z = np.linspace(-REACH_Z, REACH_Z, POINTS_Z)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    values = _finite_values(function, z)
    values = values - weight @ values
    size = math.sqrt(weight @ values**2)
    if size < 1e-12:
        raise ValueError("f is constant; it must vary")
    phases = values / (size * math.sqrt(tasks))
    moments = hermite.basis(z, degree) * weight[:, None]
    span = min(LEAST_SPAN + float(np.abs(phases[np.abs(z) <= FAR]).max()), MOST_SPAN)
    half, dy = POINTS_Y // 2, 2 * span / POINTS_Y
    t = np.arange(half) * (math.pi / span)
    transform = np.zeros((POINTS_Y, degree + 1), dtype=complex)
    # Frequencies are equally spaced: the next block is this one times a fixed phase.
    waves, turn = np.exp(1j * t[:FREQUENCIES, None] * phases), np.exp(1j * t[FREQUENCIES] * phases)
    for i in range(0, half, FREQUENCIES):
        phi = waves @ moments.astype(complex)
        transform[i : i + FREQUENCIES] = phi * phi[:, :1] ** (tasks - 1)
        if np.abs(phi[:, 0]).max() ** (tasks - 1) < 1e-17:
            break
        waves *= turn
    transform[half + 1 :] = np.conj(transform[half - 1 : 0 : -1])
    q = np.fft.fft(transform, axis=0).real / (2 * span)
    seen = q[:, 0] > LEAST_DENSITY
    return dy * (q[seen] ** 2 / q[seen, :1]).sum(axis=0)
