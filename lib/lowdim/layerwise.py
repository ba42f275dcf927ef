r"""Layer-wise training of a three-layer network: the machinery of `sgd.train_three_layer`.

Every trained layer is kept in the form (random, fixed) × (learned, thin): W₁ = R Vᵀ with V [d, k] orthonormal, and
W₂ = C Uᵀ with U [p₁, r]. What a frozen layer computes is computed once and reused by everything above it. Two kinds of
steps are used, both full-batch gradient steps:

- an orthogonalised step V ← orth(Σ_i t_i (x_i x_iᵀ − I) V), the gradient of the correlation loss of neurons h₂(⟨v, x⟩);
- a preconditioned step Θ ← Θ + (JᵀJ/n + λ)⁻¹ Jᵀ(y − f)/n on the squared loss, J = ∂f/∂Θ (Gauss–Newton).

All tensors have a leading runs axis; λ is chosen for each run on the held-out part of its sample.
"""

import math
from dataclasses import dataclass, replace

import torch

# Ridge parameters tried, in units of the mean eigenvalue of the features' covariance.
HEAD_RIDGES = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
STEP_RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True)
class Data:
    """Rows 0..cut−1 are for training, cut..n−1 held out for choices, n.. for the test.

    x [runs, rows, d], y [runs, rows]; z* enters through `directions` [runs, r·m, d], `h` [runs, rows, r] is h*.
    """

    x: torch.Tensor
    y: torch.Tensor
    h: torch.Tensor
    directions: torch.Tensor
    cut: int
    n: int

    def test_error(self, predictions):
        """Mean squared test error of predictions [runs, rows], divided by the variance of the labels: [runs]."""
        y = self.y[:, self.n :]
        return (y - predictions[:, self.n :]).square().mean(-1) / y.var(-1)

    def held_error(self, predictions):
        """Mean squared error [runs] on the held-out rows."""
        return (self.y - predictions)[:, self.cut : self.n].square().mean(-1)


@dataclass(frozen=True)
class Head:
    """A linear read-out f = ⟨w, F − mean⟩ + level of features F [runs, rows, p]: w [runs, p], mean [runs, p]."""

    w: torch.Tensor
    mean: torch.Tensor
    level: torch.Tensor

    def __call__(self, features):
        return ((features - self.mean[:, None]) @ self.w[..., None])[..., 0] + self.level[:, None]


def fit(features, y, cut, n, ridges=HEAD_RIDGES):
    """Ridge regression of y [runs, rows] on features [runs, ≥ n, p], rows below `cut`; λ by the error on cut..n−1."""
    mean, level = features[:, :cut].mean(1), y[:, :cut].mean(1)
    centred = features[:, :cut] - mean[:, None]
    gram = (centred.mT @ centred / cut).double()
    moment = ((y[:, :cut] - level[:, None])[:, None] @ centred / cut)[:, 0].double()
    s, u = torch.linalg.eigh(gram)
    s = s.clamp(min=0)
    lam = s.mean(-1, keepdim=True) * torch.tensor(ridges, device=s.device, dtype=s.dtype)
    size = lam[:, None, :] + s[..., None]
    tried = u @ ((moment[:, None] @ u).mT / size.clamp(min=torch.finfo(s.dtype).tiny))
    held = (features[:, cut:n] - mean[:, None]) @ tried.to(features.dtype) + level[:, None, None]
    best = (held - y[:, cut:n, None]).square().mean(1).argmin(-1)
    w = tried.gather(-1, best[:, None, None].expand(-1, tried.shape[1], 1))[..., 0]
    return Head(w.to(features.dtype), mean, level)


def degree_two(x, y):
    r"""The matrix M = (1/n) Σ_i t_i (x_i x_iᵀ − I) [runs, d, d], where t is y without its mean and linear part."""
    n, d = x.shape[-2:]
    inputs = torch.cat([torch.ones_like(x[..., :1]), x], dim=-1)
    gram, moment = (inputs.mT @ inputs).double(), (inputs.mT @ y[..., None]).double()
    # A tiny ridge: with n ≤ d samples the fit would be exact and nothing would be left of the label.
    eye = torch.eye(d + 1, device=x.device, dtype=torch.float64)
    t = y - (inputs @ torch.linalg.solve(gram + 1e-6 * n * eye, moment).to(x.dtype))[..., 0]
    return (x * t[..., None]).mT @ x / n - t.mean(-1)[..., None, None] * torch.eye(d, device=x.device, dtype=x.dtype)


