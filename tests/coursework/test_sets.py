"""Every problem set: what it hands out, and the proof that it grades as it should.

LOWDIM_COURSEWORK_SETS says how many sets are proved: a number (the default, 1) or "all".
"""

import ast
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import nbformat
import pytest

from tools import sources
from tools.coursework import build, masters, prove

SETS = masters.names()
COUNT = os.environ.get("LOWDIM_COURSEWORK_SETS", "1")


def sample():
    """The sets to be proved in this run."""
    return SETS if COUNT == "all" else SETS[: int(COUNT)]


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def test_every_chapter_has_a_problem_set():
    assert SETS == [source.name for source in sources.chapters()]


@pytest.mark.parametrize("name", SETS)
def test_a_master_has_three_kinds_of_questions_and_three_wrong_answers(name):
    problems = masters.read(name)
    assert {q.kind for q in problems.questions} == set(masters.KINDS)
    assert len(problems.wrong) >= 3
    assert len({wrong.question for wrong in problems.wrong}) >= 2
    assert problems.hours and problems.title.startswith("Problem set: ")
    for question in problems.questions:
        assert f"({question.points:g} points)" in question.title, "the heading says what the question is worth"
    text = "\n".join(cell.source for cell in problems.notebook.cells)
    assert text.count("*What it teaches:") == len(problems.questions)


@pytest.mark.parametrize("name", SETS)
def test_every_check_says_what_it_expected(name):
    for cell in masters.read(name).notebook.cells:
        if cell.cell_type == "code" and "BEGIN TEST CONFIG" in cell.source:
            (function,) = [node for node in ast.parse(cell.source).body if isinstance(node, ast.FunctionDef)]
            asserts = [node for node in ast.walk(function) if isinstance(node, ast.Assert)]
            assert asserts, function.name
            assert not [node for node in asserts if node.msg is None], f"{function.name} fails without a hint"


@pytest.mark.parametrize("name", SETS)
def test_another_key_makes_another_set(name):
    one, same, other = (masters.read(name, key) for key in ("fall26", "fall26", "spring27"))
    assert one.instance == same.instance
    changed = {key for key in one.instance if one.instance[key] != other.instance[key]}
    assert len(changed) >= 3, f"only {changed} differ"


@pytest.mark.parametrize("name", SETS)
def test_the_same_key_makes_the_same_files(name, tmp_path):
    for copy in ("one", "two"):
        (tmp_path / copy / "wheels").mkdir(parents=True)
        shutil.copytree(sources.BUILD / "coursework" / "wheels", tmp_path / copy / "wheels", dirs_exist_ok=True)
        build.build(name, "fall26", tmp_path / copy, run=False)
    one, two = (build.folder_of("fall26", name, tmp_path / copy) for copy in ("one", "two"))
    assert files(one) == files(two) and len(files(one)) >= 6
    assert filecmp.cmpfiles(one, two, map(str, files(one)), shallow=False)[1:] == ([], [])


@pytest.mark.parametrize("name", sample())
def test_students_get_neither_solutions_nor_hidden_tests(edition, name):
    folder = edition(name)
    handed = "\n".join(path.read_text("utf8") for path in (folder / "student").rglob("*") if path.is_file())
    assert "hidden=True" not in handed and "# SOLUTION" not in handed and "BEGIN SOLUTION" not in handed
    with zipfile.ZipFile(folder / "autograder.zip") as archive:
        tests = {n: archive.read(n).decode() for n in archive.namelist() if n.startswith("tests/")}
    hidden = [t for text in tests.values() for t in re.findall(r"hidden=True.*?\)\ndef (\w+)", text, flags=re.DOTALL)]
    assert hidden and not [function for function in hidden if f"def {function}(" in handed]
    problems = masters.read(name, "tests")
    cells = problems.notebook.cells
    secret = "\n".join(c.source for c in cells if c.cell_type == "code" and "BEGIN SOLUTION" in c.source)
    lines = {line.strip() for line in secret.splitlines() if "=" in line and len(line.strip()) > 40}
    student = nbformat.read(folder / "student" / f"{name}.ipynb", 4)
    shown = "\n".join(cell.source for cell in student.cells)
    given = "\n".join(c.source for c in cells if "BEGIN SOLUTION" not in c.source)
    assert not [line for line in lines if line in shown and line not in given and "def " not in line]
    assert not [cell for cell in student.cells if cell.get("outputs")]
    assert "data:image/png;base64," in shown, "the expected picture is part of what students get"


