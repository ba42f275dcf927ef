"""Grade a folder of submissions without Docker.

    python -m tools.coursework.grade --set NAME --submissions FOLDER --out grades.csv [--key KEY] [--jobs N]
                                     [--minutes M] [--memory GB] [--unprotected]

Each submission runs in a process of its own, confined to a folder of its own, with a limit of time and memory. Tests
never enter that process: they run here, call the submission's functions through a pipe that carries plain data only,
and judge what comes back. A question is graded as soon as its check cell is reached, so that what breaks later costs
nothing earlier. Results are kept one by one in a folder beside the output: a second start goes on where the first one
stopped.
"""

import argparse
import concurrent.futures
import hashlib
import io
import json
import multiprocessing
import shutil
import sys
import tempfile
import zipfile
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lowdim.progress import bar
from tools import execute, sources
from tools.coursework import build, masters, report, session

MOST_NOTEBOOK_BYTES = 50 * 2**20
VERSION = 1  # raise it when the same submission may get other points


@dataclass
class Grade:
    """What one submission came to. `questions` maps a name to {"points", "possible", "remarks"}."""

    student: str
    file: str
    status: str = "graded"
    message: str = ""
    questions: dict = field(default_factory=dict)
    printed: str = ""

    @property
    def points(self):
        return sum(entry["points"] for entry in self.questions.values())


class NotANotebook(Exception):
    """The submission cannot be read; the text says why."""


# ----------------------------------------------------------------------------------------------- reading submissions


def submissions(folder):
    """{student: path} of a folder: each file is a submission, or each folder that holds one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SystemExit(f"SUBMISSIONS is {str(folder)!r}, which is not a folder")
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            inside = sorted(path.glob("*.ipynb")) or sorted(p for p in path.iterdir() if p.is_file())
            path = inside[0] if len(inside) == 1 else path
            student = path.parent.name if len(inside) == 1 else path.name
        else:
            student = path.stem
        if student in found:
            student = path.name
        found[student] = path
    if not found:
        raise SystemExit(f"{folder} holds no submission")
    return found


def content(path):
    """The bytes of a submission; a zip with one notebook counts as that notebook."""
    if path.is_dir():
        raise NotANotebook("the folder does not hold exactly one notebook")
    if path.stat().st_size > MOST_NOTEBOOK_BYTES:
        raise NotANotebook(f"the file has {path.stat().st_size / 2**20:.0f} MB; a notebook may have 50 MB")
    data = path.read_bytes()
    if path.suffix == ".zip":
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                inside = [entry for entry in archive.infolist() if entry.filename.endswith(".ipynb")]
                if len(inside) != 1:
                    raise NotANotebook(f"the zip holds {len(inside)} notebooks; it must hold one")
                if inside[0].file_size > MOST_NOTEBOOK_BYTES:
                    raise NotANotebook("the notebook in the zip is larger than 50 MB")
                return archive.read(inside[0])
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise NotANotebook(f"the zip cannot be read: {error}") from error
    return data


def code_cells(data):
    """The sources of a notebook's code cells, with those of its set-up cell left out."""
    if not data.strip():
        raise NotANotebook("the file is empty")
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NotANotebook("the file is not a notebook, or a damaged one: it is not valid JSON") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise NotANotebook("the file is not a notebook: it has no list of cells")
    found = []
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        metadata = cell.get("metadata")
        tags = metadata.get("tags", []) if isinstance(metadata, dict) else []
        if build.SETUP_TAG not in (tags if isinstance(tags, list) else []):
            found.append(source)
    if not any(source.strip() for source in found):
        raise NotANotebook("the notebook has no code cells")
    return found


# ------------------------------------------------------------------------------------------------------------ grading


