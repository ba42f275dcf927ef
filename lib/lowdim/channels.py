r"""Channels: what a label says about the fields of its sample, E[h | y] and Cov[h | y] when h ~ N(ω, V).

Closed forms where they exist (level sets, parities), quadrature where they do not. The public names are those of
`lowdim.amp`.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.special import ndtri

from lowdim import functions, queries, targets
from lowdim.thresholds import Model, model_of, sobol

# Variances are kept above TINY: below it a field is known for all purposes.
TINY = 1e-10
# Nodes per sample times samples that a denoiser handles at once (memory of some 100 MB).
BLOCK = 1_500_000
REACH = 9.0  # level sets of one direction are searched on [−9, 9]
GRID = 4001
HALVINGS = 55
ORTHANT_NODES = 8
LINE_NODES, PLANE_NODES, COMMITTEE_NODES, PARITY_NODES = 121, 61, 21, 12
MOST_LINE_NODES, MOST_PLANE_NODES = 1601, 97
CLIP = 8.0  # standard deviations beyond which orthant probabilities are not followed
STEEPEST = 20.0  # bound on the gradient of log-probabilities of orthants, in those units


@dataclass(frozen=True)
class Channel:
    """What a label says about h when h ~ N(ω, V): the denoiser of a model; made by `channel`.

    `parts` turns labels into what the denoiser needs (done once by `prepare`, labels do not change). `posterior` maps
    (prepared, ω [runs, n, r], V [runs, r, r]) to mean [runs, n, r] and covariance [runs, n, r, r] of h given y.
    `nodes` is the number of points that it evaluates for a sample. `bounded` says for each direction whether a label
    leaves h spread out (discrete or noisy labels) instead of pinning it to points.
    """

    model: Model
    parts: object = field(repr=False)
    posterior: object = field(repr=False)
    nodes: int = 1
    bounded: tuple = (False,)

    def prepare(self, y):
        """What `posterior` needs of the labels y [runs, n], in double precision: a tuple of tensors [runs, n, ...]."""
        return self.parts(y.to(torch.float64))

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
        return _times(mean - omega, inverse), _sandwich(cov - V[:, None], inverse)


def channel(target, r=None, noise=0.0):
    """The `Channel` of a target. Arguments as in `weak_recovery_threshold`.

    One direction: any piecewise monotone link without noise (level sets by bisection, flat pieces as intervals), any
    link with noise (quadrature). Two: sign(h_1 h_2) in closed form; any function with label noise, or with at most 64
    values, by quadrature. Three: sign(h_1 h_2 h_3), f(h_1) + sign(h_1 h_2 h_3), and the noisy committee.
    """
    return channel_of(model_of(target, r, noise))


def channel_of(model):
    name = _recognised(model)
    if model.r == 1:
        return _line_channel(model) if model.is_noisy else _level_channel(model)
    if name == "parity2" and not model.noise:
        return Channel(model, lambda y: (torch.sign(y),), _parity2_posterior, 1, (True, True))
    if name == "parity2":
        return _noisy_parity2_channel(model)
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
    h = ndtri(sobol(model.r, 6, 7))
    values = np.asarray(model.link(h), dtype=float)
    for name in ("parity2", "parity3", "square+parity3", "He2+parity3", "He4+parity3"):
        known = targets.get(name)
        if known.directions == model.r and np.allclose(known(h.copy()), values, atol=1e-12):
            return name
    return model.target.name


# Products with one small matrix for each run. Matrix by matrix, as `@` would do them, they take ten times as long.


def _times(x, S):
    """Rows x [runs, ..., r] times the matrix S [runs, r, r] of their run."""
    return (x.flatten(1, -2) @ S).view(x.shape)


def _sandwich(X, S):
    """S X S for matrices X [runs, ..., r, r] and the symmetric matrix S [runs, r, r] of their run."""
    r = S.shape[-1]
    double = (S[:, :, None, :, None] * S[:, None, :, None, :]).reshape(-1, r * r, r * r)  # S ⊗ S acts on vec(X)
    return _times(X.flatten(-2), double).view(X.shape)


def _moments(h, logits):
    """Mean [..., r] and covariance [..., r, r] of points h [..., K, r] with log-weights [..., K]."""
    p, r = torch.softmax(logits, dim=-1), h.shape[-1]
    mean = (p[..., None] * h).sum(-2)
    shifted = (h - mean[..., None, :]).unbind(-1)
    entries = {(a, b): (p * shifted[a] * shifted[b]).sum(-1) for a in range(r) for b in range(a, r)}
    cov = torch.stack([entries[min(a, b), max(a, b)] for a in range(r) for b in range(r)], -1)
    return mean, cov.unflatten(-1, (r, r))


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
        h = ndtri(sobol(2, 12, 3))
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
    edges = np.linspace(-6, 6, _plane_nodes(model))
    grid = np.stack(np.meshgrid(edges, edges + 0.37 * (edges[1] - edges[0]), indexing="ij"), -1).reshape(-1, 2)

    def posterior(prepared, omega, V):
        t = torch.as_tensor(grid, dtype=omega.dtype, device=omega.device)
        h = omega[..., None, :] + (t @ matrix_root(V))[:, None]
        return _moments(h, loglik(prepared[0][..., None], h) - t.square().sum(-1) / 2)

    return Channel(model, lambda y: (y,), posterior, len(grid) * 2, (True, True))


def _plane_nodes(model):
    """Nodes along each axis: steps about as wide as the likelihood, and many where labels are discrete and jump."""
    if not model.noise:
        return MOST_PLANE_NODES
    h, step = ndtri(sobol(2, 8, 5)), 1e-4
    values = np.asarray(model.link(h))
    slopes = [np.abs(np.asarray(model.link(h + step * e)) - values) / step for e in np.eye(2)]
    return int(np.clip(12 * np.quantile(slopes, 0.95) / (1.2 * model.noise), PLANE_NODES, MOST_PLANE_NODES))


def matrix_root(matrix):
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
    rho = (V[..., 0, 1] / (s1 * s2)).clamp(-1 + 1e-9, 1 - 1e-9)  # one number for each run
    a, b = omega[..., 0] / s1, omega[..., 1] / s2
    flip_a, flip_b = torch.where(a < 0, -1.0, 1.0), torch.where(b < 0, -1.0, 1.0)
    both = flip_a * flip_b
    a, b, sign = (a * flip_a).clamp_max(CLIP), (b * flip_b).clamp_max(CLIP), sign * both
    tail_a, tail_b = torch.special.ndtr(-a), torch.special.ndtr(-b)
    differ = (tail_a + tail_b - 2 * _orthant(a, b, rho, both, tail_a * tail_b)).clamp(1e-17, 1 - 1e-12)
    z = torch.where(sign > 0, 1 - differ, differ)
    c, rho = (1 - rho.square()).sqrt(), rho * both
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


def _orthant(a, b, rho, flip, product):
    """P(h_1 > a, h_2 > b) with correlation ρ·flip (flip = ±1), given product = Φ(−a)Φ(−b), by Plackett's identity:

    Φ(−a)Φ(−b) + (1/2π) ∫_0^{arcsin ρ} exp(−(a² + b² − 2ab sin θ)/(2 cos² θ)) dθ. ρ has one value for each run.
    """
    x, w = np.polynomial.legendre.leggauss(ORTHANT_NODES)
    angle, total = torch.arcsin(rho), torch.zeros_like(product)
    squares, cross = a.square() + b.square(), 2 * a * b * flip
    for node, weight in zip(x, w, strict=True):
        sine = torch.sin(angle * (0.5 * (node + 1)))
        scale = 0.5 / (1 - sine.square())
        total = total + weight * torch.exp(cross * (sine * scale) - squares * scale)
    return product + flip * angle * total / (4 * math.pi)


def _parity2_posterior(prepared, omega, V):
    _, gradient, hessian = _parity2(prepared[0], omega, V[:, None])
    return omega + _times(gradient, V), V[:, None] + _sandwich(hessian, V)


def _noisy_parity2_channel(model):
    """sign(h_1 h_2) + t ξ: a mixture of the two signs, weighted with their likelihoods."""

    def posterior(prepared, omega, V):
        sign = torch.tensor([1.0, -1.0], dtype=omega.dtype, device=omega.device)
        log_z, gradient, hessian = _parity2(sign, omega[..., None, :], V[:, None, None])
        logits = log_z - (prepared[0][..., None] - sign).square() / (2 * model.noise**2)
        mean, cov = _moments(omega[..., None, :] + _times(gradient, V), logits)
        spread = V[:, None, None] + _sandwich(hessian, V)
        return mean, cov + (torch.softmax(logits, -1)[..., None, None] * spread).sum(-3)

    return Channel(model, lambda y: (y,), posterior, 2 * ORTHANT_NODES, (True, True))


def _parity_mixture(h1, logits, sign, omega, V):
    """Posterior of h in R³ when h_1 is one of the points h1 [runs, n, K] and sign(h_2 h_3) = sign [runs, n, K].

    `logits` are log-weights of the points without the factor P(sign(h_2 h_3) = sign | h_1).
    """
    slope = V[:, 1:, 0] / V[:, :1, 0]
    rest = V[:, 1:, 1:] - slope[:, :, None] * V[:, :1, 1:]
    rest = rest + TINY * torch.eye(2, dtype=V.dtype, device=V.device)
    shifted = omega[..., None, 1:] + (h1 - omega[..., :1])[..., None] * slope[:, None, None, :]
    log_z, gradient, hessian = _parity2(sign, shifted, rest[:, None, None])
    inner = shifted + _times(gradient, rest)
    spread = rest[:, None, None] + _sandwich(hessian, rest)
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
        h = omega[..., None, :2] + (t @ matrix_root(V[:, :2, :2]))[:, None]
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
