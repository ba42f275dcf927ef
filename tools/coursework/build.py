"""Make the problem sets of a course from their masters in book/coursework.

    python -m tools.coursework.build [--set NAME] [--key KEY] [--out FOLDER] [--without-run]

For each set: the student's notebook with its public tests, the executed solution, Otter's autograder zip (for
Gradescope and `otter grade`), and a rubric; over all sets an index page. Every random choice comes from the course key:
the same key gives the same files, another key other links, constants and seeds.
"""

import argparse
import asyncio
import base64
import hashlib
import html
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from lowdim.progress import bar
from tools import execute, notebooks, sources
from tools.coursework import masters

OUT = sources.BUILD / "coursework"
CHECKS_CELL = Path(__file__).with_name("checks_cell.py")
SETUP_TAG = "lowdim-setup"
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # every file in a zip has this date, so that equal contents make equal zips
KEY = re.compile(r"[A-Za-z0-9._-]{1,40}")


def folder_of(key, name, out=OUT):
    """Where the files of one set under one key are."""
    return Path(out) / key / name


def checked_key(key):
    if not KEY.fullmatch(key):
        raise SystemExit(f"KEY is {key!r}; it must be 1 to 40 letters, digits, dots, dashes or underscores")
    return key


def build(name, key=masters.DEFAULT_KEY, out=OUT, run=True):
    """Write all files of one set; return its `ProblemSet`."""
    problems = masters.read(name, key)
    target = folder_of(key, name, out)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        _otter_assign(problems, scratch)
        student = nbformat.read(scratch / "dist" / "student" / f"{name}.ipynb", 4)
        solution = nbformat.read(scratch / "dist" / "autograder" / f"{name}.ipynb", 4)
        tests = {path.name: path.read_text("utf8") for path in (scratch / "dist" / "student" / "tests").glob("*.py")}
        pictures = _execute(solution, name) if run else {}
        (archive,) = (scratch / "dist" / "autograder").glob("*autograder*.zip")
        shutil.rmtree(target, ignore_errors=True)
        (target / "student" / "tests").mkdir(parents=True)
        _write_zip(archive, target / "autograder.zip", _wheel(out))
    for file, text in sorted(tests.items()):
        (target / "student" / "tests" / file).write_text(text, "utf8")
    _write_notebook(_student(student, problems, tests, pictures), target / "student" / f"{name}.ipynb", name)
    _write_notebook(_with_setup(solution, problems, tests), target / f"{name}-solution.ipynb", name)
    (target / "rubric.md").write_text(rubric(problems), "utf8")
    (target / "set.json").write_text(json.dumps(summary(problems), indent=1, ensure_ascii=False) + "\n", "utf8")
    return problems


def _otter_assign(problems, scratch):
    """Let Otter split the master into the student's and the grader's side."""
    from otter.assign import main as otter_assign

    config = {
        "name": f"{problems.name}-{problems.key}",
        "init_cell": False,
        "export_cell": False,
        "check_all_cell": False,
        "run_tests": False,
        "tests": {"files": True, "ok_format": False},
        "generate": {"show_stdout": True, "show_hidden": False},
    }
    notebook = nbformat.from_dict(problems.notebook)
    notebook.metadata = dict(notebooks.METADATA)
    source = "# ASSIGNMENT CONFIG\n" + json.dumps(config, indent=1)
    notebook.cells.insert(0, nbformat.v4.new_raw_cell(source))
    nbformat.write(notebook, scratch / f"{problems.name}.ipynb")
    logging.getLogger("otter").setLevel(logging.ERROR)
    otter_assign(str(scratch / f"{problems.name}.ipynb"), str(scratch / "dist"), no_pdfs=True, no_run_tests=True)