class Answers(dict):
    """What a test sees as the environment: names are fetched from the submission when a test asks for them."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def get(self, name, default=None):
        return self.run.get(name, default)


def grade_question(tests_folder, question, run):
    """Run Otter's test file of a question against a live submission: {"points", "possible", "remarks"}."""
    from otter.nbmeta_config import NBMetadataConfig
    from otter.test_files import create_test_file

    test = create_test_file(str(Path(tests_folder, f"{question}.py")), NBMetadataConfig())
    test.run(Answers(run))
    remarks = []
    for outcome in test.test_case_results:
        if not outcome.passed:
            reason = (
                outcome.message.strip().splitlines()[-1].removeprefix("AssertionError: ").removeprefix("AnswerError: ")
            )
            kind = "hidden check" if outcome.test_case.hidden else "check"
            remarks.append(f"{kind} “{_words(outcome.test_case)}” (−{outcome.test_case.points:g}): {reason}")
    return {"points": float(test.score), "possible": float(test.possible), "remarks": remarks}


def _words(case):
    return case.body.test_func.__name__.removeprefix("test_").replace("_", " ")


def grade_cells(cells, tests_folder, folder, limits, confined=True):
    """Execute a submission and grade every question that has tests: ({question: entry}, message, printed)."""
    names = sorted(path.stem for path in Path(tests_folder).glob("*.py"))
    graded, problems = {}, []
    with session.Session(folder, limits, confined) as run:
        try:
            for number, source in enumerate(cells, start=1):
                question = build.checked_question(source)
                if question in names:
                    graded[question] = grade_question(tests_folder, question, run)
                elif question is None and source.strip():
                    error = run.run_cell(source)
                    if error:
                        problems.append(f"code cell {number}: {error}")
                if run.fate:
                    raise session.Ended(run.fate)
            for question in names:
                if question not in graded:
                    graded[question] = grade_question(tests_folder, question, run)
            ended = None
        except session.Ended as end:
            ended = str(end)
        printed = run.printed()
    if ended:
        problems.append(f"the run was ended: {ended}. What was checked before that counts")
    for question in names:
        if question not in graded:
            possible = points_of(tests_folder, question)
            graded[question] = {"points": 0.0, "possible": possible, "remarks": [f"not reached: {ended}"]}
    return {name: graded[name] for name in names}, "; ".join(problems), printed


def points_of(tests_folder, question):
    """How many points the tests of a question are worth."""
    from otter.nbmeta_config import NBMetadataConfig
    from otter.test_files import create_test_file

    test = create_test_file(str(Path(tests_folder, f"{question}.py")), NBMetadataConfig())
    return float(sum(case.points for case in test.test_cases))


def grade_one(student, path, archive, limits, confined=True):
    """Grade one submission from scratch; never raises for what a submission does."""
    grade = Grade(student, Path(path).name)
    with tempfile.TemporaryDirectory(prefix="grading-", ignore_cleanup_errors=True) as scratch:
        tests = unpack_tests(archive, Path(scratch, "tests"))
        try:
            cells = code_cells(content(Path(path)))
        except NotANotebook as error:
            return unanswered(student, path, archive, "unreadable", str(error))
        folder = session.new_folder(Path(scratch, "work", student_folder(student)))
        grade.questions, grade.message, grade.printed = grade_cells(cells, tests, folder, limits, confined)
        shutil.rmtree(folder, ignore_errors=True)
    return grade


def unanswered(student, path, archive, status, message):
    """The `Grade` of a submission that could not be graded: no points, and why."""
    with tempfile.TemporaryDirectory(prefix="grading-") as scratch:
        tests = unpack_tests(archive, Path(scratch, "tests"))
        possible = {file.stem: points_of(tests, file.stem) for file in sorted(tests.glob("*.py"))}
    questions = {name: {"points": 0.0, "possible": points, "remarks": []} for name, points in possible.items()}
    return Grade(student, Path(path).name, status, message, questions)


def student_folder(student):
    return hashlib.sha256(student.encode()).hexdigest()[:12]


def unpack_tests(archive, folder):
    """Write the tests of an autograder zip into a folder that only its owner can read."""
    folder.mkdir(mode=0o700)
    with zipfile.ZipFile(archive) as files:
        for name in files.namelist():
            if name.startswith("tests/") and name.endswith(".py"):
                (folder / Path(name).name).write_bytes(files.read(name))
    return folder


