r"""The one Hermite normalisation of the book, quadrature for the Gaussian measure, and expansions of links.

Convention: h_k = He_k / √(k!), so that E[h_j(z) h_k(z)] = δ_jk for z ~ N(0, 1). Two identities are used everywhere:

    h_k'(z) = √k h_{k−1}(z),        E[h_j(z) h_k(h)] = δ_jk m^k   for standard Gaussians z, h of correlation m.
"""

import functools
import math

import numpy as np
import torch

from lowdim import checks, functions

# Outside [−16, 16] the Gaussian density is below 1e-56: polynomials of degree 40 still contribute nothing there.
HALF_WIDTH = 16.0
FIRST_PANELS = 256
PANEL_ORDER = 16
MOST_EVALUATIONS = 4_000_000
# A panel is split until its two halves agree with the whole to this accuracy (relative to the root mean square of f).
PANEL_TOLERANCE = 1e-14
# A coefficient below this fraction of the standard deviation of f counts as zero: far above the quadrature error
# (about 1e-13) and far below any coefficient that a finite experiment could feel.
ZERO_COEFFICIENT = 1e-9


def basis(z, degree):
    """Evaluate h_0..h_degree at `z` (NumPy array or torch tensor of any shape […]): shape […, degree + 1].

    Uses the three-term recurrence √(k+1) h_{k+1} = z h_k − √k h_{k−1}, which is stable for all z.
    """
    degree = checks.whole_number("degree", degree, least=0)
    is_tensor = isinstance(z, torch.Tensor)
    z = z if is_tensor else np.asarray(z, dtype=np.float64)
    columns = [torch.ones_like(z) if is_tensor else np.ones_like(z)]
    if degree >= 1:
        columns.append(z)
    for k in range(1, degree):
        columns.append((z * columns[k] - math.sqrt(k) * columns[k - 1]) / math.sqrt(k + 1))
    return torch.stack(columns, dim=-1) if is_tensor else np.stack(columns, axis=-1)


# Up to this degree polynomials are evaluated in powers of z: a quarter of the passes, and no cancellation to fear.
HORNER_DEGREE = 4


def evaluate(coefficients, z):
    """Evaluate Σ_k α_k h_k(z) for orthonormal coefficients α_0..α_K and `z` of any shape (NumPy or torch)."""
    alpha = [float(a) for a in coefficients]
    if not alpha:
        raise ValueError("coefficients is empty; at least α_0 is needed")
    z = z if isinstance(z, torch.Tensor) else np.asarray(z, np.float64)
    one = torch.ones_like(z) if isinstance(z, torch.Tensor) else np.ones_like(z)
    if len(alpha) - 1 <= HORNER_DEGREE:
        powers = np.polynomial.hermite_e.herme2poly([a / math.sqrt(math.factorial(k)) for k, a in enumerate(alpha)])
        total = one * float(powers[-1])
        for c in powers[-2::-1]:
            total = total * z + float(c) if c else total * z
        return total
    previous, current, total = 0.0, one, one * alpha[0]
    for k, a in enumerate(alpha[1:], start=1):
        previous, current = current, (z * current - math.sqrt(k - 1) * previous) / math.sqrt(k)
        total = total + current * a
    return total


def derivative(coefficients):
    """Return the orthonormal coefficients of f' from those of f: (f')_{k−1} = √k α_k. Length K for input K + 1."""
    alpha = np.asarray(coefficients, dtype=np.float64)
    return np.sqrt(np.arange(1, len(alpha))) * alpha[1:]


