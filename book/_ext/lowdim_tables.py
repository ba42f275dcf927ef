"""Tables made from data: `claims-ledger` shows every claim that the chapters checked, `bench-table` the speed ratios.

Both read files that the build writes before Sphinx starts, and are rebuilt when those files change.
"""

import html
import itertools
import json
import os
import posixpath
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

MARKS = {"holds": "✓", "fails": "✗"}


def number(value):
    """A number in at most three significant digits; text stays as it is, a missing value is a dash."""
    if value is None:
        return "–"
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}".replace("-", "−")


def count_holding(rows):
    return sum(row["verdict"] == "holds" for row in rows)


def table(caption, header, rows):
    """An accessible HTML table; cells are given as ready HTML, the first of a row is its header."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<div class="lowdim-table" tabindex="0" role="region" aria-label="{html.escape(caption, quote=True)}">'
        f'<table class="table"><caption>{html.escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


class DataTable(SphinxDirective):
    """A directive that renders one JSON file of the build; subclasses say which and how."""

    variable = ""
    default = ""

    def run(self):
        path = Path(os.environ.get(self.variable) or Path(self.env.srcdir) / self.default)
        self.env.note_dependency(str(path))
        if not path.exists():
            return [nodes.note("", nodes.paragraph("", "This build did not measure this table; `make book` does."))]
        return [nodes.raw("", self.render(json.loads(path.read_text("utf8"))), format="html")]

    def link(self, docname, anchor=""):
        """The address of a page of the book, relative to this one."""
        builder = self.env.app.builder
        target = builder.get_relative_uri(self.env.docname, docname)
        return html.escape(posixpath.normpath(target) + (f"#{anchor}" if anchor else ""), quote=True)


class ClaimsLedger(DataTable):
    """Every claim of the book with its verdict; on top, how many hold in each chapter.

    The table is complete without scripts; ledger.js lets a reader sort and filter it.
    """

    variable = "LOWDIM_LEDGER"
    default = "_build/ledger.json"

    def render(self, rows):
        chapters = [(docname, list(group)) for docname, group in itertools.groupby(rows, key=lambda r: r["docname"])]
        counts = [(self.chapter_link(group[0]), len(group), count_holding(group)) for _, group in chapters]
        counts.append(("All chapters", len(rows), count_holding(rows)))
        summary = table("Claims per chapter", ["Chapter", "Claims", "Hold"], counts)
        header = ["Claim", "Verdict", "Theory", "Measured", "Tolerance", "Source", "Chapter"]
        claims = table("All claims", header, [self.claim_cells(row) for row in rows])
        return f'{summary}<div id="ledger" data-noun="claims">{claims}</div>'

    def chapter_link(self, row):
        return f'<a href="{self.link(row["docname"])}">{html.escape(row["title"])}</a>'

    def claim_cells(self, row):
        name = f'<a href="{self.link(row["docname"], row.get("anchor") or "")}">{html.escape(row["name"])}</a>'
        measured = number(row["measured"])
        if row.get("spread") is not None:
            measured += f" ± {number(row['spread'])}"
        theory = f"{row.get('relation') or ''} {number(row['theory'])}".strip()
        verdict = row["verdict"]
        return [
            name,
            f'<span class="lowdim-{verdict}">{MARKS[verdict]} {verdict}</span>',
            sortable(row["theory"], theory),
            sortable(row["measured"], measured),
            sortable(row.get("tolerance"), number(row.get("tolerance"))),
            html.escape(row.get("source") or "–"),
            html.escape(row["title"]),
        ]


def sortable(value, text):
    """A cell that is sorted by its number and not by how it is written; row() writes infinities as "inf"."""
    return f'<data value="{html.escape(str(value), quote=True)}">{html.escape(text)}</data>'


class BenchTable(DataTable):
    """Measured ratios against a named baseline, with the demand that each must meet."""

    variable = "LOWDIM_BENCHMARKS"
    default = "_build/bench/results.json"

    def render(self, results):
        rows = [
            [
                html.escape(row["what"]),
                html.escape(row["baseline"]),
                html.escape(f"{number(row['ratio'])} {row['note']}"),
                html.escape(f"{row['relation']} {number(row['demand'])}, {'met' if row['met'] else 'missed here'}"),
            ]
            for row in results["rows"]
        ]
        machine = html.escape(results["machine"])
        header = ["What is measured", "Baseline", "Ratio", "Demand"]
        return table("Measured ratios", header, rows) + f"<p>Measured on {machine}.</p>"


def setup(app):
    app.add_directive("claims-ledger", ClaimsLedger)
    app.add_directive("bench-table", BenchTable)
    return {"version": "1", "parallel_read_safe": True}
