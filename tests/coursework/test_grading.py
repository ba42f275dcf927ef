"""Hostile and broken submissions get their honest points, and change nobody else's."""

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from tools import sources
from tools.coursework import build, grade, landlock, report, session, wire

SET = "information_exponent"
FULL = {"q1": 5.0, "q2": 5.0, "q3": 6.0}
NONE = dict.fromkeys(FULL, 0.0)
ONLY_Q1 = {**NONE, "q1": 5.0}
LIMITS = session.Limits(seconds=50, step=12, memory=2 * 2**30)

ABI = landlock.abi()

# Cells that stand right after the check of the first question, with the points that the submission must keep and words
# that its message must hold.
HOSTILE = {
    "never-ends": ("while True:\n    pass", FULL, "did not finish in its time"),
    "never-ends-and-insists": (
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        ONLY_Q1,
        "took longer than",
    ),
    "eats-memory-at-once": ("x = np.ones(10**12)", FULL, "MemoryError"),
    "eats-memory-slowly": (
        "import subprocess, sys\ncode = 'x=[]\\nwhile True: x.append(bytearray(10**7))'\n"
        "children = [subprocess.Popen([sys.executable, '-c', code]) for _ in range(4)]\nfor c in children: c.wait()",
        None,
        "",
    ),
    "raises": ("raise RuntimeError('I give up')", FULL, "RuntimeError: I give up"),
    "redefines-the-helpers": (
        "import otter.execute\notter.execute.Checker.check = None\ngrader.check = print\n"
        "np.allclose = lambda *a, **k: True\ncoefficients = lambda f, degree: None",
        {**FULL},
        "",
    ),
    "prints-100-MB": ("for _ in range(100):\n    print('x' * 10**6)", FULL, ""),
    "sys-exit": ("import sys\nsys.exit(0)", FULL, "SystemExit"),
    "os-exit": ("import os\nos._exit(0)", ONLY_Q1, "ended from inside"),
    "crashes": ("import ctypes\nctypes.string_at(0)", ONLY_Q1, "signal 11"),
    "deletes-its-folder": (
        "import os, shutil\nshutil.rmtree(os.getcwd())\nshutil.rmtree(os.environ['HOME'])",
        None,  # its compiled kernels are gone too, so that the last question may run out of time
        "Error",
    ),
    "kills-the-grader": ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", FULL, "PermissionError"),
    "leaves-a-process": (
        "import subprocess, sys\ncode = 'import time; time.sleep(543)'\n"
        "subprocess.Popen([sys.executable, '-c', code], start_new_session=True)",
        FULL,
        "",
    ),
    "forges-messages": (
        "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'\\x00\\x00\\x00\\x02{}' * 9)\n"
        "    except OSError:\n        pass",
        None,
        "",
    ),
    "opens-a-connection": (
        "import socket\nsocket.create_connection(('127.0.0.1', PORT), timeout=2)",
        FULL,
        "PermissionError",
    ),
    "reads-the-tests": (
        "import glob\nfound = [open(p).read() for p in glob.glob('TESTS')]\nopen('ARCHIVE', 'rb').read()",
        FULL,
        "PermissionError",
    ),
    "reads-another-submission": ("text = open('NEIGHBOUR').read()\nprint(text)", FULL, "PermissionError"),
    "writes-outside": ("open('OUTSIDE', 'w').write('I was here')", FULL, "PermissionError"),
    "overwrites-another-submission": ("open('NEIGHBOUR', 'w').write('{}')", FULL, "PermissionError"),
    "reads-the-grader's-memory": ("import os\nopen(f'/proc/{os.getppid()}/environ').read()", FULL, "PermissionError"),
}
# What Landlock holds back, and since which version of it.
CONFINED = {
    "reads-the-tests": 1,
    "reads-another-submission": 1,
    "reads-the-grader's-memory": 1,
    "writes-outside": 1,
    "overwrites-another-submission": 1,
    "opens-a-connection": 4,
    "kills-the-grader": 6,
}