def _execute(notebook, name):
    """Execute the solution in place; return {picture cell's source: PNG as base64}. Checks are left to the grader."""
    whole = notebook.cells
    notebook.cells = [cell for cell in whole if not is_check(cell)]
    environment = {**os.environ, **dict.fromkeys(execute.THREAD_VARIABLES, "1"), "LOWDIM_PROGRESS": "0"}
    client = NotebookClient(notebook, timeout=600, record_timing=False, config=execute.ENCRYPTED)
    try:
        with tempfile.TemporaryDirectory() as folder:
            client.resources = {"metadata": {"path": folder}}
            asyncio.run(client.async_execute(env=environment))
    except CellExecutionError as error:
        raise SystemExit(f"The solution of {name} fails:\n{execute.ANSI.sub('', str(error))}") from error
    notebook.cells = whole
    pictures = {}
    for cell in notebook.cells:
        if "picture" in masters.tags(cell):
            images = [out.data["image/png"] for out in cell.outputs if "image/png" in out.get("data", {})]
            if not images:
                raise SystemExit(f"A picture cell of {name} draws nothing:\n{cell.source}")
            pictures[cell.source] = images[-1].replace("\n", "")
    return pictures


def is_check(cell):
    return cell.cell_type == "code" and checked_question(cell.source) is not None


def checked_question(source):
    """The question that a check cell asks for, or None if this is another cell."""
    match = re.fullmatch(r"""\s*grader\.check\(["'](\w+)["']\)\s*""", source)
    return match and match.group(1)


def _student(notebook, problems, tests, pictures):
    """The student's notebook: pictures in place of the code that draws them."""
    cells = []
    for cell in notebook.cells:
        if "picture" in masters.tags(cell):
            if cell.source in pictures:
                cells.append(_picture(cell.source, pictures[cell.source]))
            continue
        cells.append(cell)
    notebook.cells = cells
    return _with_setup(notebook, problems, tests)


def _with_setup(notebook, problems, tests):
    """The notebook with a set-up cell before its first code cell."""
    setup = nbformat.v4.new_code_cell(setup_source(tests), metadata={"tags": [SETUP_TAG], **notebooks.FOLDED})
    first = next(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    note = (
        f"Set `{problems.name}`, edition `{problems.key}`, {problems.points:g} points. Save your notebook and hand in "
        "the `.ipynb` file under the name that your course asks for."
    )
    notebook.cells[first:first] = [nbformat.v4.new_markdown_cell(note), setup]
    return notebook


def _picture(source, png):
    alt = re.match(r"# ALT: (.+)", source)
    if not alt:
        raise SystemExit(f"A picture cell must begin with `# ALT: what to see`:\n{source}")
    return nbformat.v4.new_markdown_cell(f"![{alt.group(1)}](data:image/png;base64,{png})")


def setup_source(tests):
    """The first code cell: the library (as in the chapters), Otter, and the public tests, which it carries along."""
    library = notebooks.setup_cell()
    packed = base64.b64encode(zlib.compress(json.dumps(tests, sort_keys=True).encode(), 9)).decode()
    return library.rstrip() + "\n\n\n" + CHECKS_CELL.read_text("utf8").replace("PACKED_TESTS", packed).rstrip()


def _wheel(out):
    """The library's wheel, built once for each state of the library."""
    folder = Path(out) / "wheels" / sources.library_hash()
    found = sorted(folder.glob("*.whl")) if folder.exists() else []
    return found[0] if found else notebooks.build_wheel(folder)


def _write_zip(otter_zip, target, wheel):
    """Otter's zip with the library in it: its environment installs the wheel that stands beside the tests."""
    place = f"files/{wheel.name}"
    with zipfile.ZipFile(otter_zip) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    environment = contents["environment.yml"].decode()
    line = re.search(r"^(\s*)- otter-grader.*$", environment, flags=re.MULTILINE)
    if not line:
        raise SystemExit("Otter's environment.yml has no line for otter-grader: its format has changed")
    extra = f"{line.group(0)}\n{line.group(1)}- /autograder/source/{place}"
    contents["environment.yml"] = environment.replace(line.group(0), extra, 1).encode()
    contents[place] = wheel.read_bytes()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name in ("run_autograder", "setup.sh") else 0o644) << 16
            new.writestr(entry, contents[name])


