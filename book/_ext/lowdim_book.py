"""The few things this book needs from Sphinx: where executed notebooks are, and two tables made from data.

`claims-ledger` shows every claim that the chapters checked, `bench-table` the measured speed ratios. Both read files
that the build writes before Sphinx starts, and are rebuilt when those files change.
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
    """Every claim of the book with its verdict; on top, how many hold in each chapter."""

    variable = "LOWDIM_LEDGER"
    default = "_build/ledger.json"

    def render(self, rows):
        chapters = [(docname, list(group)) for docname, group in itertools.groupby(rows, key=lambda r: r["docname"])]
        counts = [
            (
                f'<a href="{self.link(docname)}">{html.escape(group[0]["title"])}</a>',
                len(group),
                count_holding(group),
            )
            for docname, group in chapters
        ]
        counts.append(("All chapters", len(rows), count_holding(rows)))
        summary = table("Claims per chapter", ["Chapter", "Claims", "Hold"], counts)
        return summary + "".join(self.chapter_table(group) for _, group in chapters)

    def chapter_table(self, group):
        header = ["Claim", "Theory", "Measured", "Tolerance", "Source", "Verdict"]
        return table(f"Claims of “{group[0]['title']}”", header, [self.claim_cells(row) for row in group])

    def claim_cells(self, row):
        name = f'<a href="{self.link(row["docname"], row.get("anchor") or "")}">{html.escape(row["name"])}</a>'
        measured = number(row["measured"])
        if row.get("spread") is not None:
            measured += f" ± {number(row['spread'])}"
        theory = f"{row.get('relation') or ''} {number(row['theory'])}".strip()
        verdict = row["verdict"]
        cells = [theory, measured, number(row.get("tolerance")), row.get("source") or "–"]
        return [
            name,
            *(html.escape(cell) for cell in cells),
            f'<span class="lowdim-{verdict}">{MARKS[verdict]} {verdict}</span>',
        ]


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


def use_prepared_cache(app, config):
    """Let myst-nb look where tools/execute.py has put the executed notebooks."""
    folder = os.environ.get("LOWDIM_EXECUTION_CACHE")
    if folder:
        config.nb_execution_cache_path = folder


def leave_thebe_out(app, config):
    """Keep sphinx-thebe, which Jupyter Book loads unasked, from adding scripts and a foreign address to pages.

    Its "builder-inited" handler stays: it supplies the stylesheet that every page already links to.
    """
    for event, registered in app.events.listeners.items():
        for listener in list(registered):
            if event != "builder-inited" and listener.handler.__module__.startswith("sphinx_thebe"):
                app.disconnect(listener.id)


def setup(app):
    app.connect("config-inited", leave_thebe_out)
    app.connect("config-inited", use_prepared_cache)
    app.add_directive("claims-ledger", ClaimsLedger)
    app.add_directive("bench-table", BenchTable)
    return {"version": "1", "parallel_read_safe": True}