def with_cell(solution, source):
    """The solution with one more cell right after the check of its first question."""
    notebook = nbformat.from_dict(solution)
    checks = [i for i, cell in enumerate(notebook.cells) if build.is_check(cell)]
    notebook.cells = list(notebook.cells)
    notebook.cells.insert(checks[0] + 1, nbformat.v4.new_code_cell(source))
    return notebook


def broken_files(solution):
    """{file name: bytes} of submissions that are no usable notebook."""
    text = nbformat.writes(solution).encode()
    prose = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("my answers are on paper")])
    return {
        "empty.ipynb": b"",
        "corrupted.ipynb": text[: len(text) // 2],
        "not-a-notebook.pdf": b"%PDF-1.7\n" + bytes(range(256)),
        "no-cells.ipynb": b'{"metadata": {}}',
        "only-prose.ipynb": nbformat.writes(prose).encode(),
        "deep.ipynb": b"[" * 100_000,
    }


@pytest.fixture(scope="module")
def graded(edition, tmp_path_factory):
    """All submissions above and an honest one, graded as one class; with what they tried to reach."""
    folder, place = edition(SET), tmp_path_factory.mktemp("class")
    hand_in = place / "submissions"
    hand_in.mkdir()
    solution = nbformat.read(folder / f"{SET}-solution.ipynb", 4)
    outside = place / "outside.txt"
    server = socket.create_server(("127.0.0.1", 0))
    targets = {
        "PORT": str(server.getsockname()[1]),
        "TESTS": f"{Path(os.environ.get('TMPDIR', '/tmp'))}/grading-*/tests/*.py",
        "ARCHIVE": str(folder / "autograder.zip"),
        "NEIGHBOUR": str(hand_in / "honest.ipynb"),
        "OUTSIDE": str(outside),
    }
    nbformat.write(solution, hand_in / "honest.ipynb")
    for name, (source, _, _) in HOSTILE.items():
        for word, value in targets.items():
            source = source.replace(word, value)
        nbformat.write(with_cell(solution, source), hand_in / f"{name}.ipynb")
    for name, data in broken_files(solution).items():
        (hand_in / name).write_bytes(data)
    first = nbformat.from_dict(solution)
    first.cells = [nbformat.v4.new_code_cell("1 / 0"), *first.cells]
    nbformat.write(first, hand_in / "raises-in-the-first-cell.ipynb")
    silent = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1")])
    nbformat.write(silent, hand_in / "no-answers.ipynb")
    before = (hand_in / "honest.ipynb").read_bytes()
    found = grade.submissions(hand_in)
    found = {student: path for student, path in found.items() if CONFINED.get(student, 0) <= ABI}
    grades = grade.grade_class(found, folder / "autograder.zip", place / "grades.csv", LIMITS, 2, bool(ABI))
    server.close()
    problems = json.loads((folder / "set.json").read_text("utf8"))
    report.write(grades, problems, place / "grades.csv")
    return {
        "grades": {g.student: g for g in grades},
        "outside": outside,
        "neighbour": (before, hand_in / "honest.ipynb"),
        "table": place / "grades.csv",
    }


def table(path):
    return list(csv.DictReader(path.read_text("utf8").splitlines()))


def points(one):
    return {name: entry["points"] for name, entry in one.questions.items()}


def test_an_honest_submission_gets_all_points(graded):
    assert points(graded["grades"]["honest"]) == FULL and graded["grades"]["honest"].message == ""


@pytest.mark.parametrize("name", [n for n in HOSTILE if n not in CONFINED])
def test_a_hostile_submission_gets_its_honest_points(graded, name):
    _, expected, words = HOSTILE[name]
    result = graded["grades"][name]
    if expected is not None:
        assert points(result) == expected, result.message
    assert points(result)["q1"] == 5.0, "what was checked before the trick counts"
    assert words in result.message


@pytest.mark.parametrize("name", sorted(CONFINED))
def test_a_submission_is_confined_to_its_folder(graded, name):
    if CONFINED[name] > ABI:
        pytest.skip("this kernel does not hold it back")
    _, expected, words = HOSTILE[name]
    result = graded["grades"][name]
    assert points(result) == expected and words in result.message


def test_nothing_outside_was_touched(graded):
    before, path = graded["neighbour"]
    assert path.read_bytes() == before
    assert not graded["outside"].exists()


def test_no_process_is_left_behind(graded):
    assert not [p for p in psutil.process_iter(["cmdline"]) if "time.sleep(543)" in " ".join(p.info["cmdline"] or [])]


def test_long_output_is_cut(graded):
    assert "cut: it printed more than" in graded["grades"]["prints-100-MB"].printed
    assert len(graded["grades"]["prints-100-MB"].printed) < 2 * session.KEPT_OUTPUT


def test_no_message_shows_a_test(graded):
    for result in graded["grades"].values():
        assert "def test_" not in result.printed and "hidden=True" not in result.printed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty", "empty"),
        ("corrupted", "not valid JSON"),
        ("not-a-notebook", "not a notebook"),
        ("no-cells", "no list of cells"),
        ("only-prose", "no code cells"),
        ("deep", "not valid JSON"),
    ],
)
def test_a_file_that_is_no_notebook_gets_zero_and_a_reason(graded, name, words):
    result = graded["grades"][name]
    assert points(result) == NONE and result.status == "unreadable" and words in result.message


