"""Claims: theory against measurement, stated beside a figure, shown in one line, asserted, and recorded.

>>> claims.check("slope for k = 1", measured=1.03, theory=1.0, tol=0.1, source="Ben Arous et al. 2021")

A claim that does not hold raises `ClaimFailed` and so fails the build. Each claim travels with the executed notebook,
as metadata of its output; the book's ledger of claims is collected from there. Under `LOWDIM_CLAIMS=record`, a failed
claim is recorded without raising: that is how `make seeds` measures how often each claim holds.
"""

import html
import math
import os
import re
import unicodedata
from dataclasses import asdict, dataclass

from IPython.display import display

from lowdim import checks

RELATIONS = ("≈", "≤", "≥", "=")
ADVICE = (
    "The tolerance was argued for the settings of the chapter. If you have changed them, this is a finding, "
    'not a fault: os.environ["LOWDIM_CLAIMS"] = "record" in a cell above lets all claims be shown without stopping.'
)
_recorded = {}


class ClaimFailed(AssertionError):
    """A measured value disagrees with its theory by more than the stated tolerance."""


@dataclass(frozen=True)
class Claim:
    """One line of the ledger. `relation` is how `measured` relates to `theory`, up to `tolerance`."""

    name: str
    theory: float
    measured: float
    spread: float | None
    tolerance: float
    relation: str
    source: str
    holds: bool

    @property
    def anchor(self):
        """The id of this claim's line in its page: its name in plain letters and digits (y² becomes y2)."""
        plain = unicodedata.normalize("NFKD", self.name.lower())
        return "claim-" + re.sub(r"[^a-z0-9]+", "-", plain).strip("-")

    def row(self):
        """The claim as plain data that survives JSON (infinities become text)."""
        plain = {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }
        return plain | {"verdict": "holds" if self.holds else "fails", "anchor": self.anchor}

    def _parts(self):
        spread = "" if self.spread is None else f" ± {_short(self.spread)}"
        within = f" (tolerance {_short(self.tolerance)})" if self.tolerance else ""
        return f"theory {self.relation} {_short(self.theory)}{within}", f"measured {_short(self.measured)}{spread}"

    def __str__(self):
        theory, measured = self._parts()
        return f"{'✓' if self.holds else '✗'} {self.name}: {theory}, {measured} [{self.source}]"

    def _repr_mimebundle_(self, include=None, exclude=None):
        theory, measured = self._parts()
        verdict = "holds" if self.holds else "fails"
        line = (
            f'<p class="lowdim-claim" id="{self.anchor}" data-verdict="{verdict}">'
            f"<strong>{'✓' if self.holds else '✗'} Claim {verdict}:</strong> {html.escape(self.name)}. "
            f"{html.escape(theory)}; {html.escape(measured)}. <em>{html.escape(self.source)}</em></p>"
        )
        return {"text/plain": str(self), "text/html": line}, {"lowdim": {"claim": self.row()}}


def check(name, measured, theory, tol, source, *, spread=None, relation="≈"):
    """State that `measured` agrees with `theory`, show it, record it, and raise `ClaimFailed` if it does not.

    name      the statement, unique in its chapter
    measured  a number; `spread` its standard error or spread over runs, for the reader
    theory    a number (may be math.inf)
    tol       the tolerance ≥ 0, argued in the text: sampling error, finite size
    source    where the theory comes from: a paper, or "derived above"
    relation  "≈": |measured − theory| ≤ tol; "≤": measured ≤ theory + tol; "≥": measured ≥ theory − tol;
              "=": measured == theory (tol must be 0)
    """
    checks.one_of("relation", relation, RELATIONS)
    tol = checks.not_negative("tol", tol)
    if relation == "=" and tol:
        raise ValueError(f'tol is {tol}; with relation "=" it must be 0')
    if not str(name).strip() or not str(source).strip():
        raise ValueError(f"name is {name!r} and source is {source!r}; both must say something")
    measured, theory = float(measured), float(theory)
    if math.isnan(theory):
        raise ValueError("theory is nan; it must be a number")
    spread = None if spread is None else checks.not_negative("spread", spread)
    holds = {
        "≈": measured == theory or abs(measured - theory) <= tol,
        "≤": measured <= theory + tol,
        "≥": measured >= theory - tol,
        "=": measured == theory,
    }[relation]
    claim = Claim(str(name), theory, measured, spread, tol, relation, str(source), bool(holds))
    _recorded[claim.name] = claim
    display(claim)
    if not holds and os.environ.get("LOWDIM_CLAIMS") != "record":
        raise ClaimFailed(str(claim) if os.environ.get("LOWDIM_BUILD") == "1" else f"{claim}\n{ADVICE}")


def recorded():
    """All claims checked in this process, in order; a claim that was checked again counts once."""
    return list(_recorded.values())


def _short(number):
    """Three significant digits, whole numbers as such."""
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if float(number).is_integer() and abs(number) < 1e6:
        return str(int(number)).replace("-", "−")
    return f"{number:.3g}".replace("-", "−")