def orthonormal(v):
    """The orthonormal columns of v [..., d, k] by Gram–Schmidt (QR with a positive diagonal)."""
    q, r = torch.linalg.qr(v)
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(v.dtype)
    return q * sign[..., None, :]


def subspace_overlap(directions, v):
    """The fraction |W* V|²/k of the columns of v [runs, d, k] that lies in the span of the rows of `directions`."""
    return (directions @ v).square().sum((-2, -1)) / min(v.shape[-1], directions.shape[-2])


def explained(h, u):
    """R² of the linear regression of each column of h [runs, rows, r] on u [runs, rows, q]: [runs, r]."""
    h, u = (v - v.mean(1, keepdim=True) for v in (h.double(), u.double()))
    gram = u.mT @ u
    size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    solved = torch.linalg.solve(gram + 1e-9 * size * torch.eye(u.shape[-1], device=u.device, dtype=u.dtype), u.mT @ h)
    return ((u.mT @ h) * solved).sum(1) / h.square().sum(1)


@dataclass(frozen=True)
class FirstLayer:
    """W₁ = mix · vᵀ, its features on all rows, and what happened on the way.

    overlaps [runs, steps + 1]; shallow [runs, refinements + 1]: test error of a linear head on φ, that is of the
    two-layer network that the first layer and this head are.
    """

    weights: torch.Tensor
    features: torch.Tensor
    overlaps: torch.Tensor
    shallow: torch.Tensor


def untrained_first_layer(network, data, rank):
    """The first layer as it was drawn."""
    features = _first_features(network, network.first, data.x)
    overlap = subspace_overlap(data.directions, orthonormal(network.first.mT[..., :rank]))
    error = data.test_error(fit(features, data.y, data.cut, data.n)(features))
    return FirstLayer(network.first, features, overlap[:, None], error[:, None])


def train_first_layer(network, data, rank, power_steps, refinements, tick):
    """Orthogonalised steps on the degree-two gradient, then preconditioned steps through a linear head on φ."""
    v = orthonormal(network.first.mT[..., :rank])
    overlaps, shallow = [subspace_overlap(data.directions, v)], []
    m = degree_two(data.x[:, : data.cut], data.y[:, : data.cut])
    for _ in range(power_steps):
        v = orthonormal(m @ v)
        overlaps.append(subspace_overlap(data.directions, v))
    mix = torch.nn.functional.normalize(network.first @ v, dim=-1)
    best, least = v, None
    for step in range(refinements + 1):
        features = _first_features(network, mix @ v.mT, data.x)
        head = fit(features, data.y, data.cut, data.n)
        predictions = head(features)
        error = data.held_error(predictions)
        better = torch.ones_like(error, dtype=torch.bool) if least is None else error < least
        best = torch.where(better[:, None, None], v, best)
        least = error if least is None else torch.minimum(least, error)
        shallow.append(data.test_error(predictions))
        if step < refinements:
            slopes = first_slopes(network, mix, v, head.w, data.x[:, : data.n])
            v = orthonormal(v + _preconditioned(data.x, slopes, data.y - predictions, data))
            overlaps.append(subspace_overlap(data.directions, v))
        tick()
    weights = mix @ best.mT
    features = _first_features(network, weights, data.x)
    return FirstLayer(weights, features, torch.stack(overlaps, 1), torch.stack(shallow, 1))


def first_slopes(network, mix, v, w, x):
    """∂f/∂z [runs, n, k] of f = ⟨w, σ₁(R z + b₁)⟩/√p₁ at z = Vᵀx: the gradient with respect to V is Σ x ⊗ ∂f/∂z."""
    h = (x @ v) @ mix.mT + network.first_biases[:, None]
    return (network.activations[0].derivative(h) * w[:, None]) @ mix / math.sqrt(mix.shape[-2])