def _write_notebook(notebook, path, name):
    """Write a notebook whose cell ids come from its contents, so that equal notebooks are equal files."""
    for number, cell in enumerate(notebook.cells):
        cell.id = hashlib.sha256(f"{name}/{number}/{cell.source}".encode()).hexdigest()[:12]
        if cell.cell_type == "code":
            cell.execution_count = None
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    notebook.nbformat_minor = 5
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, path)


def rubric(problems):
    """The sheet for who grades by hand."""
    lines = [f"# Rubric: {problems.title}", "", f"Edition `{problems.key}`. {problems.points:g} points in all.", ""]
    for question in problems.questions:
        lines += [f"## {question.title}", ""]
        if question.manual:
            lines += [f"Graded by hand, {question.points:g} points.", "", question.rubric, ""]
        else:
            lines += [f"Graded by `make grade` or Gradescope, {question.points:g} points.", ""]
    return "\n".join(lines)


def summary(problems):
    """What the index and the grader need to know of a set."""
    questions = [
        {"name": q.name, "title": q.title, "kind": q.kind, "points": q.points, "manual": q.manual}
        for q in problems.questions
    ]
    return {
        "name": problems.name,
        "key": problems.key,
        "title": problems.title,
        "hours": problems.hours,
        "questions": questions,
    }


STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid #8888 }
img { max-width: 100% }
"""


def page(title, body):
    """A plain page of its own: no script, nothing from elsewhere."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body><main><h1>{html.escape(title)}</h1>\n{body}\n</main></body></html>\n"
    )


def write_index(key, out=OUT):
    """The lecturer's page over all sets that exist under this key."""
    rows = []
    for name in masters.names():
        file = folder_of(key, name, out) / "set.json"
        if not file.exists():
            continue
        entry = json.loads(file.read_text("utf8"))
        kinds = ", ".join(f"{q['name']} {q['kind']} ({q['points']:g})" for q in entry["questions"])
        files = [
            ("student notebook", f"{name}/student/{name}.ipynb"),
            ("solution", f"{name}/{name}-solution.ipynb"),
            ("autograder zip", f"{name}/autograder.zip"),
            ("rubric", f"{name}/rubric.md"),
        ]
        links = "<br>".join(f'<a href="{place}">{label}</a>' for label, place in files)
        total = sum(q["points"] for q in entry["questions"])
        title = html.escape(entry["title"].removeprefix("Problem set: ").capitalize())
        rows.append(
            f"<tr><th scope='row'>{title}</th><td>{html.escape(kinds)}</td>"
            f"<td>{total:g}</td><td>{html.escape(entry['hours'])}</td><td>{links}</td></tr>"
        )
    body = (
        f"<p>Edition <code>{html.escape(key)}</code>. Hand out the student notebooks only; everything else on this "
        "page holds solutions or hidden tests.</p>\n<table><thead><tr><th scope='col'>Set</th>"
        "<th scope='col'>Questions (points)</th><th scope='col'>Points</th><th scope='col'>Hours</th>"
        "<th scope='col'>Files</th></tr></thead>\n<tbody>"
        + "\n".join(rows)
        + f"</tbody></table>\n<p>Grade a folder of submissions: <code>make grade SET=… KEY={html.escape(key)} "
        "SUBMISSIONS=folder OUT=grades.csv</code></p>"
    )
    place = Path(out) / key / "index.html"
    place.write_text(page("Problem sets, for the lecturer", body), "utf8")
    return place


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", metavar="NAME", help="only this set (default: all)")
    parser.add_argument("--key", default=masters.DEFAULT_KEY, help="the course key (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="FOLDER", help="where to write (default: _build/coursework)"
    )
    parser.add_argument("--without-run", action="store_true", help="do not execute solutions: no pictures, no outputs")
    options = parser.parse_args()
    key = checked_key(options.key)
    for name in bar(masters.select(options.set), label="problem sets"):
        problems = build(name, key, options.out, run=not options.without_run)
        print(f"{name}: {len(problems.questions)} questions, {problems.points:g} points", file=sys.stderr)
    print(f"Open {sources.shown(write_index(key, options.out))}")


if __name__ == "__main__":
    main()
