"""Every chapter keeps the form that the book promises its readers (what a chapter *says* is checked by its claims)."""

import ast
import re
import subprocess

import pytest

from tools import sources
from tools.sources import calls, code_cells, top_level

CHAPTERS = sources.chapters()
MAX_LINES = 15
NOT_PROSE = re.compile(r"^\s*(#|```|~~~|:::|\+\+\+|\$\$|---|\||<|%|:\w+:)")


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda source: source.name)
def chapter(request):
    return request.param.read()


def first_line(cell):
    return cell.source.splitlines()[0] if cell.source else "(empty)"


def test_the_book_has_chapters():
    assert CHAPTERS


def test_code_cells_are_short(chapter):
    long = {first_line(cell): len(cell.source.splitlines()) for cell in code_cells(chapter)}
    assert not {line: length for line, length in long.items() if length > MAX_LINES}


def test_prose_stands_directly_before_every_code_cell(chapter):
    bare = []
    for before, cell in zip([None, *chapter.cells], chapter.cells, strict=False):
        if cell.cell_type == "code":
            lines = before.source.strip().splitlines() if before and before.cell_type == "markdown" else []
            if not lines or NOT_PROSE.match(lines[-1]):
                bare.append(first_line(cell))
    assert not bare, "no sentence before the cells that begin with these lines"


def test_every_figure_has_alt_text(chapter):
    mute = []
    for cell in code_cells(chapter):
        draws = any(name in ("plt.subplots", "plt.figure", "plt.subplot_mosaic") for name in calls(cell))
        explores = any(name.startswith("explore.") for name in calls(cell))
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if draws and not explores and not alt.strip():
            mute.append(first_line(cell))
    assert not mute, "no mystnb image alt in the cells that begin with these lines"


def test_there_is_an_explorer(chapter):
    assert any(name.startswith("explore.") for cell in code_cells(chapter) for name in calls(cell))


def test_there_are_at_least_six_claims(chapter):
    count = sum(cell.source.count("claims.check(") for cell in code_cells(chapter))
    assert count >= 6, f"{count} claims"


def test_there_are_at_least_four_exercises_each_with_a_solution(chapter):
    prose = "\n".join(cell.source for cell in chapter.cells if cell.cell_type == "markdown")
    exercises = re.findall(
        r"^[`:]{3,}\{exercise(?:-start)?\}[^\n]*\n(?::\w+:[^\n]*\n)*?:label: *(\S+)", prose, re.MULTILINE
    )
    solutions = re.findall(r"^[`:]{3,}\{solution(?:-start)?\} *(\S+)", prose, re.MULTILINE)
    assert len(exercises) >= 4, f"{len(exercises)} exercises with a label"
    assert set(exercises) == set(solutions)


def test_the_learning_objectives_are_stated(chapter):
    prose = "\n".join(cell.source for cell in chapter.cells if cell.cell_type == "markdown")
    assert re.search(r"^(#+ |[`:]{3,}\{).*learning objectives", prose, re.MULTILINE | re.IGNORECASE)


def test_everything_is_imported_in_one_cell(chapter):
    importing = [
        first_line(cell)
        for cell in code_cells(chapter)
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in top_level(cell))
    ]
    assert len(importing) == 1, importing


def test_no_notebook_is_committed():
    listing = subprocess.run(["git", "ls-files", "*.ipynb"], cwd=sources.ROOT, capture_output=True, text=True)
    assert listing.stdout == ""