# ------------------------------------------------------------------------------------------------------- a whole class


def part_file(parts, student, path, archive, limits):
    """Where the result of a submission is kept: the name changes with its content, the tests and the limits."""
    digest = hashlib.sha256(json.dumps([VERSION, asdict(limits)]).encode())
    digest.update(Path(archive).read_bytes())
    digest.update(path.read_bytes() if path.is_file() else b"")
    return parts / f"{student_folder(student)}-{digest.hexdigest()[:16]}.json"


def grade_class(found, archive, out, limits, jobs, confined=True):
    """Grade all submissions {student: path} that are not graded yet; return the `Grade`s in order of students."""
    parts = out.with_suffix("").with_name(f"{out.stem}.parts")
    parts.mkdir(parents=True, exist_ok=True)
    files = {student: part_file(parts, student, path, archive, limits) for student, path in found.items()}
    missing = [student for student in found if not files[student].exists()]
    if len(missing) < len(found):
        print(f"{len(found) - len(missing)} of {len(found)} submissions are graded already", flush=True)
    progress = bar(total=len(missing), label="grading")

    def keep(student, grade):
        text = json.dumps(asdict(grade), indent=1, ensure_ascii=False)
        sources.write_if_changed(files[student], text)
        progress.update()

    def run(students, jobs):
        """Grade some; the students that are left if a grading process was ended from outside."""
        context = multiprocessing.get_context("spawn")
        left = dict.fromkeys(students)
        with concurrent.futures.ProcessPoolExecutor(jobs, context, session.become_grader) as pool:
            tasks = {pool.submit(grade_one, s, str(found[s]), str(archive), limits, confined): s for s in students}
            for task in concurrent.futures.as_completed(tasks):
                if not isinstance(task.exception(), BrokenProcessPool):
                    keep(tasks[task], task.result())
                    del left[tasks[task]]
        return list(left)

    while missing:
        # They are started in order, so that who ended the process is among the first of those that are left.
        missing = run(missing, jobs)
        for suspect in missing[:jobs]:
            if run([suspect], 1):
                keep(suspect, unanswered(suspect, found[suspect], archive, "failed", "it ended the grading process"))
        missing = missing[jobs:]
    progress.close()
    return [Grade(**json.loads(files[student].read_text("utf8"))) for student in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", required=True, metavar="NAME", help="the problem set")
    parser.add_argument(
        "--submissions", required=True, type=Path, metavar="FOLDER", help="one file or folder a student"
    )
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="the table (default: %(default)s)")
    parser.add_argument("--key", default=masters.DEFAULT_KEY, help="the course key (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=execute.cores(), help="at a time (default: one a core)")
    parser.add_argument("--minutes", type=float, default=10, help="for one submission (default: %(default)s)")
    parser.add_argument(
        "--memory", type=float, default=4, metavar="GB", help="for one submission (default: %(default)s)"
    )
    parser.add_argument("--unprotected", action="store_true", help="grade even where nothing confines submissions")
    options = parser.parse_args()
    if options.jobs < 1 or options.minutes <= 0 or options.memory <= 0:
        parser.error("--jobs, --minutes and --memory must be positive")
    (name,) = masters.select(options.set)
    protected, sentence = session.protection()
    print(sentence, flush=True)
    if not protected and not options.unprotected:
        raise SystemExit("Grade in a container (see the page for instructors), or say --unprotected (UNPROTECTED=1).")
    found = submissions(options.submissions)
    folder = build.folder_of(build.checked_key(options.key), name)
    if not (folder / "autograder.zip").exists():
        print(f"Making {name}, edition {options.key}, first", flush=True)
        build.build(name, options.key)
    session.warm_up()
    seconds = options.minutes * 60
    limits = session.Limits(seconds, max(seconds / 3, min(seconds, 60)), int(options.memory * 2**30))
    grades = grade_class(found, folder / "autograder.zip", options.out, limits, options.jobs, protected)
    problems = json.loads((folder / "set.json").read_text("utf8"))
    print(report.write(grades, problems, options.out))


if __name__ == "__main__":
    sys.exit(main())