def train_second_layer(network, data, features, r, refinements, tick):
    """U [runs, p₁, r] and b₂, features ψ on all rows, and R² of h* given u at each step [runs, steps + 1, r]."""
    test = slice(data.n, None)
    start = features @ network.second.mT[..., :r]
    overlaps = [explained(data.h[:, test], start[:, test])]
    head = fit(features, data.y, data.cut, data.n)
    centred = features - head.mean[:, None]
    u = head.w[..., None]
    if r > 1:
        u = torch.cat([u, _further_directions(centred, u, data, r - 1)], dim=-1)
    mix = network.second[..., :r]
    best, least = None, None
    for step in range(refinements + 1):
        u = _standardised(u, centred[:, : data.cut])
        inputs = centred @ u
        overlaps.append(explained(data.h[:, test], inputs[:, test]))
        second = _second_features(network, inputs, mix)
        readout = fit(second, data.y, data.cut, data.n)
        predictions = readout(second)
        error = data.held_error(predictions)
        better = torch.ones_like(error, dtype=torch.bool) if least is None else error < least
        best = u if best is None else torch.where(better[:, None, None], u, best)
        least = error if least is None else torch.minimum(least, error)
        if step < refinements:
            slopes = second_slopes(network, inputs[:, : data.n], mix, readout.w)
            u = u + _preconditioned(centred, slopes, data.y - predictions, data)
        tick()
    weights = mix @ best.mT
    biases = network.second_biases - (weights @ head.mean[..., None])[..., 0]
    second = _second_features(network, centred @ best, mix)
    return weights, biases, second, torch.stack(overlaps, 1)


def second_slopes(network, u, mix, w):
    """∂f/∂u [runs, n, r] of f = ⟨w, σ₂(C u + b₂)⟩/√p₂: the gradient with respect to U is Σ φ ⊗ ∂f/∂u."""
    inputs = u @ mix.mT + network.second_biases[:, None]
    return (network.activations[1].derivative(inputs) * w[:, None]) @ mix / math.sqrt(mix.shape[-2])


def _first_features(network, weights, x):
    return replace(network, first=weights).first_features(x)


def _second_features(network, u, mix):
    inputs = u @ mix.mT + network.second_biases[:, None]
    return network.activations[1].torch(inputs) / math.sqrt(mix.shape[-2])


def _preconditioned(inputs, slopes, residual, data):
    """The step (JᵀJ/n + λ)⁻¹ Jᵀ e/n for J = inputs ⊗ slopes, as a matrix [runs, p, q]; λ by the held-out rows."""
    jacobian = (inputs[:, : data.n, :, None] * slopes[:, :, None, :]).flatten(2)
    step = fit(jacobian, residual[:, : data.n], data.cut, data.n, STEP_RIDGES).w
    return step.unflatten(-1, (inputs.shape[-1], slopes.shape[-1]))


def _standardised(u, centred):
    """u [runs, p₁, r] such that the columns of centred @ u are uncorrelated, with variance one."""
    values = (centred @ u).double()
    covariance = values.mT @ values / values.shape[1]
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    eye = torch.eye(u.shape[-1], device=u.device, dtype=torch.float64)
    factor = torch.linalg.cholesky(covariance + 1e-12 * scale * eye)
    return torch.linalg.solve_triangular(factor.mT, u.double(), upper=True, left=False).to(u.dtype)


def _further_directions(centred, u, data, count):
    r"""Directions [runs, p₁, count] beyond u by the same idea one level up: the lowest eigenvectors of

        B = (1/n) Σ_i t_i φ̃_i φ̃_iᵀ,    t = y tanh(u) without its mean,

    in whitened features φ̃ orthogonal to u and divided by their length in each sample. It is the gradient of the
    correlation loss of a neuron that sees αu + εv, to first order in ε. For a sum of saturating links the coefficient
    of u·He₂(v) in the label is negative: both branches together say less than one of them twice. Without the tanh and
    the lengths the heavy tails of cubic features hide it.
    """
    train = centred[:, : data.cut]
    s, e = torch.linalg.eigh((train.mT @ train / data.cut).double())
    # Directions without variance carry no information: they are left out.
    inverse = torch.where(s > 1e-5 * s.mean(-1, keepdim=True), s.clamp(min=1e-30).rsqrt(), torch.zeros_like(s))
    whiten = (e * inverse[:, None]).to(train.dtype)
    white = train @ whiten
    y = data.y[:, : data.cut]
    first = (train @ u)[..., 0]
    first = first / first.std(1, keepdim=True)
    t = (y - y.mean(1, keepdim=True)) * torch.tanh(first)
    t = t - t.mean(1, keepdim=True)
    along = torch.nn.functional.normalize((white.mT @ first[..., None]).double(), dim=1)
    white = white / white.square().mean(-1, keepdim=True).sqrt()
    b = ((white * t[..., None]).mT @ white / data.cut).double()
    b = b - along @ (along.mT @ b)
    b = b - (b @ along) @ along.mT
    lowest = torch.linalg.eigh(b).eigenvectors[..., :count]
    return whiten @ lowest.to(train.dtype)
