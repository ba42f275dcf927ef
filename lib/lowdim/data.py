r"""Input laws with structure: a spiked covariance, and parities on a box with long and short sides.

Samples are drawn in O(n d): no d × d matrix is formed. A leading runs axis gives every run its own samples.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from lowdim import checks
from lowdim import device as devices


@dataclass(frozen=True)
class SpikedSample:
    r"""Inputs x ~ N(0, Σ), Σ = I + θμμᵀ, and the projection z ~ N(0, 1) that a single-index label depends on.

    x       [n, d] or [runs, n, d]            z       [n] or [runs, n]: z = ⟨x, β⟩/√κ, so that E z² = 1
    mu      [d] unit vector, the spike        beta    [d] unit vector, the teacher, ⟨μ, β⟩ = alignment
    theta   strength θ ≥ 0 of the spike       kappa   κ = 1 + θ⟨μ, β⟩² = ⟨β, Σβ⟩
    """

    x: torch.Tensor = field(repr=False)
    z: torch.Tensor = field(repr=False)
    mu: torch.Tensor = field(repr=False)
    beta: torch.Tensor = field(repr=False)
    theta: float
    kappa: float


def spiked(n, d, theta, *, alignment=1.0, runs=None, seed=0, device=None, dtype=torch.float64):
    r"""Draw n inputs x = g + (√(1 + θ) − 1)⟨μ, g⟩μ with g ~ N(0, I_d): a `SpikedSample` with covariance I + θμμᵀ.

    n, d       number of samples and dimension (d ≥ 2)
    theta      strength θ ≥ 0 of the spike (0: isotropic inputs)
    alignment  ⟨μ, β⟩ in [−1, 1]; the two directions are otherwise random, and shared by all runs
    runs       None (no runs axis) or the number of independent samples of size n
    device     None (CUDA if present, else CPU; LOWDIM_DEVICE overrides) or a torch device
    """
    n, d = checks.whole_number("n", n, least=1), checks.whole_number("d", d, least=2)
    theta, s = checks.not_negative("theta", theta), overlap("alignment", alignment)
    lead = () if runs is None else (checks.whole_number("runs", runs, least=1),)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    options = {"device": place, "dtype": dtype}
    mu, other = torch.linalg.qr(torch.randn(d, 2, generator=generator, **options)).Q.T
    beta, kappa = s * mu + math.sqrt(1 - s**2) * other, 1 + theta * s**2
    x = torch.randn(*lead, n, d, generator=generator, **options)
    x.addcmul_(((math.sqrt(1 + theta) - 1) * (x @ mu))[..., None], mu)
    return SpikedSample(x, x @ beta / math.sqrt(kappa), mu, beta, theta, kappa)


@dataclass(frozen=True)
class ParitySample:
    """Inputs x [n, d] or [runs, n, d] of a k-parity, labels y = ±1 of shape [n] or [runs, n], and the sides [d]."""

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    sides: np.ndarray = field(repr=False)


def parity(n, d, k, *, gain=1.0, amplified=None, trace=1.0, runs=None, seed=0, device=None, dtype=torch.float64):
    r"""Draw an anisotropic k-parity: x_i = a_i s_i with random signs s_i, and y = s_1 s_2 ⋯ s_k.

    The sides a_i are `gain` times longer for the coordinates in `amplified` than for the others, and all are scaled so
    that E|x|² = Σ a_i² = trace: amplifying some coordinates makes the others shorter.

    k          number of relevant coordinates, the first k of d; the label is the sign of their product
    gain       ratio > 0 of long to short sides (1: isotropic)
    amplified  indices of the long sides; None: the k relevant ones
    trace      E|x|² > 0
    """
    n, d = checks.whole_number("n", n, least=1), checks.whole_number("d", d, least=1)
    k = checks.whole_number("k", k, least=1)
    if k > d:
        raise ValueError(f"k is {k}; there are only d = {d} coordinates")
    gain, trace = checks.positive("gain", gain), checks.positive("trace", trace)
    long = np.arange(k) if amplified is None else np.asarray(amplified, dtype=float)
    if long.ndim != 1 or not np.isin(long, np.arange(d)).all():
        raise ValueError(f"amplified is {amplified!r}; it must be a list of coordinates 0..{d - 1}")
    lead = () if runs is None else (checks.whole_number("runs", runs, least=1),)
    sides = np.ones(d)
    sides[long.astype(int)] = gain
    sides *= math.sqrt(trace / np.sum(sides**2))
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    signs = 2 * torch.randint(0, 2, (*lead, n, d), generator=generator, device=place, dtype=torch.int8) - 1
    y = signs[..., :k].prod(-1).to(dtype)
    return ParitySample(signs.to(dtype) * torch.as_tensor(sides, device=place, dtype=dtype), y, sides)


def overlap(name, value):
    """Return `value` as a float if it lies in [−1, 1], else raise ValueError."""
    number = checks.finite(name, value)
    if abs(number) > 1:
        raise ValueError(f"{name} is {value!r}; it must lie in [−1, 1]")
    return number
