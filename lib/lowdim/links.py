"""Link functions and activations as data: a family and its parameters, so that compiled code can run them too.

A `Link` is called like a function, on NumPy arrays and on tensors, and knows its derivative. Families:

    hermite(α_0..α_K)   Σ_k α_k h_k(z)          relu(b)    max(z + b, 0)         tanh   tanh(z)
    erf(s)              erf(s z)                 abs(b)     |z + b| (b = 0)       sign   sign(z)
    sin, cos            sin(z), cos(z)           bump       z² exp(−z²)
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from lowdim import functions, hermite

FAMILIES = ("hermite", "relu", "tanh", "erf", "abs", "sign", "sin", "cos", "bump")


@dataclass(frozen=True)
class Link:
    """A link function: `family` and `parameters` (see the module's docstring); `latex` is its formula in z."""

    family: str
    parameters: tuple = ()
    latex: str = ""
    vectorised: functions.Vectorised = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise ValueError(f"family is {self.family!r}; allowed: {', '.join(FAMILIES)}")
        wrapped = functions.Vectorised(self._value, "torch", slope=self._slope)
        object.__setattr__(self, "vectorised", wrapped)

    def __call__(self, z):
        """Evaluate at `z` (NumPy array or tensor, any shape)."""
        return self.vectorised(z)

    def derivative(self, z):
        """Evaluate the derivative at `z` (NumPy array or tensor, any shape)."""
        if isinstance(z, torch.Tensor):
            return self._slope(z)
        return self._slope(torch.as_tensor(np.asarray(z, dtype=np.float64))).numpy()

    @property
    def _shift(self):
        return self.parameters[0] if self.parameters else 0.0

    def _value(self, z):
        match self.family:
            case "hermite":
                return hermite.evaluate(self.parameters, z)
            case "relu":
                return torch.relu(z + self.parameters[0])
            case "tanh":
                return torch.tanh(z)
            case "erf":
                return torch.erf(self.parameters[0] * z)
            case "abs":
                return torch.abs(z + self._shift)
            case "sign":
                return torch.sign(z)
            case "sin":
                return torch.sin(z)
            case "cos":
                return torch.cos(z)
            case "bump":
                return z**2 * torch.exp(-(z**2))

    def _slope(self, z):
        match self.family:
            case "hermite":
                slopes = hermite.derivative(self.parameters)
                return hermite.evaluate(slopes, z) if len(slopes) else torch.zeros_like(z)
            case "relu":
                return (z + self.parameters[0] > 0).to(z.dtype)
            case "tanh":
                return 1 - torch.tanh(z) ** 2
            case "erf":
                s = self.parameters[0]
                return 2 * s / math.sqrt(math.pi) * torch.exp(-((s * z) ** 2))
            case "abs":
                return torch.sign(z + self._shift)
            case "sign":
                return torch.zeros_like(z)
            case "sin":
                return torch.cos(z)
            case "cos":
                return -torch.sin(z)
            case "bump":
                return 2 * z * (1 - z**2) * torch.exp(-(z**2))


def polynomial(coefficients, latex=""):
    """The polynomial link Σ_k α_k h_k(z) with orthonormal Hermite coefficients α_0..α_K."""
    return Link("hermite", tuple(float(alpha) for alpha in coefficients), latex)


def he(k, latex=""):
    """The un-normalised Hermite polynomial He_k(z) = √(k!) h_k(z) of the talks."""
    return polynomial([0.0] * k + [math.sqrt(math.factorial(k))], latex or rf"\mathrm{{He}}_{k}(z)")


def relu(bias=0.0):
    """The rectified linear link max(z + b, 0)."""
    shift = f" {'+' if bias > 0 else '-'} {functions.formatted(abs(bias))}" if bias else ""
    return Link("relu", (float(bias),), rf"\max(z{shift}, 0)")


def absolute(bias=0.0):
    """The link |z + b| = max(z + b, 0) + max(−z − b, 0)."""
    shift = f" {'+' if bias > 0 else '-'} {functions.formatted(abs(bias))}" if bias else ""
    return Link("abs", (float(bias),), rf"|z{shift}|")


def as_polynomial(function, max_degree=20):
    """Return the polynomial `Link` that equals the vectorised `function`, or None if it is no polynomial.

    Lets compiled code run a reader's own `lambda z: z**3 - 3*z`.
    """
    try:
        alpha = hermite.coefficients(function, max_degree)
    except ValueError:
        return None
    size = float(np.abs(alpha).max())
    keep = np.flatnonzero(np.abs(alpha) > 1e-12 * size)
    if not len(keep):
        return None
    alpha = np.where(np.abs(alpha) > 1e-12 * size, alpha, 0.0)[: keep[-1] + 1]
    z = np.linspace(-6, 6, 241)
    values = function.numpy(z)
    same = np.abs(hermite.evaluate(alpha, z) - values) <= 1e-9 * (1 + np.abs(values))
    return polynomial(alpha) if same.all() else None
