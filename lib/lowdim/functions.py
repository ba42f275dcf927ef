"""Functions that users pass in. Written with NumPy or with torch, both work everywhere, and errors are clear."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

# Points at which a function is tried out: different signs and sizes, no special values.
PROBE = (-2.3, -0.7, 0.4, 1.9, 0.05)
# Step of the central difference for functions written with NumPy: error about step² for smooth functions.
DIFFERENCE_STEP = 1e-5


@dataclass(frozen=True)
class Vectorised:
    """A function of an array, callable from NumPy and from torch, with its derivative.

    `function` maps shape […] to […] (directions = 1) or […, r] to […] (directions = r). `written_with` says which
    kind of array it takes. `slope` is its derivative (directions = 1 only).
    """

    function: Callable
    written_with: str
    directions: int = 1
    slope: Callable | None = None

    def numpy(self, z):
        """Evaluate at a float64 NumPy array."""
        z = np.asarray(z, dtype=np.float64)
        if self.written_with == "numpy":
            return np.asarray(self.function(z), dtype=np.float64)
        # torch warns about read-only arrays, which cached quadrature nodes are: it gets a copy of those.
        z = np.ascontiguousarray(z) if z.flags.writeable else z.copy()
        with torch.no_grad():
            return self.function(torch.from_numpy(z)).detach().to(torch.float64).numpy()

    def torch(self, z):
        """Evaluate at a tensor, on its device and in its dtype (a NumPy function runs on the host)."""
        if self.written_with == "torch":
            return self.function(z).to(z.dtype)
        values = np.asarray(self.function(z.detach().cpu().numpy()))
        return torch.as_tensor(values, dtype=z.dtype, device=z.device)

    def derivative(self, z):
        """The derivative at a tensor: as given, else by automatic differentiation (torch) or central differences."""
        if self.slope is not None:
            return self.slope(z)
        if self.written_with == "torch":
            with torch.enable_grad():
                point = z.detach().requires_grad_(True)
                value = self.function(point)
                if not value.requires_grad:
                    return torch.zeros_like(z)
                return torch.autograd.grad(value.sum(), point)[0]
        point = z.detach().to(torch.float64)
        upper, lower = self.torch(point + DIFFERENCE_STEP), self.torch(point - DIFFERENCE_STEP)
        return ((upper - lower) / (2 * DIFFERENCE_STEP)).to(z.dtype)

    def __call__(self, z):
        return self.torch(z) if isinstance(z, torch.Tensor) else self.numpy(z)


def vectorised(f, name, directions=1):
    """Return `f` as a `Vectorised` function of `directions` variables, after trying it out on a few points.

    `name` is the argument's name in error messages. Raises ValueError when `f` is not callable, is not vectorised, or
    returns an array of the wrong shape.
    """
    if isinstance(f, Vectorised):
        if f.directions != directions:
            raise ValueError(f"{name} takes {f.directions} directions; here it must take {directions}")
        return f
    inner = getattr(f, "vectorised", None)
    if isinstance(inner, Vectorised):
        return vectorised(inner, f"{name} (here {getattr(f, 'name', f)!r})", directions)
    if not callable(f):
        raise ValueError(f"{name} is {f!r}; it must be a vectorised function, written with NumPy or torch")
    shape = (len(PROBE),) if directions == 1 else (len(PROBE), directions)
    points = np.resize(np.array(PROBE), shape)
    try:
        # A tensor that asks for a gradient is refused by NumPy functions, so success here means "written with torch".
        value = f(torch.tensor(points, dtype=torch.float64, requires_grad=True))
        kind = "torch" if isinstance(value, torch.Tensor) else None
    except Exception:
        kind = None
    if kind is None:
        kind = "numpy"
        try:
            value = np.asarray(f(points.copy()))
        except Exception as error:
            raise ValueError(
                f"{name} could not be evaluated on an array of shape {shape}: {type(error).__name__}: {error}. "
                "It must be vectorised, e.g. lambda z: np.tanh(z) or torch.tanh"
            ) from error
    if tuple(value.shape) != shape[:1]:
        raise ValueError(
            f"{name} returns shape {tuple(value.shape)} for an input of shape {shape}; it must return shape {shape[:1]}"
        )
    if kind == "numpy" and not np.issubdtype(value.dtype, np.number) and value.dtype != bool:
        raise ValueError(f"{name} returns values of type {value.dtype}; it must return real numbers")
    if (kind == "numpy" and np.iscomplexobj(value)) or (kind == "torch" and value.is_complex()):
        raise ValueError(f"{name} returns complex values; it must return real numbers")
    return Vectorised(f, kind, directions)


def formatted(number):
    """A number for an error message or a formula: 3 rather than 3.0, four digits otherwise."""
    return f"{int(number)}" if math.isfinite(number) and float(number).is_integer() else f"{number:.4g}"
