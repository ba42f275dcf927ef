r"""Learning in context: tasks, what no learner without examples can beat, linear attention, and Algorithm 2.

A prompt is (x_1, y_1, …, x_n, y_n, x) with x_i ~ N(0, I_d) and y_i = f(⟨θ, x_i⟩). The direction θ is new in every
prompt, uniform on the unit sphere of a hidden subspace S of dimension r ("the task"); S and the link f stay. The
learner gives y = f(⟨θ, x⟩) for the query x. It may be trained on many prompts before; its parameters do not change
while it reads one.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from lowdim import checks, hermite, kernels, links, targets
from lowdim import device as devices
from lowdim.gpt import GPT, Curriculum, Settings, Training, preset, risks, train
from lowdim.progress import bar

__all__ = [
    "GPT",
    "Curriculum",
    "Settings",
    "Training",
    "preset",
    "risks",
    "train",
]  # from lowdim.gpt, besides what is here

# --- Tasks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompts:
    """Prompts as tensors: `x` [T, n, d], `y` [T, n] and the hidden directions `theta` [T, d]."""

    x: torch.Tensor
    y: torch.Tensor
    theta: torch.Tensor


@dataclass(frozen=True)
class Tasks:
    """Single-index tasks y = f(⟨θ, x⟩) with θ uniform on the unit sphere of the columns of `subspace` [d, r]."""

    target: targets.Target
    subspace: torch.Tensor = field(repr=False, compare=False)

    @property
    def d(self):
        """Dimension of the inputs."""
        return self.subspace.shape[0]

    @property
    def r(self):
        """Dimension of the subspace S of the directions θ."""
        return self.subspace.shape[1]

    @property
    def device(self):
        """Where prompts are drawn."""
        return self.subspace.device

    def directions(self, count, generator, *, angle=0.0):
        """Directions θ [count, d]: cos(angle)·u + sin(angle)·v with u uniform in S and v uniform orthogonal to S."""
        angle = checks.finite("angle", angle)
        options = {"generator": generator, "device": self.device, "dtype": self.subspace.dtype}
        inside = torch.randn(count, self.r, **options) @ self.subspace.mT
        theta = math.cos(angle) * torch.nn.functional.normalize(inside, dim=-1)
        if angle:
            v = torch.randn(count, self.d, **options)
            v = v - v @ self.subspace @ self.subspace.mT
            theta = theta + math.sin(angle) * torch.nn.functional.normalize(v, dim=-1)
        return theta

    def draw(self, count, n, generator, *, theta=None, scale=1.0, coordinates=None):
        """`count` prompts of n points: `Prompts`. The last point may serve as the query.

        theta        [count, d] other directions than those of the tasks
        scale        s in x ~ N(0, s² I)
        coordinates  coordinates of x beyond this number are zero
        """
        if theta is None:
            theta = self.directions(count, generator)
        x = torch.randn(count, n, self.d, generator=generator, device=self.device, dtype=self.subspace.dtype)
        if scale != 1.0:
            x = x * checks.positive("scale", scale)
        if coordinates is not None and coordinates < self.d:
            x[..., coordinates:] = 0.0
        return Prompts(x, self.target.vectorised.torch((x @ theta[..., None])[..., 0]), theta)


def tasks(target, d, r, *, seed=0, device=None):
    """Draw a subspace of dimension r in R^d at random and return the `Tasks` on it.

    target  the link f: a name such as "h2", a `Target` or `Link` of one direction without noise, or a function. The
            subspace is that of the seed on every device.
    """
    d, r = checks.whole_number("d", d, least=1), checks.whole_number("r", r, least=1)
    if r > d:
        raise ValueError(f"r is {r}; it must be at most d = {d}")
    target = targets.resolve(target)
    if target.directions != 1 or target.is_noisy:
        raise ValueError(f"target is {target.name!r}; it must be a function of one direction, without noise")
    place = devices.resolve(device)
    generator = devices.generator(torch.device("cpu"), seed)
    basis = torch.linalg.qr(torch.randn(d, r, generator=generator, dtype=torch.float64))[0]
    return Tasks(target, basis.to(device=place, dtype=torch.float32))


def sphere_moment(k, r):
    """E[u^k] of a coordinate u of a uniform point of the unit sphere in R^r: (k−1)!!/(r(r+2)⋯(r+k−2)), 0 for odd k."""
    k, r = checks.whole_number("k", k, least=0), checks.whole_number("r", r, least=1)
    if k % 2:
        return 0.0
    return math.prod((2 * j + 1) / (r + 2 * j) for j in range(k // 2))


def prior_floor(target, r, degree=20):
    r"""The least risk E(y − ŷ)² of a learner that knows S and f but sees no example.

    It answers E_θ[f(⟨θ, x⟩)]. Since E[h_j(⟨θ, x⟩) h_k(⟨θ', x⟩)] = δ_jk ⟨θ, θ'⟩^k for two tasks of one input, with
    f = Σ α_k h_k

        floor = E[f²] − Σ_k α_k² E[⟨θ, θ'⟩^k].

    With r = d it is the floor of a learner that knows f but not S. Terms up to `degree` are summed.
    """
    target = targets.resolve(target)
    alpha = hermite.coefficients(target.vectorised, degree)
    energy = hermite.coefficients(lambda z: target.vectorised.numpy(z) ** 2, 0)[0]
    return float(energy - sum(a**2 * sphere_moment(k, r) for k, a in enumerate(alpha)))


# --- Linear attention on linear functions -------------------------------------------------------------------------


def linear_attention_gamma(covariance, n):
    r"""The Γ [d, d] that minimises E(y − ⟨x, Γ (1/n) Σ_i y_i x_i⟩)² over tasks y = ⟨θ, x⟩, as a NumPy array.

    Inputs are Gaussian with covariance Λ = `covariance` [d, d]; E[θθᵀ] is a multiple of I. Then

        Γ = ((1 + 1/n) Λ + (tr Λ/n) I)⁻¹,

    which for Λ = I is the number n/(n + d + 1).
    """
    covariance = np.asarray(covariance, dtype=np.float64)
    n = checks.whole_number("n", n, least=1)
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise ValueError(f"covariance has shape {covariance.shape}; it must have shape [d, d]")
    return np.linalg.inv((1 + 1 / n) * covariance + np.trace(covariance) / n * np.eye(len(covariance)))


def linear_attention_risk(d, n):
    """The risk 1 − n/(n + d + 1) = (d + 1)/(n + d + 1) of the best Γ for x ~ N(0, I_d), |θ| = 1 and n examples."""
    d, n = checks.whole_number("d", d, least=1), checks.whole_number("n", n, least=0)
    return (d + 1) / (n + d + 1)


# --- Linear attention with an MLP layer, and Algorithm 2 ----------------------------------------------------------

# Numbers of one block of pre-activations [tasks, n, N]: 4 MB in single precision, which stays in the cache.
BLOCK = 1 << 20


@dataclass(frozen=True)
class Features:
    """The MLP layer φ(x) = max(W x + b, 0): `weights` W [N, d] and `biases` b [N]."""

    weights: torch.Tensor
    biases: torch.Tensor

    @property
    def width(self):
        """Number N of neurons."""
        return self.weights.shape[0]

    def __call__(self, x):
        """φ(x) [..., N] for x [..., d]."""
        return torch.relu(x @ self.weights.mT + self.biases)


def start(d, width, *, gamma=1.0, seed=0, device=None):
    """Algorithm 2's initial values: rows of W uniform on the unit sphere, b uniform in [−1, 1], Γ diagonal with random
    signs times `gamma`. Returns the `Features` and the diagonal of Γ [N]."""
    d, width = checks.whole_number("d", d, least=1), checks.whole_number("width", width, least=1)
    gamma, place = checks.positive("gamma", gamma), devices.resolve(device)
    options = {"generator": devices.generator(place, seed), "device": place}
    weights = torch.nn.functional.normalize(torch.randn(width, d, **options), dim=-1)
    biases = 2 * torch.rand(width, **options) - 1
    signs = 2.0 * (torch.rand(width, **options) < 0.5) - 1
    return Features(weights, biases), gamma * signs


def first_layer_gradient(features, diagonal, x, y, queries="last"):
    r"""Gradient [N, d] with respect to W of the mean squared error of the transformer with Γ = diag(`diagonal`).

    x [T, n + 1, d] and y [T, n + 1] are prompts. With queries="last" the last point is the query and the others are the
    examples: with h = Wx + b, c = (1/n) Σ_i y_i σ(h_i), f = Σ_j Γ_jj c_j σ(h_j(x)), row j is

        −(2/T) Σ_t (y − f) Γ_jj (c_j σ'(h_j(x)) x + σ(h_j(x)) (1/n) Σ_i y_i σ'(h_ij) x_i).

    With queries="all" every point is the query once, with all others as its examples, and the mean is taken: the same
    expectation from the same prompts, with less noise.
    """
    count, n = x.shape[0], x.shape[1] - 1
    h = x @ features.weights.mT + features.biases
    value = torch.relu(h)
    if checks.one_of("queries", queries, ("last", "all")) == "last":
        c = (y[:, None, :-1] @ value[:, :-1])[:, 0] / n
        e = -2 / count * (y[:, -1] - (diagonal * c * value[:, -1]).sum(-1))
        at_examples = y[:, :-1, None] / n * (e[:, None] * value[:, -1])[:, None]
        inner = torch.cat([at_examples, (e[:, None] * c)[:, None]], dim=1)
    else:
        # With Y = Σ_i y_i σ(h_i) and E = Σ_i e_i σ(h_i): n·inner_i = e_i Y + y_i E − 2 e_i y_i σ(h_i). Few passes over
        # the largest array, which has T(n + 1)N numbers.
        total = y[:, None] @ value
        residual = y - ((value @ (diagonal * total).mT)[..., 0] - y * (value.square() @ diagonal)) / n
        e = -2 / (count * (n + 1)) * residual
        outer = torch.stack([e, y], dim=-1) @ torch.cat([total, e[:, None] @ value], dim=1)
        inner = torch.addcmul(outer, (-2 * e * y)[..., None], value) / n
    inner = inner * (h > 0)
    return diagonal[:, None] * (inner.flatten(0, 1).mT @ x.flatten(0, 1))


def expected_gradient(target, features, diagonal, subspace):
    r"""What `first_layer_gradient` tends to for T, n → ∞ and small Γ: a tensor [N, d].

    With f = Σ α_k h_k, β_k the Hermite coefficients of z ↦ max(z + b_j, 0), and m = ⟨θ, w_j⟩ of a unit vector w_j,
    E[yσ | θ] = Σ_k α_k β_k m^k =: s(m) and E[yσ'x | θ] = s'(m) θ + (…) w_j, so that row j is

        −4 Γ_jj E_θ[s(m) s'(m) θ] + (…) w_j.

    Only the first part is returned: it lies in S, along the projection of w_j.
    """
    alpha = hermite.coefficients(targets.resolve(target).vectorised, 8)
    biases = features.biases.to("cpu", torch.float64).numpy()
    beta = np.stack([hermite.coefficients(links.relu(b).vectorised, 8) for b in biases])
    projected = features.weights.to(torch.float64) @ subspace.to(torch.float64)
    rho = torch.linalg.vector_norm(projected, dim=-1, keepdim=True)
    r = subspace.shape[1]
    k = np.arange(9)
    products = np.einsum("j,nj,k,nk->njk", alpha, beta, alpha * k, beta)
    powers = [[sphere_moment(i + j, r) if i + j >= 2 else 0.0 for j in k] for i in k]
    sizes = torch.as_tensor(products * np.array(powers), device=rho.device)
    degree = torch.as_tensor(k[:, None] + k[None, :] - 1.0, device=rho.device)
    total = (sizes * rho[..., None] ** degree.clamp(min=0)).sum((1, 2))
    return -4 * diagonal.to(torch.float64)[:, None] * total[:, None] * (projected / rho) @ subspace.to(torch.float64).mT


def _same_dimension(tasks, features):
    if features.weights.shape[-1] != tasks.d:
        raise ValueError(
            f"features read inputs of dimension {features.weights.shape[-1]}; the tasks have d = {tasks.d}"
        )


def blocks_of(count, size):
    """Block sizes of at most max(1, BLOCK // size) that add up to `count`."""
    step = max(1, min(count, BLOCK // max(1, size)))
    return [min(step, count - i) for i in range(0, count, step)]


@devices.one_thread()  # many operations of moderate size: threads that wait for each other cost more
def mean_gradient(tasks, features, diagonal, count, n, generator, queries="all"):
    """The mean of `first_layer_gradient` [N, d] over `count` fresh prompts with n examples each."""
    _same_dimension(tasks, features)
    total = torch.zeros_like(features.weights)
    with bar(label="phase I", total=count) as progress:
        for block in blocks_of(count, n * max(features.width, tasks.d)):
            prompts = tasks.draw(block, n + 1, generator)
            total += first_layer_gradient(features, diagonal, prompts.x, prompts.y, queries) * (block / count)
            progress.update(block)
    return total


def one_step(tasks, width, count, n, *, gamma=0.01, size=1.0, spread=1.0, queries="all", seed=0):
    r"""Algorithm 2, phase I: one gradient step on the MLP layer, then fresh biases. Returns the `Features`.

    The gradient G is the mean over `count` prompts with n examples (T_1 and n_1 of the algorithm). The weight decay is
    λ_1 = 1/η_1, which removes the initial weights, so that W = −η_1 G; the step size η_1 makes the root mean square of
    the rows' lengths equal to `size`. New biases are uniform in [−spread·log d, spread·log d].

    queries  "all": every point of a prompt is the query once; "last": only the last one, as the algorithm is written
    """
    count, n = checks.whole_number("count", count, least=1), checks.whole_number("n", n, least=1)
    size, spread = checks.positive("size", size), checks.positive("spread", spread)
    generator = devices.generator(tasks.device, checks.whole_number("seed", seed, least=0))
    features, diagonal = start(tasks.d, width, gamma=gamma, seed=seed, device=tasks.device)
    gradient = mean_gradient(tasks, features, diagonal, count, n, generator, queries)
    scale = size / gradient.square().sum(-1).mean().sqrt()
    return Features(-scale * gradient, _biases(tasks, width, spread, generator))


def random_features(tasks, width, *, inside=False, size=1.0, spread=1.0, seed=0):
    """The controls of phase I: random rows of length `size` in R^d, or in the hidden subspace (inside=True: an oracle).

    Biases as in `one_step`.
    """
    generator = devices.generator(tasks.device, checks.whole_number("seed", seed, least=0))
    w = torch.randn(width, tasks.r if inside else tasks.d, generator=generator, device=tasks.device)
    w = checks.positive("size", size) * torch.nn.functional.normalize(w, dim=-1)
    return Features(w @ tasks.subspace.mT if inside else w, _biases(tasks, width, spread, generator))


def _biases(tasks, width, spread, generator):
    uniform = 2 * torch.rand(width, generator=generator, device=tasks.device) - 1
    return spread * math.log(tasks.d) * uniform


def alignment(weights, subspace):
    """Cosines [r] of the principal angles between the hidden subspace and the top r right singular vectors of W [N, d].

    All are one if the rows of W lie in the subspace and span it; for random rows the largest is of order √(r/d).
    """
    top = torch.linalg.svd(weights, full_matrices=False)[2][: subspace.shape[1]]
    return devices.to_host(torch.linalg.svdvals(top @ subspace.to(top.dtype)).clamp(max=1.0))


@dataclass(frozen=True)
class Summaries:
    """All that linear attention sees of a prompt: φ(query) and, for every length, the mean of y_i φ(x_i).

    query [T, N], context [L, T, N] for the L `lengths`, labels [T]
    """

    query: torch.Tensor
    context: torch.Tensor
    labels: torch.Tensor
    lengths: tuple


def summarise(tasks, features, count, lengths, generator, **how):
    """Draw `count` prompts and keep their `Summaries` at the given lengths; `how` is passed to `tasks.draw`.

    One prompt serves all lengths: its first n points are the examples, its last point is the query.
    """
    lengths = tuple(checks.whole_number("lengths", n, least=1) for n in lengths)
    if list(lengths) != sorted(set(lengths)):
        raise ValueError(f"lengths is {lengths!r}; it must be an increasing list of whole numbers")
    _same_dimension(tasks, features)
    queries, contexts, labels = [], [], []
    for block in blocks_of(count, lengths[-1] * max(features.width, tasks.d)):
        prompts = tasks.draw(block, lengths[-1] + 1, generator, **how)
        queries.append(features(prompts.x[:, -1]))
        labels.append(prompts.y[:, -1])
        contexts.append(_context_means(features, prompts, lengths))
    return Summaries(torch.cat(queries), torch.cat(contexts, dim=1), torch.cat(labels), lengths)


def _context_means(features, prompts, lengths):
    """(1/n) Σ_{i ≤ n} y_i φ(x_i) for all lengths n: [L, T, N]."""
    total, means = 0.0, []
    for i, j in zip((0, *lengths[:-1]), lengths, strict=True):
        total = total + (prompts.y[:, None, i:j] @ features(prompts.x[:, i:j]))[:, 0]
        means.append(total / j)
    return torch.stack(means)


@dataclass(frozen=True)
class LinearTransformer:
    """Linear attention behind an MLP layer, f = ⟨φ(x), Γ (1/n) Σ_i y_i φ(x_i)⟩, with one Γ for every prompt length.

    gammas [L, N, N] for the `lengths`; `ridges` [L] and `residuals` [L] say how they were found (see `fit_attention`)
    """

    features: Features
    gammas: torch.Tensor
    lengths: tuple
    ridges: np.ndarray
    residuals: np.ndarray

    def risks(self, tasks, count, *, trained_at=None, lengths=None, seed=0, **how):
        """Squared errors [count, L] on fresh prompts; `how` is passed to `tasks.draw` (theta, scale).

        Prompts of each of the `lengths` (default: those of the fit) are read with the Γ of their own length, or all of
        them with the Γ that was fitted at length `trained_at`.
        """
        lengths = self.lengths if lengths is None else tuple(lengths)
        wanted = lengths if trained_at is None else (trained_at,) * len(lengths)
        missing = [n for n in wanted if n not in self.lengths]
        if missing:
            raise ValueError(f"no Γ was fitted at length {missing[0]}; fitted: {', '.join(map(str, self.lengths))}")
        gammas = self.gammas[[self.lengths.index(n) for n in wanted]]
        generator = devices.generator(tasks.device, checks.whole_number("seed", seed, least=0))
        seen = summarise(tasks, self.features, count, lengths, generator, **how)
        return devices.to_host((_predict(gammas, seen) - seen.labels).square().mT)


def _predict(gammas, seen):
    """⟨φ(x), Γ c⟩ for all prompts and lengths: [L, T]."""
    return ((seen.query @ gammas) * seen.context).sum(-1)


# Ridge parameters of phase II, in units of E|φ|² E|c|²/N.
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


@devices.one_thread()
def fit_attention(tasks, features, count, lengths, *, ridges=RIDGES, iterations=40, held_out=0.2, seed=0):
    r"""Algorithm 2, phase II: ridge regression for Γ on fresh prompts. Returns a `LinearTransformer`.

    For every length n the N × N matrix Γ minimises (1/T) Σ_t (y^t − ⟨a_t, Γ c_t⟩)² + λ|Γ|²_F with a = φ(query) and
    c = (1/n) Σ_i y_i φ(x_i). The N² features a_t ⊗ c_t are never formed: conjugate gradients need only

        Γ ↦ (1/T) Σ_t ⟨a_t, Γ c_t⟩ a_t c_tᵀ + λΓ = (1/T) Aᵀ diag(s) C + λΓ,     s_t = (AΓ)_t · c_t.

    Memory: two vectors a, c for every prompt and length, O(N²) for each λ, and one block of prompts. The query is
    independent of the context, so that the operator is E[aaᵀ] Γ E[ccᵀ] + λΓ up to sampling error: its inverse, by two
    eigendecompositions, is the preconditioner. λ is chosen among `ridges` (in units of E|a|² E|c|²/N) on the fraction
    `held_out` of the prompts.
    """
    count = checks.whole_number("count", count, least=4)
    iterations = checks.whole_number("iterations", iterations, least=1)
    held_out = checks.fraction("held_out", held_out)
    tried = np.atleast_1d(np.asarray(ridges, dtype=np.float64))
    if tried.ndim != 1 or not len(tried) or not (np.isfinite(tried).all() and (tried > 0).all()):
        raise ValueError(f"ridges is {ridges!r}; it must be a number > 0 or a list of them")
    generator = devices.generator(tasks.device, checks.whole_number("seed", seed, least=0))
    seen = summarise(tasks, features, count, lengths, generator)
    kept = max(1, min(count - 1, round((1 - held_out) * count)))
    gammas, chosen, residuals = [], [], []
    for i, n in enumerate(bar(seen.lengths, label="phase II")):
        part = Summaries(seen.query[:kept], seen.context[i : i + 1, :kept], seen.labels[:kept], (n,))
        found, residual = conjugate_gradients(part, tried, iterations)
        rest = Summaries(seen.query[kept:], seen.context[i : i + 1, kept:], seen.labels[kept:], (n,))
        errors = (_predict(found, rest) - rest.labels).square().mean(-1)
        best = errors.argmin(keepdim=True)  # used as an index of length one: a plain number would be read on the host
        gammas.append(found.index_select(0, best))
        residuals.append(residual.index_select(0, best))
        chosen.append(torch.as_tensor(tried, device=errors.device).index_select(0, best))
    host = [devices.to_host(torch.cat(values)) for values in (chosen, residuals)]
    return LinearTransformer(features, torch.cat(gammas), seen.lengths, *host)


def conjugate_gradients(seen, ridges, iterations):
    """Solutions Γ [K, N, N] for the K ridges at the one length of `seen`, and their relative residuals [K]."""
    a, c, y = seen.query, seen.context[0], seen.labels
    count, width = a.shape
    rows = max(1, BLOCK // (8 * width * len(ridges)))
    left, right = (torch.linalg.eigh(v.mT @ v / count) for v in (a, c))
    unit = left.eigenvalues.sum() * right.eigenvalues.sum() / width
    lam = unit * torch.as_tensor(ridges, device=a.device, dtype=a.dtype)[:, None, None]
    products = left.eigenvalues[:, None] * right.eigenvalues
    inverse = 1 / (products.clamp(min=0) + lam)

    def apply(gamma):
        total = lam * gamma
        for u, v in zip(a.split(rows), c.split(rows), strict=True):
            s = ((u @ gamma) * v).sum(-1)
            total = total + u.mT @ (s[..., None] * v) / count
        return total

    def precondition(residual):
        turned = left.eigenvectors.mT @ residual @ right.eigenvectors
        return left.eigenvectors @ (inverse * turned) @ right.eigenvectors.mT

    def dot(u, v):
        return (u * v).sum((-2, -1), keepdim=True)

    rhs = (a.mT @ (y[:, None] * c) / count).expand(len(lam), width, width)
    gamma = precondition(rhs)
    residual = rhs - apply(gamma)
    z = precondition(residual)
    direction, level = z, dot(residual, z)
    for _ in range(iterations):
        image = apply(direction)
        step = level / dot(direction, image).clamp(min=torch.finfo(a.dtype).tiny)
        gamma, residual = gamma + step * direction, residual - step * image
        z = precondition(residual)
        new = dot(residual, z)
        direction, level = z + new / level.clamp(min=torch.finfo(a.dtype).tiny) * direction, new
    return gamma, (dot(residual, residual) / dot(rhs, rhs)).sqrt()[:, 0, 0]


# --- Learners that see the prompt only ----------------------------------------------------------------------------

LEARNERS = ("ridge", "kernel ridge", "network")


@devices.one_thread()
def prompt_risks(learner, tasks, count, lengths, *, known_subspace=False, queries=64, seed=0):
    """Mean squared errors [count, L] of a learner that is trained on each prompt from scratch, for all lengths.

    learner  "ridge" (linear), "kernel ridge" (the better of a quadratic and a Gaussian kernel) or "network" (two
             layers, trained by gradient descent, see `prompt_network`); all parameters are chosen by cross-validation
             on the prompt
    known_subspace  give the learner the r coordinates of x in the hidden subspace instead of x
    queries  test points of each prompt
    """
    checks.one_of("learner", learner, LEARNERS)
    count = checks.whole_number("count", count, least=1)
    generator = devices.generator(tasks.device, checks.whole_number("seed", seed, least=0))
    prompts = tasks.draw(count, max(lengths) + queries, generator)
    x = prompts.x @ tasks.subspace if known_subspace else prompts.x
    test, answers = x[:, -queries:], devices.to_host(prompts.y[:, -queries:])
    errors = []
    for n in bar(list(lengths), label=learner):
        seen, labels = x[:, :n], prompts.y[:, :n]
        if learner == "network":
            found = prompt_network(seen, labels, test, seed=seed)
        elif learner == "ridge":
            found = kernels.ridge(seen, labels, device=tasks.device).predict(test)
        else:
            found = _best_kernel(seen, labels, test)
        errors.append(np.square(found - answers).mean(-1))
    return np.stack(errors, axis=-1)


def _best_kernel(x, y, test):
    """Predictions of kernel ridge regression with the kernel whose leave-one-out error is least, prompt by prompt."""
    fits = [kernels.kernel_ridge(x, y, kernel, intercept=len(y[0]) > 1) for kernel in ("quadratic", "gaussian")]
    scores = np.stack([fit.loo.min(-1) for fit in fits])
    return np.where((scores.argmin(0) == 0)[:, None], *(fit.predict(test) for fit in fits))


def prompt_network(x, y, test, *, width=48, rates=(0.3, 1.0), steps=150, folds=4, seed=0):
    r"""Predictions [R, m] of two-layer ReLU networks trained on the prompts x [R, n, d], y [R, n] by gradient descent.

    f(x) = (1/√N) Σ_j a_j max(⟨w_j, x⟩ + b_j, 0); both layers move by full-batch steps. Rate and number of steps (every
    tenth is looked at, zero included, where f is replaced by 0) are chosen by cross-validation on each prompt.
    """
    count, n, d = x.shape
    folds = min(folds, n)
    place = torch.arange(n, device=x.device) % folds
    kept = torch.stack([*(place != k for k in range(folds)), torch.ones_like(place, dtype=torch.bool)]).to(x.dtype)
    best, answer = None, None
    for rate in rates:
        generator = devices.generator(x.device, seed)
        options = {"generator": generator, "device": x.device, "dtype": x.dtype}
        shape = (count, folds + 1)
        w = torch.randn(1, 1, width, d, **options).expand(*shape, -1, -1) / math.sqrt(d)
        b = torch.zeros(*shape, 1, width, device=x.device, dtype=x.dtype)
        a = torch.randn(1, 1, width, 1, **options).expand(*shape, -1, -1)
        share = (kept / kept.sum(-1, keepdim=True))[None, :, :, None]
        points, size = x[:, None], math.sqrt(width)
        for step in range(steps + 1):
            h = points @ w.mT + b
            value = torch.relu(h)
            residual = y[:, None, :, None] - value @ a / size
            if step % 10 == 0:
                error = y[:, None, :, None].expand_as(residual) if step == 0 else residual
                score = (error[:, :-1, :, 0].square() * (1 - kept[:-1])).sum((1, 2)) / n
                made = torch.relu(test @ w[:, -1].mT + b[:, -1]) @ a[:, -1] / size
                made = torch.zeros_like(made[..., 0]) if step == 0 else made[..., 0]
                better = torch.ones_like(score, dtype=torch.bool) if best is None else score < best
                best = score if best is None else torch.where(better, score, best)
                answer = made if answer is None else torch.where(better[:, None], made, answer)
            pull = residual * share / size
            inner = pull * a.mT * (h > 0)
            w, b, a = (
                v + rate * g
                for v, g in ((w, inner.mT @ points), (b, inner.sum(-2, keepdim=True)), (a, value.mT @ pull))
            )
    return devices.to_host(answer)


# --- What did it learn? -------------------------------------------------------------------------------------------


def sensitivities(model, tasks, count, points, *, seed=0):
    """How the last prediction of a `GPT` depends on its inputs: gradients with respect to the query [count, d] and to
    all examples [count·(points − 1), d], on fresh prompts."""
    generator = devices.generator(tasks.device, checks.whole_number("seed", seed, least=0))
    prompts = tasks.draw(count, points, generator)
    x = prompts.x.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(x, prompts.y)[:, -1].sum(), x)
    return gradient[:, -1].detach(), gradient[:, :-1].detach().flatten(0, 1)


def share_inside(vectors, subspace):
    """The fraction of the squared length of `vectors` [k, d] that lies in the subspace [d, r]: r/d for random ones."""
    vectors = vectors.to(subspace.dtype)
    return float((vectors @ subspace).square().sum() / vectors.square().sum())


def first_layer_maps(model):
    """The matrices [k, d] by which the first block of a `GPT` reads inputs: to its queries and keys, values, and MLP.

    Products of the read-in with the block's own matrices and the gains of its normalisations; the normalisations'
    division and what attention adds before the MLP are left out.
    """
    block, w = model.blocks[0], model.settings.width
    with torch.no_grad():
        stream = model.read_in.weight - model.read_in.weight.mean(0)
        qkv = block.qkv.weight @ (block.before_attention.weight[:, None] * stream)
        mlp = block.up.weight @ (block.before_mlp.weight[:, None] * stream)
    return {"queries and keys": qkv[: 2 * w], "values": qkv[2 * w :], "MLP": mlp}


# --- The shipped transformer --------------------------------------------------------------------------------------

SHIPPED = Path(__file__).with_name("weights") / "gpt.pt"
# How the shipped transformer was trained: `make pretrained` does it again.
RECIPE = {
    "link": (0.0, math.sqrt(0.5), math.sqrt(0.5)),
    "d": 12,
    "r": 2,
    "points": 32,
    "layers": 3,
    "width": 64,
    "heads": 4,
    "steps": 9000,
    "batch": 64,
    "lr": 2e-3,
    "curriculum": {"d": 4, "points": 8, "until": 0.3},
    "seed": 2024,
}


@dataclass(frozen=True)
class Pretrained:
    """A transformer with the tasks it was trained on.

    model   the `GPT`, in evaluation mode
    tasks   the `Tasks`, with the subspace of the training
    steps   [k] and `losses` [k, points]: the loss curve, averaged over blocks of steps (nan before the curriculum's
            prompts were that long)
    recipe  the settings of the run, with its seed
    """

    model: GPT
    tasks: Tasks
    steps: np.ndarray
    losses: np.ndarray
    recipe: dict


def pretrain_gpt(*, steps=None, checkpoint=None, out=None, device=None):
    """Train the transformer of `RECIPE` and, if `out` is given, write it there. Returns the `Training`."""
    recipe = RECIPE | {"steps": steps or RECIPE["steps"]}
    problem = tasks(links.polynomial(recipe["link"]), recipe["d"], recipe["r"], seed=recipe["seed"], device=device)
    size = Settings(**{name: recipe[name] for name in ("d", "points", "layers", "width", "heads")})
    result = train(
        problem,
        size,
        recipe["steps"],
        batch=recipe["batch"],
        lr=recipe["lr"],
        curriculum=Curriculum(**recipe["curriculum"]),
        seed=recipe["seed"],
        device=device,
        checkpoint=checkpoint,
        save_every=500,
    )
    if out is not None:
        edges = np.unique(np.linspace(0, recipe["steps"], 181).astype(int))
        blocks = [result.losses[i:j].mean(0) for i, j in pairwise(edges)]
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        state = {name: value.cpu() for name, value in result.model.state_dict().items()}
        middle = torch.as_tensor((edges[:-1] + edges[1:]) / 2)
        shipped = {"recipe": recipe, "subspace": problem.subspace.cpu(), "model": state, "steps": middle,
                   "losses": torch.as_tensor(np.stack(blocks))}  # fmt: skip
        torch.save(shipped, out)
    return result


def pretrained(path=None, *, device=None):
    """Load the transformer that comes with the library (or the one in `path`): a `Pretrained`. Nothing is executed."""
    path, place = Path(path or SHIPPED), devices.resolve(device)
    if not path.exists():
        raise ValueError(f"path is {str(path)!r}; there is no such file (`make pretrained` writes one)")
    saved = torch.load(path, map_location=place, weights_only=True)
    recipe = saved["recipe"]
    size = Settings(**{name: recipe[name] for name in ("d", "points", "layers", "width", "heads")})
    model = GPT(size, device=place)
    model.load_state_dict(saved["model"])
    target = targets.resolve(links.polynomial(recipe["link"]))
    steps, losses = (devices.to_host(saved[name]) for name in ("steps", "losses"))
    return Pretrained(model.eval(), Tasks(target, saved["subspace"]), steps, losses, recipe)
