r"""Random matrices with a spike: the bulk of singular values, and where a rank-one change puts its outlier.

Throughout, Z is N × d with independent entries of mean 0 and variance 1/d, and c = N/d stays fixed as d → ∞. The
singular values of Z fill the interval [|1 − √c|, 1 + √c]; adding θ u vᵀ with unit vectors u, v and θ > c^{1/4} pulls
one of them out of it. Below that strength nothing can be seen: neither an outlier nor a correlation with u or v.
"""

import math
from dataclasses import dataclass

import numpy as np

from lowdim import checks, hermite, nets, targets


@dataclass(frozen=True)
class Spike:
    """What Z + θ u vᵀ shows of its rank-one part in the limit d → ∞ (arrays of the shape of θ).

    location  its largest singular value
    left      ⟨û, u⟩² for the top left singular vector û in R^N; 0 below the threshold
    right     ⟨v̂, v⟩² for the top right singular vector v̂ in R^d; 0 below the threshold
    """

    location: np.ndarray
    left: np.ndarray
    right: np.ndarray


def bulk_edges(c):
    """The interval (|1 − √c|, 1 + √c) that the singular values of Z fill (N < d or not; zeros apart)."""
    root = math.sqrt(checks.positive("c", c))
    return abs(1 - root), 1 + root


def bulk_density(s, c):
    r"""Density at s of the non-zero singular values of Z, normalised to one (Marchenko and Pastur, 1967):

    ρ(s) = √((s² − a²)(b² − s²)) / (π s min(c, 1)),      a = |1 − √c|,  b = 1 + √c.
    """
    low, high = bulk_edges(c)
    s = np.asarray(s, dtype=np.float64)
    inside = np.clip((s**2 - low**2) * (high**2 - s**2), 0, None)
    return np.divide(np.sqrt(inside), np.pi * s * min(c, 1.0), out=np.zeros_like(s), where=(s > 0) & (inside > 0))


def spike(theta, c):
    r"""The outlier of Z + θ u vᵀ (Benaych-Georges and Nadakuditi, 2012): a `Spike`. For θ > c^{1/4}

        location = √((1 + θ²)(c + θ²))/θ,   left = 1 − c(1 + θ²)/(θ²(θ² + c)),   right = 1 − (c + θ²)/(θ²(θ² + 1)),

    and for weaker spikes the edge 1 + √c of the bulk and overlaps 0. `theta` is a number ≥ 0 or an array of them.
    """
    edge = bulk_edges(c)[1]
    theta = np.asarray(theta, dtype=np.float64)
    if not np.isfinite(theta).all() or (theta < 0).any():
        raise ValueError(f"theta is {theta}; it must be finite and ≥ 0")
    seen = theta > c**0.25
    square = np.where(seen, theta, 1.0) ** 2
    return Spike(
        location=np.where(seen, np.sqrt((1 + square) * (c + square) / square), edge),
        left=np.where(seen, 1 - c * (1 + square) / (square * (square + c)), 0.0),
        right=np.where(seen, 1 - (c + square) / (square * (square + 1)), 0.0),
    )


@dataclass(frozen=True)
class StepSpike(Spike):
    """The spike of the first-layer weights after one gradient step, see `step_spike`.

    theta      strength θ of the rank-one part            alignment  ⟨v, w*⟩² of its direction v with the teacher
    overlap    ⟨v̂, w*⟩² = right · alignment, of the top right singular vector with the teacher
    """

    theta: np.ndarray
    alignment: float
    overlap: np.ndarray


def step_spike(eta, c, samples_per_dimension, target, activation):
    r"""The spike of W_1 = W_0 + η√N G after one full-batch step (`sgd.one_step`) on a single-index target.

    The negative gradient is close to a matrix of rank one, √N G ≈ μ_1 a (Xᵀy/n)ᵀ with μ_1 = E[σ'] and |a| ≈ 1.
    For y = f(⟨w*, x⟩) and μ*_1 = E[f'], the vector Xᵀy/n has squared length μ*_1² + E[y²] d/n, of which μ*_1² lies
    along w*. So W_1 is a random matrix with a spike of strength θ = η μ_1 √(μ*_1² + E[y²] d/n), whose direction
    has the squared cosine μ*_1²/(μ*_1² + E[y²] d/n) with the teacher.

    eta                    the step size η, a number or an array        c   N/d
    samples_per_dimension  n/d                                          target, activation   names or functions
    """
    alpha = checks.positive("samples_per_dimension", samples_per_dimension)
    target = targets.resolve(target)
    if target.directions > 1 or target.noise_inside:
        raise ValueError(f"target is {target.name!r}; it must have one direction and no noise inside its link")
    eta = np.asarray(eta, dtype=np.float64)
    mu = hermite.coefficients(nets.resolve_activation(activation), 1)[1]
    signal = hermite.coefficients(target.vectorised, 1)[1] ** 2
    square = hermite.coefficients(lambda z: target(z) ** 2, 0)[0] + target.noise_outside**2
    noise = square / alpha
    theta = np.abs(eta * mu) * math.sqrt(signal + noise)
    seen, alignment = spike(theta, c), signal / (signal + noise)
    return StepSpike(seen.location, seen.left, seen.right, theta, float(alignment), seen.right * alignment)


def covariance_spike(theta, c):
    r"""What the sample covariance of n inputs x ~ N(0, I_d + θμμᵀ) shows of the spike, d/n → c: location and overlap.

    For θ > √c the largest eigenvalue leaves the bulk, whose edge is (1 + √c)² (Baik and Silverstein, 2006; Paul, 2007),

        location = (1 + θ)(1 + c/θ),      ⟨μ̂, μ⟩² = (1 − c/θ²)/(1 + c/θ),

    and below it stays at the edge with overlap 0. `theta` is a number ≥ 0 or an array of them; returns two arrays.
    """
    c = checks.positive("c", c)
    theta = np.asarray(theta, dtype=np.float64)
    if not np.isfinite(theta).all() or (theta < 0).any():
        raise ValueError(f"theta is {theta}; it must be finite and ≥ 0")
    seen = theta > math.sqrt(c)
    strong = np.where(seen, theta, 1.0)
    location = np.where(seen, (1 + strong) * (1 + c / strong), (1 + math.sqrt(c)) ** 2)
    return location, np.where(seen, (1 - c / strong**2) / (1 + c / strong), 0.0)
