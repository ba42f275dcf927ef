"""lowdim: trainers, theory and tools behind *Learning Low-Dimensional Functions*.

Small modules of plain functions and frozen dataclasses. Start with

>>> from lowdim import hermite, exact
>>> hermite.information_exponent(lambda z: z**3 - 3 * z)
3
>>> result = exact.online_sgd("h1", d=256, steps=2000, lr=0.2 / 256, runs=16, seed=0)
>>> result.overlaps.shape[0]
16
"""

from lowdim.settings import scale, seed

__version__ = "0.1.0"
__all__ = ["__version__", "scale", "seed"]
