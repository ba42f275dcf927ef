"""Two- and three-layer networks as data: weights, biases and outputs as tensors, with an optional leading runs axis."""

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


@dataclass(frozen=True)
class ThreeLayer:
    r"""The network f(x) = ⟨w₃, ψ(x)⟩ + c, ψ = σ₂(W₂ φ(x) + b₂)/√p₂, φ = σ₁(W₁ x + b₁)/√p₁: one or `runs` of them.

    first    W₁ [p₁, d] or [runs, p₁, d]      first_biases   b₁ [p₁] or [runs, p₁]
    second   W₂ [p₂, p₁] or [runs, p₂, p₁]    second_biases  b₂ [p₂] or [runs, p₂]
    outputs  w₃ [p₂] or [runs, p₂]            intercept      c [] or [runs]
    activations  (σ₁, σ₂), callable on tensors, with their derivatives
    """

    activations: tuple
    first: torch.Tensor
    first_biases: torch.Tensor
    second: torch.Tensor
    second_biases: torch.Tensor
    outputs: torch.Tensor
    intercept: torch.Tensor

    @property
    def d(self):
        """Dimension of the input."""
        return self.first.shape[-1]

    @property
    def widths(self):
        """The widths (p₁, p₂)."""
        return self.first.shape[-2], self.second.shape[-2]

    def first_features(self, x):
        """The features φ(x) of the first hidden layer, [n, p₁] or [runs, n, p₁], for inputs x [..., n, d]."""
        h = x @ self.first.mT + self.first_biases[..., None, :]
        return self.activations[0].torch(h) / math.sqrt(self.widths[0])

    def second_inputs(self, x):
        """The pre-activations W₂ φ(x) + b₂ of the second hidden layer, [n, p₂] or [runs, n, p₂]."""
        return self.first_features(x) @ self.second.mT + self.second_biases[..., None, :]

    def second_features(self, x):
        """The features ψ(x) of the second hidden layer, [n, p₂] or [runs, n, p₂]."""
        return self.activations[1].torch(self.second_inputs(x)) / math.sqrt(self.widths[1])

    def __call__(self, x):
        """The outputs f(x): [n] or [runs, n]."""
        return (self.second_features(x) @ self.outputs[..., None])[..., 0] + self.intercept[..., None]


# Degrees one, two and three in equal parts. Enough such neurons with random biases span all cubic polynomials of a
# few variables; without biases the linear part of a unit direction is tied to its cubic part and the span is smaller.
CUBIC = links.polynomial([0.0, 3**-0.5, 3**-0.5, 3**-0.5], r"(h_1+h_2+h_3)/\sqrt3")


def three_layer(
    d, widths, activations=(CUBIC, "relu"), *, bias=(1.0, 1.0), runs=None, seed=0, device=None, dtype=torch.float32
):
    r"""Draw a three-layer network at random, in single precision unless told.

    The rows of W₁ are uniform on the unit sphere, (W₂)_ij ~ N(0, 1), b₁ ~ N(0, bias₁²), b₂ ~ N(0, bias₂²) and w₃ = 0,
    c = 0: with φ = σ₁/√p₁ all pre-activations are of order one. widths = (p₁, p₂); activations = (σ₁, σ₂), each a
    name, a `Link` or a function; the first is (h₁ + h₂ + h₃)/√3 by default.
    """
    d = checks.whole_number("d", d, least=1)
    pairs = {"widths": widths, "activations": activations, "bias": bias}
    for name, value in pairs.items():
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise ValueError(f"{name} is {value!r}; it must be a pair, one for each hidden layer")
    p1, p2 = (checks.whole_number("widths", p, least=1) for p in widths)
    scales = [checks.not_negative("bias", b) for b in bias]
    lead = () if runs is None else (checks.whole_number("runs", runs, least=1),)
    place = devices.resolve(device)
    generator = devices.generator(place, checks.whole_number("seed", seed, least=0))

    def normal(*shape):
        return torch.randn(*lead, *shape, generator=generator, device=place, dtype=dtype)

    return ThreeLayer(
        activations=tuple(resolve_activation(sigma) for sigma in activations),
        first=torch.nn.functional.normalize(normal(p1, d), dim=-1),
        first_biases=scales[0] * normal(p1),
        second=normal(p2, p1),
        second_biases=scales[1] * normal(p2),
        outputs=torch.zeros(*lead, p2, device=place, dtype=dtype),
        intercept=torch.zeros(lead, device=place, dtype=dtype),
    )
