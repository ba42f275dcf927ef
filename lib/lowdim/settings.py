"""The two switches of a chapter: how large (`LOWDIM_SCALE`) and with which randomness (`LOWDIM_SEED`)."""

import os

SCALES = ("quick", "full")
SEED_STRIDE = 1000


def scale(*, quick, full):
    """Return `quick` or `full`, as the environment variable `LOWDIM_SCALE` says (default: quick).

    `quick` is what the site, the tests and a free Colab machine run; `full` is the size of the papers,
    for a GPU or a patient CPU.
    """
    chosen = os.environ.get("LOWDIM_SCALE", "quick")
    if chosen not in SCALES:
        raise ValueError(f"LOWDIM_SCALE is {chosen!r}; allowed: {', '.join(SCALES)}")
    return quick if chosen == "quick" else full


def seed(number):
    """Return the seed that experiment `number` of a chapter uses, shifted by the offset `LOWDIM_SEED` (default 0).

    `number` lies in 0..999, so that two experiments never share a seed, whatever the offset:
    seed = number + 1000 · offset.
    """
    if not 0 <= number < SEED_STRIDE:
        raise ValueError(f"number is {number!r}; a chapter's seed numbers lie in 0..{SEED_STRIDE - 1}")
    text = os.environ.get("LOWDIM_SEED", "0")
    try:
        offset = int(text)
    except ValueError:
        raise ValueError(f"LOWDIM_SEED is {text!r}; it must be a whole number, the offset of all seeds") from None
    if offset < 0:
        raise ValueError(f"LOWDIM_SEED is {offset}; the offset must be at least 0")
    return number + SEED_STRIDE * offset
