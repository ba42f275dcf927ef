"""Where tensors live: device and generator choice. CUDA if present, else CPU; `LOWDIM_DEVICE` overrides."""

import contextlib
import os

import torch

from lowdim import checks


def resolve(device=None, prefer=None):
    """Return the torch.device to compute on.

    `device` is None (then `LOWDIM_DEVICE` decides, then `prefer`, then CUDA if present, then the CPU), a name such as
    "cuda:0", or a torch.device. Asking by name for a CUDA device that this machine lacks raises ValueError.
    """
    asked = device if device is not None else os.environ.get("LOWDIM_DEVICE") or prefer
    if asked is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(asked)
    except (RuntimeError, TypeError):
        raise ValueError(f"device is {asked!r}; it must be a torch device such as 'cpu', 'cuda' or 'cuda:0'") from None
    if found.type == "cuda":
        count = torch.cuda.device_count()
        if (found.index or 0) >= count:
            raise ValueError(f"device is {asked!r}; this machine has {count} CUDA devices (use device='cpu' or None)")
    return found


def generator(device, seed):
    """Return a torch.Generator on `device`, seeded with `seed` (None on the meta device, which draws nothing)."""
    seed = checks.whole_number("seed", seed, least=0)
    if device.type == "meta":
        return None
    return torch.Generator(device=device).manual_seed(seed)


@contextlib.contextmanager
def one_thread():
    """Run torch's CPU operations in one thread inside: for long sequences of small operations.

    Two threads that wait for each other after every small operation cost far more than they save, above all on a
    machine that is busy with something else.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def to_host(tensor):
    """Return the tensor as a NumPy array; a meta tensor, which has a shape but no values, is returned as it is."""
    return tensor if tensor.is_meta else tensor.detach().cpu().numpy()
