r"""Learning without features to learn: ridge regression on given features, on random features and on a kernel.

All three solve one problem. With features φ(x) ∈ R^N (rows of Φ, an n × N matrix) or a kernel k (K = [k(x_i, x_j)]),

    minimise Σ_i (y_i − f(x_i))² + λ|a|²,  f = ⟨a, φ⟩        ⇔        f(x) = Σ_i α_i k(x_i, x),  α = (K + λI)⁻¹ y,

where K = ΦΦᵀ. The ridge parameter λ is chosen among several by the closed-form leave-one-out error, which costs no
refitting and no test data. Solves are in float64 and in the smaller of the two dimensions: N × N (primal) or n × n
(dual). One eigendecomposition serves all values of λ.

Memory: four matrices of side min(n, N), that is 13 GB for n = N = 20 000, beside the data; features and kernel
blocks are computed piece by piece and never held at once. What cannot fit raises ValueError before any work.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from lowdim import checks, nets
from lowdim import device as devices
from lowdim.progress import bar

# Numbers in one block of features or kernel values: 64 MB in float64.
BLOCK = 1 << 23
# Ridge parameters tried by default, in units of the mean of k(x, x) over the sample: two for each power of ten.
RIDGES = np.logspace(-7, 3, 21)
# LAPACK's workspace of an eigendecomposition, 2·side² numbers, is counted in 32 bits.
MOST_SIDE = 32_000


# ---------------------------------------------------------------------------------------------------------- kernels


@dataclass(frozen=True)
class Kernel:
    """A kernel: called with x [..., n, d] and y [..., m, d] (tensors) it returns the values [..., n, m]."""

    name: str
    latex: str
    function: Callable = field(repr=False, compare=False)

    def __call__(self, x, y):
        return self.function(x, y)


def inner_product(g, name="inner product", latex=""):
    """The kernel k(x, y) = g(⟨x, y⟩/d) of a function g of a tensor."""
    return Kernel(name, latex, lambda x, y: g(x @ y.mT / x.shape[-1]))


def on_sphere(g, name="sphere", latex=""):
    """The kernel k(x, y) = g(cos ∠(x, y)) of a function g of a tensor; it sees directions only."""

    def function(x, y):
        x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        y = y / torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        return g(x @ y.mT)

    return Kernel(name, latex, function)


def linear():
    """k(x, y) = ⟨x, y⟩/d."""
    return inner_product(lambda t: t, "linear", r"\langle x, y\rangle/d")


def polynomial(degree, offset=1.0):
    """k(x, y) = (offset + ⟨x, y⟩/d)^degree."""
    degree, offset = checks.whole_number("degree", degree, least=1), checks.not_negative("offset", offset)
    latex = rf"({offset:g} + \langle x, y\rangle/d)^{{{degree}}}"
    return inner_product(lambda t: (offset + t) ** degree, f"polynomial of degree {degree}", latex)


def exponential():
    """k(x, y) = exp(cos ∠(x, y)), whose power series has all degrees."""
    return on_sphere(torch.exp, "exponential", r"e^{\cos\angle(x, y)}")


def gaussian(scale=1.0):
    """k(x, y) = exp(−s²|x − y|²/2d), s = scale: the limit of random features √2 cos(⟨w, x⟩ + phase), w_j ~ N(0, s²/d).

    (The phases are uniform. The features of `random_features` with activation "cos" and bias ≥ 3 have half this limit.)
    """
    s = checks.positive("scale", scale)

    def function(x, y):
        squares = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :] - 2 * (x @ y.mT)
        return torch.exp(squares.clamp(min=0) * (-(s**2) / (2 * x.shape[-1])))

    return Kernel("gaussian", r"e^{-s^2\|x-y\|^2/2d}", function)


def mehler(rho):
    r"""Mehler's kernel, diagonal in Hermite polynomials: for |ρ| < 1 and h_a(x) = Π_i h_{a_i}(x_i),

        k(x, y) = Σ_a ρ^{|a|} h_a(x) h_a(y) = (1 − ρ²)^{−d/2} exp((ρ⟨x, y⟩ − ρ²(|x|² + |y|²)/2)/(1 − ρ²)).

    Under x ~ N(0, I_d) its eigenfunctions are *exactly* the Hermite polynomials, and all C(d + k − 1, k) of degree k
    share the eigenvalue ρ^k. With ρ = 1/d it is close to exp(⟨x, y⟩/d), a generic inner-product kernel.
    """
    rho = checks.finite("rho", rho)
    if not 0 < rho < 1:
        raise ValueError(f"rho is {rho!r}; it must lie in (0, 1)")

    def function(x, y):
        norms = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :]
        exponent = (rho * (x @ y.mT) - rho**2 / 2 * norms) / (1 - rho**2)
        return torch.exp(exponent - x.shape[-1] / 2 * math.log1p(-(rho**2)))

    return Kernel("mehler", r"\sum_a \rho^{|a|} h_a(x)\,h_a(y)", function)


def arc_cosine(bias=0.0):
    r"""The limit of ReLU features: k(x, y) = E[relu(⟨w, x⟩ + b) relu(⟨w, y⟩ + b)], w_j ~ N(0, 1/d), b ~ N(0, bias²).

    With q = ⟨x, y⟩/d + bias² (also for x, x and y, y) and cos θ = q(x, y)/√(q(x, x) q(y, y)) it equals
    √(q(x, x) q(y, y)) (sin θ + (π − θ) cos θ)/(2π) (Cho and Saul, 2009).
    """

    def function(size, cosine):
        cosine = cosine.clamp(-1, 1)
        angle = torch.arccos(cosine)
        return size * (torch.sin(angle) + (math.pi - angle) * cosine) / (2 * math.pi)

    return _conjugate(function, bias, "arc-cosine")


def arc_sine(bias=0.0):
    r"""The limit of erf features: E[erf(⟨w, x⟩ + b) erf(⟨w, y⟩ + b)], w_j ~ N(0, 1/d), b ~ N(0, bias²).

    With q as in `arc_cosine` it equals (2/π) arcsin(2 q(x, y)/√((1 + 2 q(x, x))(1 + 2 q(y, y)))) (Williams, 1998).
    """
    bias = checks.not_negative("bias", bias)

    def function(x, y):
        d = x.shape[-1]
        q = x @ y.mT / d + bias**2
        left, right = (1 + 2 * (v.square().sum(-1) / d + bias**2) for v in (x, y))
        return 2 / math.pi * torch.arcsin(2 * q / (left[..., :, None] * right[..., None, :]).sqrt())

    return Kernel("arc-sine", "", function)


def _conjugate(of_size_and_cosine, bias, name):
    bias = checks.not_negative("bias", bias)

    def function(x, y):
        d = x.shape[-1]
        left, right = (v.square().sum(-1) / d + bias**2 for v in (x, y))
        size = (left[..., :, None] * right[..., None, :]).sqrt()
        return of_size_and_cosine(size, (x @ y.mT / d + bias**2) / size.clamp(min=torch.finfo(x.dtype).tiny))

    return Kernel(name, "", function)


NAMED = {
    "linear": linear,
    "quadratic": lambda: polynomial(2),
    "cubic": lambda: polynomial(3),
    "exponential": exponential,
    "gaussian": gaussian,
    "arc-cosine": arc_cosine,
    "arc-sine": arc_sine,
}


def resolve(kernel):
    """Return a kernel from a name (`NAMED`), a `Kernel`, or a function of two tensors x [n, d], y [m, d] → [n, m]."""
    if isinstance(kernel, str):
        return NAMED[checks.one_of("kernel", kernel, tuple(NAMED))]()
    if isinstance(kernel, Kernel):
        return kernel
    if not callable(kernel):
        raise ValueError(f"kernel is {kernel!r}; it must be one of {', '.join(NAMED)}, a Kernel, or a function k(x, y)")
    return Kernel(getattr(kernel, "__name__", "custom"), "", kernel)


# ---------------------------------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Fit:
    """What the three regressions share. A leading runs axis is there if the data had one.

    ridge      the λ that was used, [] or [runs]
    ridges     all λ that were tried, [L] or [runs, L]
    loo        their leave-one-out mean squared errors, [L] or [runs, L]
    intercept  the constant b of f(x) + b, [] or [runs] (0 unless asked for)
    """

    ridge: np.ndarray
    ridges: np.ndarray
    loo: np.ndarray
    intercept: torch.Tensor = field(repr=False)


@dataclass(frozen=True)
class RidgeFit(Fit):
    """f(φ) = ⟨a, φ⟩ + b with `coefficients` a [N] or [runs, N]."""

    coefficients: torch.Tensor = field(repr=False)

    def predict(self, features):
        """Predictions [m] or [runs, m] for features [m, N] or [runs, m, N]: a NumPy array."""
        features = _tensor("features", features, self.coefficients.device, self.coefficients.shape[-1])
        return devices.to_host(_apply(features, self.coefficients) + self.intercept[..., None])


@dataclass(frozen=True)
class RandomFeaturesFit(Fit):
    """f(x) = ⟨a, φ(x)⟩ + b with the features φ = `network`.features and `coefficients` a [N] or [runs, N]."""

    network: nets.TwoLayer = field(repr=False)
    coefficients: torch.Tensor = field(repr=False)

    def predict(self, x):
        """Predictions [m] or [runs, m] for inputs x [m, d] or [runs, m, d]: a NumPy array."""
        x = _tensor("x", x, self.coefficients.device, self.network.d)
        parts = [_apply(self.network.features(block), self.coefficients) for block in _rows(x, self.network.width)]
        return devices.to_host(torch.cat(parts, dim=-1) + self.intercept[..., None])


@dataclass(frozen=True)
class KernelRidgeFit(Fit):
    """f(x) = Σ_i α_i k(x_i, x) + b with `dual` α [n] or [runs, n] and training inputs `x` [n, d] or [runs, n, d]."""

    kernel: Kernel
    x: torch.Tensor = field(repr=False)
    dual: torch.Tensor = field(repr=False)

    def predict(self, x):
        """Predictions [m] or [runs, m] for inputs x [m, d] or [runs, m, d]: a NumPy array."""
        x = _tensor("x", x, self.dual.device, self.x.shape[-1])
        parts = [_apply(self.kernel(block, self.x), self.dual) for block in _rows(x, self.x.shape[-2])]
        return devices.to_host(torch.cat(parts, dim=-1) + self.intercept[..., None])


# ---------------------------------------------------------------------------------------------- the three regressions


def ridge(features, y, *, ridges=None, intercept=False, device=None):
    """Ridge regression of y on given features: a `RidgeFit`.

    features   Φ [n, N], or [runs, n, N]: a regression for each run
    y          [n], or [runs, n]; features without a runs axis serve all runs with one eigendecomposition
    ridges     one λ > 0, several to choose from by leave-one-out, or None: 21 of them, from 1e-7 to 1e3 times the mean
               of |φ(x)|²
    intercept  whether to fit a constant b that the ridge does not shrink
    device     None (CUDA if present, else CPU; LOWDIM_DEVICE overrides) or a torch device
    """
    place = devices.resolve(device)
    features = _tensor("features", features, place)
    y = _labels(y, features)
    source = _Features(features.shape[-2], features.shape[-1], features.shape[:-2], lambda i, j: features[..., i:j, :],
                       lambda i, j: features[..., i:j])  # fmt: skip
    return RidgeFit(**_fit_features(source, y, ridges, intercept))


def random_features(x, y, features, activation="relu", *, bias=0.0, ridges=None, intercept=False, seed=0, device=None):
    """Ridge regression on the features φ(x) = σ(W x + b)/√N of a network whose first layer stays fixed.

    x, y        inputs [n, d] and labels [n]; either may have a leading runs axis
    features    the number N of random features, w_ij ~ N(0, 1/d) and b_i ~ N(0, bias²), drawn from `seed`; or a
                `nets.TwoLayer`, whose first layer is used as it is (σ, bias and seed then say nothing)
    activation  σ: a name, a `Link` or a function
    Other arguments as in `ridge`. Returns a `RandomFeaturesFit`. Features are computed block by block: only the
    min(n, N)² Gram matrix is held.
    """
    place = devices.resolve(features.weights.device if isinstance(features, nets.TwoLayer) else device)
    x = _tensor("x", x, place)
    y = _labels(y, x)
    network = features
    if not isinstance(network, nets.TwoLayer):
        width = checks.whole_number("features", features, least=1)
        network = nets.two_layer(x.shape[-1], width, activation, bias=bias, seed=seed, device=place)
    if network.d != x.shape[-1]:
        raise ValueError(f"x has dimension {x.shape[-1]}; the network takes inputs of dimension {network.d}")
    lead = torch.broadcast_shapes(x.shape[:-2], network.weights.shape[:-2])
    source = _Features(x.shape[-2], network.width, lead, lambda i, j: network.features(x[..., i:j, :]),
                       lambda i, j: network.features(x, i, j))  # fmt: skip
    return RandomFeaturesFit(network=network, **_fit_features(source, y, ridges, intercept))


def kernel_ridge(x, y, kernel="exponential", *, ridges=None, intercept=False, device=None):
    """Kernel ridge regression: a `KernelRidgeFit`.

    x, y     inputs [n, d] and labels [n]; either may have a leading runs axis
    kernel   a name ("exponential", "arc-cosine", …), a `Kernel`, or a function of two tensors [n, d], [m, d] → [n, m]
    Other arguments as in `ridge`, with k(x, x) in place of |φ(x)|².
    """
    place = devices.resolve(device)
    x = _tensor("x", x, place)
    y = _labels(y, x)
    kernel = resolve(kernel)
    n = x.shape[-2]
    _check_memory(n, math.prod(x.shape[:-2]), place, f"n is {n}")
    gram = x.new_empty(*x.shape[:-2], n, n)
    for part, block in zip(gram.split(_block(n, n * math.prod(x.shape[:-2])), dim=-2), _rows(x, n), strict=True):
        values = kernel(block, x)
        if values.shape != part.shape:
            raise ValueError(
                f"kernel {kernel.name!r} returns shape {tuple(values.shape)} for inputs of shapes {tuple(block.shape)} "
                f"and {tuple(x.shape)}; it must return shape {tuple(part.shape)}"
            )
        part.copy_(values)
    dual, shared = _solve_dual(gram, y, ridges, intercept)
    b = _dual_intercept(y, _apply(gram, dual), intercept)
    return KernelRidgeFit(kernel=kernel, x=x, dual=dual, intercept=b, **shared)


# ---------------------------------------------------------------------------------------------------------- machinery


@dataclass(frozen=True)
class _Features:
    """A matrix of features [*lead, n, width] that is asked for piece by piece: rows(i, j) or columns(i, j)."""

    n: int
    width: int
    lead: tuple
    rows: Callable
    columns: Callable

    def row_blocks(self):
        step = _block(self.n, self.width * math.prod(self.lead))
        return [(i, min(i + step, self.n)) for i in range(0, self.n, step)]

    def column_blocks(self):
        step = _block(self.width, self.n * math.prod(self.lead))
        return [(i, min(i + step, self.width)) for i in range(0, self.width, step)]


def _fit_features(source, y, ridges, intercept):
    """The fields of a fit on features, solved in the smaller dimension."""
    side = min(source.n, source.width)
    what = f"n is {source.n} and the number of features {source.width}"
    _check_memory(side, math.prod(source.lead), y.device, what)
    if source.width <= source.n:
        return _solve_primal(source, y, ridges, intercept)
    gram = y.new_zeros(*source.lead, source.n, source.n)
    for i, j in bar(source.column_blocks(), "features"):
        part = source.columns(i, j)
        gram += part @ part.mT
    dual, shared = _solve_dual(gram, y, ridges, intercept)
    a = torch.cat([_apply(source.columns(i, j).mT, dual) for i, j in source.column_blocks()], dim=-1)
    b = _dual_intercept(y, _apply(gram, dual), intercept)
    return {"coefficients": a, "intercept": b, **shared}


def _solve_dual(gram, y, ridges, intercept):
    """α [..., n] = (K + λ)⁻¹ y at the best λ, and the fields of `Fit`; gram [..., n, n] = K, y [..., n].

    Leave-one-out residuals are α_i/((K + λ)⁻¹)_ii. With an intercept, K and y are centred, and the residual is
    λ α_i/(λ ((K + λ)⁻¹)_ii − 1/n), because the constant takes 1/n of every leverage.
    """
    n = gram.shape[-1]
    tried = _ridges(ridges, gram.diagonal(dim1=-2, dim2=-1).mean(-1))
    if intercept:
        y = y - y.mean(-1, keepdim=True)
        gram = gram - gram.mean(-1, keepdim=True) - gram.mean(-2, keepdim=True) + gram.mean((-2, -1), keepdim=True)
    if tried.shape[-1] == 1:
        inverse = torch.cholesky_inverse(_cholesky(gram, tried))
        dual, diagonal = (inverse @ y[..., None]), inverse.diagonal(dim1=-2, dim2=-1)[..., None]
    else:
        s, u = torch.linalg.eigh(gram)
        weights = 1 / (s.clamp(min=0)[..., :, None] + tried[..., None, :])
        dual = u @ ((y[..., None, :] @ u).mT * weights)
        diagonal = torch.cat([block.square() @ weights for block in _rows(u, n)], dim=-2)
    lam = tried[..., None, :]
    residuals = lam * dual / (lam * diagonal - 1 / n) if intercept else dual / diagonal
    return _choose(dual, tried, residuals.square().mean(-2))


def _solve_primal(source, y, ridges, intercept):
    """The fields of a fit on features, by the N × N matrix ΦᵀΦ; two passes over the features, block by block.

    Leave-one-out residuals are (y_i − f(x_i))/(1 − ℓ_i) with the leverage ℓ_i = φ_iᵀ(ΦᵀΦ + λ)⁻¹φ_i, to which an
    intercept (features and labels are centred) adds 1/n.
    """
    n, width = source.n, source.width
    gram, moment, mean = y.new_zeros(*source.lead, width, width), 0.0, 0.0
    for i, j in bar(source.row_blocks(), "features"):
        part = source.rows(i, j)
        gram += part.mT @ part
        moment = moment + _apply(part.mT, y[..., i:j])
        mean = mean + part.sum(-2)
    tried = _ridges(ridges, gram.diagonal(dim1=-2, dim2=-1).sum(-1) / n)
    level = y.mean(-1)
    mean = mean / n
    if intercept:
        gram = gram - n * mean[..., :, None] * mean[..., None, :]
        moment = moment - n * mean * level[..., None]
    if tried.shape[-1] == 1:
        basis = torch.linalg.solve_triangular(
            _cholesky(gram, tried), torch.eye(width, device=y.device, dtype=y.dtype), upper=False
        ).mT
        weights = torch.ones_like(basis[..., 0, :, None])
    else:
        s, basis = torch.linalg.eigh(gram)
        weights = 1 / (s.clamp(min=0)[..., :, None] + tried[..., None, :])
    # In both cases (ΦᵀΦ + λ)⁻¹ = basis · diag(weights) · basisᵀ.
    projected = (moment[..., None, :] @ basis).mT * weights
    loo = 0.0
    for i, j in source.row_blocks():
        part = source.rows(i, j)
        target = y[..., i:j, None]
        if intercept:
            part, target = part - mean[..., None, :], target - level[..., None, None]
        part = part @ basis
        leverage = part.square() @ weights + (1 / n if intercept else 0.0)
        loo = loo + ((target - part @ projected) / (1 - leverage)).square().sum(-2) / n
    a, shared = _choose(basis @ projected, tried, loo)
    b = level - (mean * a).sum(-1) if intercept else torch.zeros_like(a[..., 0])
    return {"coefficients": a, "intercept": b, **shared}


def _cholesky(gram, tried):
    """The factor L of K + λI = L Lᵀ for the one ridge parameter in `tried` [..., 1]."""
    try:
        return torch.linalg.cholesky(gram + torch.diag_embed(tried.expand(*tried.shape[:-1], gram.shape[-1])))
    except torch.linalg.LinAlgError:
        raise ValueError(
            f"ridges is {float(tried.flatten()[0])!r}; it is lost in the rounding of a matrix of size "
            f"{float(gram.abs().max()):.3g}: it must be larger"
        ) from None


def _choose(solutions, tried, loo):
    """Pick from solutions [..., n, L] the one with the least leave-one-out error loo [..., L], for each run."""
    tried = tried.expand(loo.shape)
    best = loo.argmin(-1, keepdim=True)
    chosen = solutions.gather(-1, best[..., None, :].expand(*solutions.shape[:-1], 1))[..., 0]
    host = [devices.to_host(t) for t in (tried.gather(-1, best)[..., 0], tried, loo)]
    return chosen, dict(zip(("ridge", "ridges", "loo"), host, strict=True))


def _dual_intercept(y, fitted, intercept):
    """The constant b = mean(y − f): α sums to zero, so that k(x, ·)α needs no centring."""
    return (y - fitted).mean(-1) if intercept else torch.zeros_like(fitted[..., 0])


def _ridges(ridges, size):
    """The ridge parameters to try, [..., L]; `size` [...] is the mean of k(x, x)."""
    if ridges is None:
        # The smallest normal number stands in for a kernel that vanishes on the sample.
        return size.clamp(min=1e-300)[..., None] * torch.as_tensor(RIDGES, device=size.device)
    tried = np.atleast_1d(np.asarray(ridges, dtype=np.float64))
    if tried.ndim != 1 or not len(tried) or not np.isfinite(tried).all() or (tried <= 0).any():
        raise ValueError(f"ridges is {ridges!r}; it must be a number > 0 or a list of them")
    return torch.as_tensor(tried, device=size.device).expand(*size.shape, len(tried))


def _tensor(name, value, place, width=None):
    """`value` as a float64 tensor [n, width] or [runs, n, width] on `place`."""
    tensor = torch.as_tensor(value if isinstance(value, torch.Tensor) else np.asarray(value, dtype=np.float64))
    tensor = tensor.to(device=place, dtype=torch.float64)
    if tensor.ndim not in (2, 3) or 0 in tensor.shape or (width is not None and tensor.shape[-1] != width):
        last = "d" if width is None else width
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must have shape [n, {last}] or [runs, n, {last}]")
    if not tensor.is_meta and not torch.isfinite(tensor.sum()):
        raise ValueError(f"{name} has entries that are nan or infinite; all must be finite")
    return tensor


def _labels(y, x):
    """Labels as a tensor [n] or [runs, n] that goes with the inputs x [n, d] or [runs, n, d]."""
    y = torch.as_tensor(y if isinstance(y, torch.Tensor) else np.asarray(y, dtype=np.float64))
    y = y.to(device=x.device, dtype=torch.float64)
    runs = {shape[0] for shape in (y.shape[:-1], x.shape[:-2]) if len(shape)}
    if y.ndim not in (1, 2) or y.shape[-1] != x.shape[-2] or len(runs) > 1:
        raise ValueError(
            f"y has shape {tuple(y.shape)}; with inputs of shape {tuple(x.shape)} it must have shape "
            f"[{x.shape[-2]}] or [runs, {x.shape[-2]}]"
        )
    if not y.is_meta and not torch.isfinite(y.sum()):
        raise ValueError("y has entries that are nan or infinite; all must be finite")
    return y


def _apply(matrix, vector):
    """matrix [..., n, m] times vector [..., m]: [..., n]."""
    return (matrix @ vector[..., None])[..., 0]


def _rows(x, width):
    """Blocks of rows of x [..., n, d] such that a block with `width` numbers a row stays small."""
    return x.split(_block(x.shape[-2], width * math.prod(x.shape[:-2])), dim=-2)


def _block(count, width):
    return max(1, min(count, BLOCK // max(1, width)))


def _check_memory(side, runs, place, what):
    """Refuse a problem whose matrices of the given side cannot fit, before any work is done."""
    needed, there = 32 * side**2 * max(1, runs), _memory(place)
    if side > MOST_SIDE or needed > there:
        raise ValueError(
            f"{what}: the smaller of both is the side of dense matrices that take {needed / 1e9:.1f} GB"
            + (f" for {runs} runs" if runs > 1 else "")
            + f"; this device has {there / 1e9:.1f} GB, and the side may be at most {MOST_SIDE}. Use fewer samples, "
            "fewer features or fewer runs"
        )


def _memory(place):
    """Bytes of memory of the device (infinite where nobody says)."""
    if place.type == "cuda":
        return torch.cuda.mem_get_info(place)[0]
    if place.type == "cpu" and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf


# ------------------------------------------------------------------------------------------------- what theory expects


@dataclass(frozen=True)
class Learning:
    """What theory expects of a regression whose kernel has known eigenvalues, see `expected_learning`.

    learned      [degrees]  L_k: the fraction of the target's component of degree k that the fitted function contains
    unlearned    [degrees]  the part of its squared norm that is missed; (1 − L_k)² for a kernel
    overfitting  E ≥ 1: by how much noise and missed parts are amplified
    """

    learned: np.ndarray
    unlearned: np.ndarray
    overfitting: float

    def risk(self, energies, noise=0.0):
        """Expected test error E (Σ_k unlearned_k · energies_k + noise) − noise.

        `energies` [≤ degrees] are the squared norms of the target's parts by degree, `noise` the variance of the label
        noise, which is not counted in the error.
        """
        energies = np.asarray(energies, dtype=np.float64)
        return float(self.overfitting * (self.unlearned[: len(energies)] @ energies + noise) - noise)


def expected_learning(eigenvalues, multiplicities, n, ridge, width=math.inf):
    r"""Ridge regression on n samples, predicted from the kernel's spectrum: a `Learning`.

    The kernel has eigenvalues λ_k ≥ 0 with multiplicities B_k; `width` is the number N of random features that stand
    in for it (∞: the kernel itself). With z = Σ_k B_k L_k and q = Σ_k B_k L_k², let γ > 0 solve

        n = z + ridge/κ,      L_k = λ_k/(λ_k + γ),      κ = γ (1 − z/N).

    Then L_k is the learned fraction of degree k; for a kernel the rest is (1 − L_k)² and the overfitting n/(n − q)
    (Bordelon, Canatar and Pehlevan 2020; Simon et al. 2023; with random features Simon et al. 2024). Read: n samples,
    or N features, can learn n or N functions in all, and those of large eigenvalue come first.
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    counts = np.asarray(multiplicities, dtype=np.float64)
    n, ridge = checks.positive("n", n), checks.positive("ridge", ridge)
    if values.shape != counts.shape or values.ndim != 1 or (values < 0).any() or (counts < 0).any():
        raise ValueError("eigenvalues and multiplicities must be lists of one length with entries ≥ 0")
    if not width > 0:
        raise ValueError(f"width is {width!r}; it must be a number > 0, or math.inf for the kernel itself")
    # z falls with γ, and so does ridge/κ while z < N: bisection on log γ. At the upper end z < N and the sum ≤ n.
    low, high = -200.0, math.log((counts @ values + ridge) / min(n, width)) + math.log(2)
    for _ in range(80):
        gamma = math.exp((low + high) / 2)
        z = counts @ (values / (values + gamma))
        if z >= width or z + ridge / (gamma * (1 - z / width)) > n:
            low = (low + high) / 2
        else:
            high = (low + high) / 2
    gamma = math.exp(high)
    learned = values / (values + gamma)
    z, q = counts @ learned, counts @ learned**2
    if math.isinf(width):
        return Learning(learned, (1 - learned) ** 2, float(n / (n - q)))
    missed = (1 - learned) * (1 - learned * (1 - z / width) * width / (width - q))
    return Learning(learned, missed, float(1 / (1 - (q * (width - 2 * z) + z**2) / (n * (width - q)))))


