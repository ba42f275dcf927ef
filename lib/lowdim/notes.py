"""Numbers in prose come from the run: `glue` stores a value under a name, and the text shows it with {glue}."""

import os

from IPython.display import display

from lowdim.checks import finite

# Outputs under this prefix are stored in the notebook but not shown; the book's {glue} role looks there.
HIDDEN = "application/papermill.record/"


def glue(name, value, digits=2):
    """Store the number (or text) `value` under `name`, rounded to `digits` decimals, for the prose of this page.

    Outside the site's build (LOWDIM_BUILD=1) the prose cannot show it, so the line `name = value` does.
    """
    text = value if isinstance(value, str) else _rounded(finite("value", value), digits)
    bundle = {HIDDEN + "text/plain": text}
    if os.environ.get("LOWDIM_BUILD") != "1":
        bundle["text/plain"] = f"{name} = {text}"
    display(bundle, raw=True, metadata={"scrapbook": {"name": name, "mime_prefix": HIDDEN}})


def _rounded(number, digits):
    """The number with `digits` decimals, a true minus sign, and no minus before a zero."""
    return f"{round(number, digits) + 0.0:.{digits}f}".replace("-", "−")