@functools.lru_cache(maxsize=32)
def gauss(order):
    """Nodes and weights [order] with Σ_i w_i p(z_i) = E[p(z)] for every polynomial p of degree < 2·order."""
    order = checks.whole_number("order", order, least=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    nodes.setflags(write=False)
    weights.setflags(write=False)
    return nodes, weights


def rule(f, degree=20):
    """Return nodes and weights [n] of a quadrature for N(0, 1) that is fitted to the function `f`.

    Σ_i w_i f(z_i) h_k(z_i) = E[f(z) h_k(z)] to about 1e-13 (relative to the root mean square of f) for k ≤ degree,
    also when f has kinks or jumps at places that nobody told us. Gauss–Hermite converges only like n^{−1/2} there.
    Method: Gauss–Legendre on panels; a panel is halved until both halves agree with the whole for every k ≤ degree.
    """
    f = functions.vectorised(f, "f").numpy
    edges = np.linspace(-HALF_WIDTH, HALF_WIDTH, FIRST_PANELS + 1)
    left, right = edges[:-1], edges[1:]
    whole, z, w, level = _panel_integrals(f, left, right, degree)
    size = max(level, np.finfo(float).tiny)
    done_z, done_w, evaluations = [], [], z.size
    while len(left):
        middle = (left + right) / 2
        left_half, z_left, w_left, _ = _panel_integrals(f, left, middle, degree)
        right_half, z_right, w_right, _ = _panel_integrals(f, middle, right, degree)
        evaluations += z_left.size + z_right.size
        gap = np.abs(left_half + right_half - whole).max(axis=1)
        finest = (right - left) < 1e-13
        agree = (gap <= PANEL_TOLERANCE * size) | finest
        done_z += [z_left[agree].ravel(), z_right[agree].ravel()]
        done_w += [w_left[agree].ravel(), w_right[agree].ravel()]
        split = ~agree
        left, middle, right = left[split], middle[split], right[split]
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        whole = np.concatenate([left_half[split], right_half[split]])
        if evaluations > MOST_EVALUATIONS:
            raise ValueError(
                f"f could not be integrated against the Gaussian within {MOST_EVALUATIONS:,} evaluations: "
                "it must be piecewise smooth (a random function is not)"
            )
    z, w = np.concatenate(done_z), np.concatenate(done_w)
    order = np.argsort(z)
    return z[order], w[order]


def _panel_integrals(f, left, right, degree):
    """Integrals [panels, degree + 1] of f h_k φ over panels, the nodes, their weights, and the root mean square."""
    x, v = np.polynomial.legendre.leggauss(PANEL_ORDER)
    half = (right - left)[:, None] / 2
    z = (left + right)[:, None] / 2 + half * x
    w = half * v * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    values = f(z.ravel()).reshape(z.shape)
    if not np.isfinite(values).all():
        bad = z.ravel()[~np.isfinite(values.ravel())][0]
        raise ValueError(f"f returns {f(np.array([bad, bad]))[0]} at z = {bad:.6g}; it must be finite on [−16, 16]")
    moments = np.einsum("pn,pnk->pk", w * values, basis(z, degree))
    return moments, z, w, math.sqrt(float(np.sum(w * values**2)))


def coefficients(f, degree):
    """Return the orthonormal Hermite coefficients α_0..α_degree of `f`, shape [degree + 1]: α_k = E[f(z) h_k(z)].

    `f` is a vectorised callable written with NumPy or with torch. Accurate to about 1e-13 relative to the root mean
    square of f, for polynomials as well as for links with kinks or jumps.
    """
    degree = checks.whole_number("degree", degree, least=0)
    function = functions.vectorised(f, "f")
    z, w = rule(function, degree)
    return basis(z, degree).T @ (w * function.numpy(z))


def tensor_coefficients(f, directions, degree):
    """Coefficients of a function of r = `directions` variables in products of Hermite polynomials, [degree + 1]^r:

        α_{k_1…k_r} = E[f(z) h_{k_1}(z_1) ⋯ h_{k_r}(z_r)],     z ~ N(0, I_r).

    `f` maps arrays […, r] to […] (NumPy or torch). Gauss–Legendre on the half lines z_i < 0 and z_i > 0 with 48 nodes
    each: accurate to about 1e-9 for functions that are smooth away from the planes z_i = 0, as all targets of the book
    are. r ≤ 3 (the grid has 96^r points).
    """
    r = checks.whole_number("directions", directions, least=1)
    degree = checks.whole_number("degree", degree, least=0)
    if r > 3:
        raise ValueError(f"directions is {r}; a grid is possible for at most 3")
    f = functions.vectorised(f, "f", r)
    x, v = np.polynomial.legendre.leggauss(48)
    z = np.concatenate([-5.5 * (1 + x)[::-1], 5.5 * (1 + x)])
    w = np.concatenate([v[::-1], v]) * 5.5 * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    grid = np.stack(np.meshgrid(*[z] * r, indexing="ij"), axis=-1)
    values = f.numpy(grid[..., 0] if r == 1 else grid)
    one_direction = basis(z, degree) * w[:, None]
    for _ in range(r):
        # Each product removes the first axis of the grid and appends the degrees along it.
        values = np.tensordot(values, one_direction, axes=(0, 0))
    return values


def energies(f, directions, degree):
    """Squared norms ‖P_k f‖² of the parts of degree k = 0..degree of f(z), z ~ N(0, I_r): an array [degree + 1].

    Their sum over all k is E[f²]. See `tensor_coefficients` for what `f` may be.
    """
    alpha = tensor_coefficients(f, directions, degree)
    total = sum(np.meshgrid(*[np.arange(degree + 1)] * alpha.ndim, indexing="ij"))
    return np.bincount(total.ravel(), weights=alpha.ravel() ** 2)[: degree + 1]


def information_exponent(f, max_degree=20):
    """Return the information exponent min{k ≥ 1 : α_k ≠ 0} of `f`, or math.inf when there is none up to max_degree.

    "≠ 0" means |α_k| > 1e-9 times the standard deviation of f, so that quadrature noise does not count.
    """
    max_degree = checks.whole_number("max_degree", max_degree, least=1)
    function = functions.vectorised(f, "f")
    z, w = rule(function, max_degree)
    values = function.numpy(z)
    mean = np.sum(w * values)
    deviation = math.sqrt(float(np.sum(w * (values - mean) ** 2)))
    # A constant has a standard deviation of rounding size only.
    if deviation <= 1e-12 * max(1.0, abs(mean)):
        return math.inf
    alpha = basis(z, max_degree).T @ (w * (values - mean))
    nonzero = np.flatnonzero(np.abs(alpha[1:]) > ZERO_COEFFICIENT * deviation)
    return int(nonzero[0]) + 1 if len(nonzero) else math.inf
