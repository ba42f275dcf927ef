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

import itertools
import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri

from lowdim import checks, queries
from lowdim import device as devices
from lowdim.channels import TINY, Channel, channel, channel_of, matrix_root
from lowdim.progress import bar
from lowdim.thresholds import Classification, Step, classify, model_of, sobol, weak_recovery_threshold

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

INITS = ("random", "spectral", "informed")
# AMP denoises with V + EASE · I, as if every field had noise of that variance: it never divides by less than rounding.
EASE = 1e-9
# Design matrices larger than this (bytes) are drawn and used in groups of runs.
MOST_BYTES = 600_000_000

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
    model = model_of(target, r, noise)
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
        with devices.one_thread():
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
    model = model_of(target, r, noise)
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
        self.channel, self.floor, r = channel_of(model), floor, model.r
        points = SE_POINTS[r] if points is None else checks.whole_number("points", points, least=4)
        draws = torch.as_tensor(ndtri(sobol(2 * r + 1, points, 11)).copy(), device=place)
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
    draws = torch.as_tensor(ndtri(sobol(3 * r + 2, ERROR_POINTS, 13)).copy(), device=place)
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
    spread = matrix_root(eye - (vectors * values[:, None, :]) @ vectors.mT)
    omega = a @ root
    first = clean(omega + b @ spread, one.expand(omega.shape[:2]))
    again = clean(omega + c @ spread, two.expand(omega.shape[:2]))
    # h given ω: mean M Q^{−1} ω, covariance I − M Q^{−1} Mᵀ (transposes as the rows of a are the vectors).
    cross = overlap.mT @ inverse  # h = a crossᵀ + …
    truth = a @ cross.mT + c @ matrix_root(eye - cross @ cross.mT)
    label = clean(truth, two.expand(omega.shape[:2]))
    plain = clean(a, one)
    square = (plain.square()).mean()
    return (square - 2 * (label * first).mean(1) + (first * again).mean(1)).clamp_min(0.0) + model.noise**2


def generalisation_error(target, overlap, norm=None, *, r=None, noise=0.0):
    """E(y − ŷ)² [...] of the prediction ŷ(x) = E[g(h)], h ~ N(Wᵀx, I − Q), for overlaps M = Wᵀ W* [..., r, r].

    `norm` is Q = Wᵀ W; it equals M for a Bayes-optimal W, and is taken so if None. Noise of the labels is counted.
    """
    model = model_of(target, r, noise)
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
    target, alpha, d, *, r=None, noise=0.0, runs=16, seed=0, device=None, init="random", iterations=100, tol=1e-5,
    onsager=True,
):  # fmt: skip
    """Run Bayes-AMP with a Gaussian prior on n = alpha · d samples, all runs at once: an `AMPResult`.

    target, r, noise  as in `weak_recovery_threshold`; see `channel` for which targets there is a denoiser
    alpha, d          samples per dimension, dimension
    init              "random" (W of norm 0.1), "spectral" (`spectral_start`), or "informed" (M = 0.9 I)
    iterations        at most so many; runs that have converged leave the batch at every tenth
    tol               a run has converged when the mean square change of W in one iteration is below tol times that of W
    onsager           False leaves out the Onsager term: an algorithm that is wrong on purpose

    Runs have independent design matrices. Because the law of x is rotation invariant, w*_i is the i-th axis. Large
    products are in single precision, denoisers in double. A run that does not converge says so; none returns NaN.
    """
    model = model_of(target, r, noise)
    alpha, d = checks.positive("alpha", alpha), checks.whole_number("d", d, least=model.r + 1)
    runs, iterations = (
        checks.whole_number("runs", runs, least=1),
        checks.whole_number("iterations", iterations, least=1),
    )
    checks.one_of("init", init, INITS)
    n = max(2, round(alpha * d))
    place = devices.resolve(device)
    generator = devices.generator(place, seed)
    law = channel_of(model)
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
    Xt = X.mT.contiguous()  # products with few columns are several times faster as rows times a matrix
    final, active = W.clone(), torch.arange(runs, device=place)
    path = [W[:, :r] / math.sqrt(d)]
    converged, diverged = torch.zeros(2, runs, dtype=torch.bool, device=place)
    for t in range(iterations):
        omega = (W.mT.to(torch.float32) @ Xt).mT.to(torch.float64) - (g @ V if onsager else 0.0)
        new_g, slope = law.denoise(prepared, omega, V + EASE * eye)
        A = _precision(law, n / d, new_g, slope)
        B = (new_g.mT.to(torch.float32) @ X).mT.to(torch.float64) + (W @ A if onsager else 0.0)
        new_V = _covariance(A)
        new_W = _bounded(B @ new_V)
        fine = torch.isfinite(new_W).all(-1).all(-1) & torch.isfinite(new_V).all(-1).all(-1)
        change = (new_W - W).square().sum(1) / W.square().sum(1).clamp_min(1e-6 * d)
        keep = fine[:, None, None]
        W, V, g = torch.where(keep, new_W, W), torch.where(keep, new_V, V), torch.where(keep, new_g, g)
        final[active], converged[active], diverged[active] = W, fine & (change.amax(1) < tol), ~fine
        path.append(final[:, :r] / math.sqrt(d))
        if t % CHECK_EVERY == CHECK_EVERY - 1 and not W.is_meta:
            on = torch.nonzero(~(converged | diverged)[active])[:, 0]
            if not len(on):
                break
            if len(on) <= 0.7 * len(active):  # finished runs leave the batch
                X, Xt, W, V, g, active = (v[on] for v in (X, Xt, W, V, g, active))
                prepared = tuple(v[on] for v in prepared)
    # W[:r]/√d has row i = w*_i, column j = ŵ_j; M_ji = ⟨ŵ_j, w*_i⟩.
    M = torch.stack(path, 1).mT
    return M[:, -1], final.mT @ final / d, M, converged, diverged


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
    h = ndtri(sobol(model.r, 8, 17))
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
    law = channel_of(model_of(target, r, noise))
    x, y = queries._samples(x, y, device)
    batched = x.dim() == 3
    X, labels = (x, y) if batched else (x[None], y[None])
    runs, _, d = X.shape
    if d <= law.model.r:
        raise ValueError(
            f"x has d = {d}; for a target with {law.model.r} directions d must be at least {law.model.r + 1}"
        )
    generator = devices.generator(x.device, seed)
    start = torch.randn(runs, d, law.model.r, generator=generator, dtype=torch.float64, device=x.device)
    W, values, _ = _spectral(law, X / math.sqrt(d), law.prepare(labels.to(torch.float64)), start)
    shape = slice(None) if batched else 0
    return SpectralStart(devices.to_host(W)[shape], devices.to_host(values)[shape])


def _first_moments(law):
    """Whether the target is trivial, and how many equal top eigenvalues S ↦ E[G S G] has (all r × r matrices S)."""
    model = law.model
    h = ndtri(sobol(model.r + 1, 12, 19))
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