def test_an_error_in_the_first_cell_costs_nothing_else(graded):
    result = graded["grades"]["raises-in-the-first-cell"]
    assert points(result) == FULL and "code cell 1: ZeroDivisionError" in result.message


def test_missing_answers_get_zero_and_a_hint(graded):
    result = graded["grades"]["no-answers"]
    assert points(result) == NONE
    assert any("define a function coefficients" in remark for remark in result.questions["q1"]["remarks"])


def test_the_table_has_a_row_for_each_submission_and_a_column_for_the_hand(graded):
    rows = table(graded["table"])
    assert {row["student"] for row in rows} == set(graded["grades"])
    honest = next(row for row in rows if row["student"] == "honest")
    assert (honest["q1"], honest["autograded"], honest["possible"]) == ("5", "16", "16")
    assert honest["q4 by hand (of 4)"] == ""


def test_feedback_summary_and_exports_are_written(graded):
    place = graded["table"].parent
    letter = (place / "grades.feedback" / "os-exit.md").read_text("utf8")
    assert "ended from inside" in letter and "5 of 5 points" in letter and "0 of 5 points" in letter
    summary = (place / "grades.summary.html").read_text("utf8")
    assert "Hardest question" in summary and "<img alt='Histogram" in summary
    for system, head in (("canvas", "Student"), ("moodle", "Username"), ("gradescope", "SID")):
        assert (place / f"grades.{system}.csv").read_text("utf8").startswith(head)


def test_points_by_hand_are_kept_and_counted(tmp_path):
    questions = [
        {"name": "q1", "title": "Question 1", "points": 5, "manual": False},
        {"name": "q4", "title": "Question 4", "points": 4, "manual": True},
    ]
    problems = {"title": "Problem set: a test", "key": "k", "questions": questions}
    entry = {"points": 3.0, "possible": 5.0, "remarks": []}
    grades = [grade.Grade(name, f"{name}.ipynb", questions={"q1": entry}) for name in ("ada", "=grace")]
    out = tmp_path / "grades.csv"
    assert "2 answers are to be graded by hand" in report.write(grades, problems, out)
    text = out.read_text("utf8")
    assert "'=grace" in text, "a name must not become a formula"
    out.write_text(text.replace("3,5,,", "3,5,2.5,"), "utf8")
    assert "by hand" not in report.write(grades, problems, out)
    assert [row["q4 by hand (of 4)"] for row in table(out)] == ["2.5", "2.5"]
    assert [row["Total Score"] for row in table(tmp_path / "grades.gradescope.csv")] == ["5.5", "5.5"]
    out.write_text(text.replace("3,5,,", "3,5,7,"), "utf8")
    with pytest.raises(SystemExit, match="must be a number in range"):
        report.write(grades, problems, out)


