"""Checks of arguments. Every error names the argument, the value and what is allowed."""

import math
import numbers

import numpy as np


def whole_number(name, value, least):
    """Return `value` as an int if it is a whole number ≥ `least`, else raise ValueError."""
    is_whole = isinstance(value, numbers.Integral) or (isinstance(value, numbers.Real) and float(value).is_integer())
    if isinstance(value, bool | np.bool_) or not is_whole or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number ≥ {least}")
    return int(value)


def positive(name, value):
    """Return `value` as a float if it is finite and > 0, else raise ValueError."""
    number = finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} is {value!r}; it must be a finite number > 0")
    return number


def not_negative(name, value):
    """Return `value` as a float if it is finite and ≥ 0, else raise ValueError."""
    number = finite(name, value)
    if number < 0:
        raise ValueError(f"{name} is {value!r}; it must be a finite number ≥ 0")
    return number


def finite(name, value):
    """Return `value` as a float if it is a finite real number, else raise ValueError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}; it must be a finite number") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}; it must be a finite number")
    return number


def fraction(name, value):
    """Return `value` as a float if 0 < value ≤ 1, else raise ValueError."""
    number = finite(name, value)
    if not 0 < number <= 1:
        raise ValueError(f"{name} is {value!r}; it must lie in (0, 1]")
    return number


def one_of(name, value, allowed):
    """Return `value` if it is among `allowed`, else raise ValueError."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")
    return value
