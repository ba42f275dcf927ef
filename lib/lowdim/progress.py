"""Progress bars that appear only when work takes more than two seconds, and leave nothing behind."""

import os

from tqdm import tqdm

PATIENCE_SECONDS = 2.0


def bar(iterable=None, label="", total=None):
    """A tqdm bar around `iterable` (or a manual one, with `.update(n)`, when it is None).

    It stays hidden for the first two seconds, is removed at the end, and is silent under `LOWDIM_PROGRESS=0`,
    which the book's build sets so that no bar ends up in a page.
    """
    return tqdm(
        iterable,
        desc=label,
        total=total,
        delay=PATIENCE_SECONDS,
        leave=False,
        dynamic_ncols=True,
        disable=os.environ.get("LOWDIM_PROGRESS") == "0",
    )