def test_grading_that_is_killed_goes_on_where_it_stopped(edition, tmp_path):
    folder, hand_in = edition(SET), tmp_path / "submissions"
    hand_in.mkdir()
    for number in range(4):
        shutil.copy(folder / f"{SET}-solution.ipynb", hand_in / f"student-{number}.ipynb")
    command = [sys.executable, "-m", "tools.coursework.grade", "--set", SET, "--key", "tests", "--jobs", "1"]
    command += ["--submissions", str(hand_in), "--out", str(tmp_path / "grades.csv")]
    command += [] if ABI else ["--unprotected"]
    parts = tmp_path / "grades.parts"
    with subprocess.Popen(command, cwd=sources.ROOT, start_new_session=True, stdout=subprocess.PIPE) as first:
        began = time.monotonic()
        while not list(parts.glob("*.json")) and time.monotonic() - began < 120:
            time.sleep(0.1)
        first.send_signal(signal.SIGKILL)
    done = {path: path.stat().st_mtime_ns for path in parts.glob("*.json")}
    assert 1 <= len(done) < 4
    said = subprocess.run(command, cwd=sources.ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{len(done)} of 4 submissions are graded already" in said and "4 submissions" in said
    assert all(path.stat().st_mtime_ns == time_ for path, time_ in done.items()), "nobody is graded twice"
    assert len(list(parts.glob("*.json"))) == 4
    assert [row["autograded"] for row in table(tmp_path / "grades.csv")] == ["16"] * 4


def test_a_submission_that_ends_the_grader_harms_nobody_else(edition, tmp_path):
    """Where nothing confines it, a submission can end the process that grades it; only its own points are lost."""
    solution = nbformat.read(edition(SET) / f"{SET}-solution.ipynb", 4)
    found = {name: tmp_path / f"{name}.ipynb" for name in ("first", "killer", "last")}
    for name, path in found.items():
        nbformat.write(with_cell(solution, HOSTILE["kills-the-grader"][0]) if name == "killer" else solution, path)
    archive = edition(SET) / "autograder.zip"
    grades = grade.grade_class(found, archive, tmp_path / "grades.csv", session.Limits(60, 30), 2, confined=False)
    assert [points(one) for one in grades] == [FULL, NONE, FULL]
    assert "ended the grading process" in grades[1].message


def test_folders_and_zips_are_submissions_too(edition, tmp_path):
    solution = edition(SET) / f"{SET}-solution.ipynb"
    hand_in = tmp_path / "submissions"
    (hand_in / "ada").mkdir(parents=True)
    shutil.copy(solution, hand_in / "ada" / "homework.ipynb")
    shutil.make_archive(str(hand_in / "grace"), "zip", solution.parent, solution.name)
    found = grade.submissions(hand_in)
    assert sorted(found) == ["ada", "grace"]
    assert grade.code_cells(grade.content(found["grace"])) == grade.code_cells(solution.read_bytes())


def test_a_missing_folder_says_so(tmp_path):
    with pytest.raises(SystemExit, match="not a folder"):
        grade.submissions(tmp_path / "nowhere")
    with pytest.raises(SystemExit, match="no submission"):
        grade.submissions(tmp_path)


@pytest.mark.parametrize(
    "value", [None, True, 3, 2.5, float("inf"), "text", [1, (2.0, "a")], {"a": [1], 3: 2}, 1 + 0 * 1.5],
)  # fmt: skip
def test_plain_data_travels_unchanged(value):
    assert wire.decode(json.loads(json.dumps(wire.encode(value)))) == value


def test_arrays_travel_and_objects_do_not():
    import numpy as np

    array = np.arange(6.0).reshape(2, 3)
    back = wire.decode(json.loads(json.dumps(wire.encode(array))))
    assert back.dtype == array.dtype and (back == array).all()
    for bad in (object(), np.array([object()]), {(1, 2): 3}, lambda: 0):
        with pytest.raises(wire.WireError):
            wire.encode(bad)
    with pytest.raises(wire.WireError):
        wire.decode({"array": "", "dtype": "O", "shape": []})
    with pytest.raises(wire.WireError):
        wire.decode({"pickle": "…"})