@pytest.mark.parametrize("name", sample())
def test_the_set_is_proved(edition, name, tmp_path):
    edition(name)
    assert prove.prove(name, "tests", tmp_path) == []


@pytest.mark.parametrize("name", sample())
def test_otter_itself_gives_the_solution_all_points(edition, name, tmp_path):
    """The autograder zip is what Gradescope and `otter grade` get: Otter's own runner must understand it."""
    folder = edition(name)
    shutil.copy(folder / f"{name}-solution.ipynb", tmp_path / f"{name}.ipynb")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "otter",
        "run",
        f"{name}.ipynb",
        "-a",
        str(folder / "autograder.zip"),
    ]
    done = subprocess.run([*command, "-o", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text("utf8"))
    possible = sum(q.points for q in masters.read(name, "tests").questions if not q.manual)
    assert sum(test.get("score", 0) for test in results["tests"]) == pytest.approx(possible)


@pytest.mark.parametrize("name", sample()[:1])
def test_a_student_can_run_the_notebook_and_is_told_what_is_missing(edition, name, tmp_path):
    """The notebook as handed out, alone in a folder: the set-up cell brings the tests, and checks give hints."""
    from nbclient import NotebookClient

    from tools import execute

    notebook = nbformat.read(edition(name) / "student" / f"{name}.ipynb", 4)
    keep = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [keep[0], *[cell for cell in keep if build.is_check(cell)]]
    client = NotebookClient(notebook, timeout=300, allow_errors=True, config=execute.ENCRYPTED)
    client.resources = {"metadata": {"path": str(tmp_path)}}
    client.execute(env={**os.environ, "LOWDIM_PROGRESS": "0"})
    assert not [out for out in notebook.cells[0].outputs if out.output_type == "error"]
    assert list((tmp_path / "checks").glob("q*.py"))
    for cell in notebook.cells[1:]:
        said = json.dumps([out.get("data", out.get("text", "")) for out in cell.outputs], ensure_ascii=False)
        assert "Test case failed" in said, said


def test_an_unknown_set_and_a_bad_key_say_so():
    with pytest.raises(SystemExit, match="The sets are"):
        masters.select("no_such_set")
    with pytest.raises(SystemExit, match="KEY is"):
        build.checked_key("../elsewhere")


def test_a_fault_of_a_master_is_named(tmp_path, monkeypatch):
    text = (masters.FOLDER / f"{SETS[0]}.md").read_text("utf8")
    monkeypatch.setattr(masters, "FOLDER", tmp_path)
    for old, new, words in (
        ("kind: derive", "kind: guess", "allowed: derive"),
        ("<<", "<<no_such_name_", "no_such_name"),
        ("# WRONG: ", "# wrong ", "must stand inside"),
        ('+++ {"tags": ["rubric"]}', "+++", "no rubric"),
    ):
        (tmp_path / "faulty.md").write_text(text.replace(old, new), "utf8")
        with pytest.raises(SystemExit, match=words):
            masters.read("faulty")


def test_the_index_links_to_files_that_exist(edition):
    for name in SETS[:1]:
        edition(name)
    place = build.write_index("tests")
    links = re.findall(r'href="([^"]+)"', place.read_text("utf8"))
    assert links and all((place.parent / link).exists() for link in links)
