"""Messages between the grader and a submission: plain data only, so that reading one can run nothing.

A message is four bytes of length and then JSON. Arrays travel as dtype, shape and base64; functions that the grader
hands over travel as numbers, and a call of one comes back as a message.
"""

import base64
import json
import math
import struct

import numpy as np

MOST_BYTES = 64 * 2**20
KINDS = "biufc"  # booleans, integers, floats, complex numbers
TEXT = 100_000


class WireError(ValueError):
    """A value that cannot travel, or bytes that are no message."""


def encode(value, functions=None):
    """Turn a value into what JSON holds. Callables are appended to the list `functions`, if there is one."""
    if value is None or isinstance(value, bool | str):
        return value[:TEXT] if isinstance(value, str) else value
    if isinstance(value, int) and abs(value) < 2**62:
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, tuple | list):
        return {"list": [encode(item, functions) for item in value], "tuple": isinstance(value, tuple)}
    if isinstance(value, dict):
        if not all(isinstance(key, str | int) for key in value):
            raise WireError("a dictionary with keys that are neither text nor whole numbers")
        return {"dict": [[key, encode(item, functions)] for key, item in value.items()]}
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a torch tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in KINDS:
            raise WireError(f"an array of dtype {array.dtype}")
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return {"array": data, "dtype": array.dtype.str, "shape": list(array.shape)}
    if callable(value) and functions is not None:
        functions.append(value)
        return {"function": len(functions) - 1}
    raise WireError(f"a value of type {type(value).__name__}")


def decode(value, function=None):
    """The inverse of `encode`; `function(number)` makes a callable of a function's number."""
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    if "list" in value:
        items = [decode(item, function) for item in value["list"]]
        return tuple(items) if value.get("tuple") else items
    if "dict" in value:
        return {key: decode(item, function) for key, item in value["dict"]}
    if "array" in value:
        dtype = np.dtype(str(value["dtype"]))
        if dtype.kind not in KINDS:
            raise WireError(f"an array of dtype {dtype}")
        array = np.frombuffer(base64.b64decode(value["array"]), dtype).reshape(value["shape"]).copy()
        return array[()] if array.ndim == 0 else array
    if "function" in value and function is not None:
        return function(value["function"])
    raise WireError("a message of unknown form")


def send(connection, message):
    """Send one message (a dictionary of encoded values) over a socket."""
    data = json.dumps(message).encode()
    if len(data) > MOST_BYTES:
        raise WireError(f"a value of {len(data) / 2**20:.0f} MB; at most {MOST_BYTES // 2**20} MB can be handed in")
    connection.sendall(struct.pack("!I", len(data)) + data)


def receive(connection):
    """Receive one message; EOFError if the other side is gone, WireError if it does not speak this language."""
    (length,) = struct.unpack("!I", _exactly(connection, 4))
    if length > MOST_BYTES:
        raise WireError(f"a message of {length / 2**20:.0f} MB")
    try:
        message = json.loads(_exactly(connection, length))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise WireError("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise WireError("a message that is no dictionary")
    return message


def _exactly(connection, count):
    parts, missing = [], count
    while missing:
        part = connection.recv(min(missing, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