def mehler_spectrum(rho, d, degree=40):
    """Eigenvalues ρ^k and multiplicities C(d + k − 1, k) of Mehler's kernel under N(0, I_d), for k = 0..degree."""
    k = np.arange(checks.whole_number("degree", degree, least=0) + 1)
    d = checks.whole_number("d", d, least=1)
    return checks.positive("rho", rho) ** k.astype(float), np.array([float(math.comb(d + i - 1, i)) for i in k])


def gaussian_spectrum(d, scale=1.0, degree=40):
    """Eigenvalues and multiplicities of the kernel exp(−s²|x − y|²/2d) under N(0, I_d), for k = 0..degree.

    In one dimension the eigenvalues are geometric, A ρ^k (Rasmussen and Williams 2006, section 4.3), so that the d-fold
    product has A^d ρ^k, C(d + k − 1, k) times: the spectrum of Mehler's kernel up to a factor. Its eigenfunctions
    are close to Hermite polynomials, not equal to them.
    """
    b = checks.positive("scale", scale) ** 2 / (2 * checks.whole_number("d", d, least=1))
    c = math.sqrt(1 / 16 + b / 2)
    values, counts = mehler_spectrum(b / (1 / 4 + b + c), d, degree)
    return (1 / 2 / (1 / 4 + b + c)) ** (d / 2) * values, counts
