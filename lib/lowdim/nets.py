"""Two-layer networks as data: weights, biases and outputs as tensors, with an optional leading runs axis."""

import math
from dataclasses import dataclass, replace

import torch

from lowdim import checks, functions, links, targets
from lowdim import device as devices


@dataclass(frozen=True)
class TwoLayer:
    r"""The network f(x) = (1/√N) Σ_i a_i σ(⟨w_i, x⟩ + b_i), one or `runs` of them at once.

    weights  [N, d] or [runs, N, d]   rows w_i           biases   [N] or [runs, N]
    outputs  [N] or [runs, N]         a_i                activation  σ, callable on tensors, with its derivative

    All three are float64 tensors on one device.
    """

    activation: functions.Vectorised
    weights: torch.Tensor
    biases: torch.Tensor
    outputs: torch.Tensor

    @property
    def width(self):
        """Number N of neurons."""
        return self.weights.shape[-2]

    @property
    def d(self):
        """Dimension of the input."""
        return self.weights.shape[-1]

    def features(self, x, first=0, last=None):
        """The features φ(x) = σ(W x + b)/√N, [n, N] or [runs, n, N]; ⟨φ(x), φ(y)⟩ is the conjugate kernel.

        `first` and `last` pick the neurons first..last − 1 (their scale is still 1/√N of the whole network).
        """
        part = slice(first, last)
        h = x @ self.weights[..., part, :].mT + self.biases[..., None, part]
        return self.activation.torch(h) / math.sqrt(self.width)

    def __call__(self, x):
        """The outputs f(x) = ⟨a, φ(x)⟩: [n] or [runs, n]."""
        return (self.features(x) @ self.outputs[..., None])[..., 0]

    def with_weights(self, weights):
        """The same network with other first-layer weights."""
        return replace(self, weights=weights)


def two_layer(d, width, activation="tanh", *, bias=0.0, runs=None, seed=0, device=None):
    r"""Draw a network at random: w_ij ~ N(0, 1/d), a_i ~ N(0, 1/N), b_i ~ N(0, bias²).

    For x ~ N(0, I_d) every ⟨w_i, x⟩ then has variance close to one. activation: a name ("tanh", "relu", "erf", …), a
    `Link`, a `Target` of one direction or a vectorised function; runs=None draws one network without a runs axis.
    """
    d = checks.whole_number("d", d, least=1)
    width = checks.whole_number("width", width, least=1)
    lead = () if runs is None else (checks.whole_number("runs", runs, least=1),)
    bias = checks.not_negative("bias", bias)
    sigma = resolve_activation(activation)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))

    def normal(*shape):
        return torch.randn(*lead, *shape, generator=generator, device=place, dtype=torch.float64)

    return TwoLayer(
        activation=sigma,
        weights=normal(width, d) / math.sqrt(d),
        biases=bias * normal(width),
        outputs=normal(width) / math.sqrt(width),
    )


def random_polynomials(width, degree, *, seed=0, device=None):
    r"""Activations with random Hermite coefficients: neuron j of `width` has σ_j = Σ_{k=1}^{degree} s_jk h_k / √degree.

    The signs s_jk = ±1 are random. The result is a function of pre-activations [..., width] for `two_layer`.
    """
    width = checks.whole_number("width", width, least=1)
    degree = checks.whole_number("degree", degree, least=1)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))
    signs = 2 * torch.randint(0, 2, (degree, width), generator=generator, device=place) - 1
    beta = signs.to(torch.float64) / math.sqrt(degree)
    k = torch.arange(1, degree + 1, device=place, dtype=torch.float64).sqrt()

    def series(coefficients, z):
        """Σ_k c_k h_k(z), c [terms, width] from degree 0 on, by h_k = (z h_{k−1} − √(k−1) h_{k−2})/√k."""
        before, now, total = torch.zeros_like(z), torch.ones_like(z), coefficients[0].to(z.dtype) * torch.ones_like(z)
        for i, c in enumerate(coefficients[1:], start=1):
            before, now = now, (z * now - math.sqrt(i - 1) * before) / math.sqrt(i)
            total = total + c.to(z.dtype) * now
        return total

    values = torch.cat([torch.zeros_like(beta[:1]), beta])
    slopes = k[:, None] * beta
    return functions.Vectorised(lambda z: series(values, z), "torch", slope=lambda z: series(slopes, z))


def resolve_activation(activation):
    """Return σ as a `Vectorised` function from a name, a `Link`, a `Target` of one direction or a function."""
    if isinstance(activation, str):
        if activation == "erf":
            return links.Link("erf", (1.0,)).vectorised
        if activation in ("cos", "sin"):
            return links.Link(activation).vectorised
        activation = targets.get(activation)
    if isinstance(activation, targets.Target) and activation.directions > 1:
        raise ValueError(
            f"activation is {activation.name!r} with {activation.directions} directions; it must have one, e.g. 'tanh'"
        )
    return functions.vectorised(activation, "activation")
