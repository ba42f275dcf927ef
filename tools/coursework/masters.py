"""The masters of the problem sets, book/coursework/*.md, and what a course key makes of them.

A master is a MyST notebook with the raw-cell markers of Otter Assign and four kinds of tagged code cells of our own:

instance  run with `draw` (see `Draw`); every name that it assigns replaces <<name>> in all other cells
rubric    a Markdown cell (tag in its metadata) for who grades a question by hand
picture   draws what the student's picture should look like; its first line is `# ALT: what to see`
wrong     a plausible wrong answer in place of the question's solution: `# WRONG: q1 -3: forgets the square root`
"""

import hashlib
import random
import re
from dataclasses import dataclass

import jinja2
import jupytext
import nbformat
import yaml

from tools import sources

FOLDER = sources.ROOT / "book" / "coursework"
DEFAULT_KEY = "lowdim"
KINDS = ("derive", "experiment", "explain")
# Otter knows these keys of a question; the others are ours.
OTTER_KEYS = ("name", "manual", "points", "all_or_nothing")
PLACEHOLDERS = jinja2.Environment(
    variable_start_string="<<",
    variable_end_string=">>",
    block_start_string="<<%",
    block_end_string="%>>",
    comment_start_string="<<#",
    comment_end_string="#>>",
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
)
WRONG = re.compile(r"# WRONG: ((?:q\d+ -[\d.]+(?:, )?)+): (.+)")
MARKER = re.compile(r"# (BEGIN|END) (QUESTION|SOLUTION|PROMPT|TESTS)\b")


class Draw:
    """The random choices of one problem set under one course key: the same key, the same choices."""

    def __init__(self, key, name):
        self._random = random.Random(hashlib.sha256(f"{key}/{name}".encode()).digest())

    def choice(self, options):
        """One of a list."""
        return self._random.choice(list(options))

    def whole(self, low, high):
        """A whole number from low to high, both included."""
        return self._random.randint(low, high)

    def number(self, low, high, digits=2):
        """A number between low and high, rounded to `digits` decimals."""
        return round(self._random.uniform(low, high), digits)

    def seed(self):
        """A seed for a random number generator."""
        return self._random.randrange(1, 10**6)


@dataclass(frozen=True)
class Question:
    """One question of a set."""

    name: str
    title: str
    kind: str
    points: float
    manual: bool
    rubric: str


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer: the code that replaces the question's solution, and what it must lose."""

    question: str
    loses: dict
    reason: str
    source: str


@dataclass(frozen=True)
class ProblemSet:
    """A rendered master: the notebook that Otter Assign reads (without our own cells), and what those cells said."""

    name: str
    key: str
    title: str
    hours: str
    instance: dict
    questions: tuple
    wrong: tuple
    notebook: nbformat.NotebookNode

    @property
    def points(self):
        return sum(question.points for question in self.questions)


def names():
    """The names of all problem sets, in the order of the book's chapters."""
    order = [source.name for source in sources.chapters()]
    found = {path.stem for path in FOLDER.glob("*.md")}
    return sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))


def select(name=None):
    """All names, or the one asked for; an unknown name ends the program with the list of known ones."""
    if name and name not in names():
        raise SystemExit(f"There is no problem set named {name!r}. The sets are: {', '.join(names())}.")
    return [name] if name else names()


def read(name, key=DEFAULT_KEY):
    """The `ProblemSet` that a course key makes of the master `name`; a fault of the master ends the program."""
    try:
        return _read(name, key)
    except (jinja2.TemplateError, ValueError) as error:
        raise SystemExit(f"book/coursework/{name}.md: {error}") from error


def _read(name, key):
    path = FOLDER / f"{name}.md"
    front = sources.front_matter(path)
    notebook = jupytext.read(path, fmt="md:myst")
    instance = {}
    for cell in notebook.cells:
        if "instance" in tags(cell):
            exec(compile(cell.source, f"{name}.md, instance", "exec"), namespace := {"draw": Draw(key, name)})
            instance = {k: v for k, v in namespace.items() if not k.startswith("_") and k != "draw"}
    questions, wrong, cells, current, rubric = [], [], [], None, []
    for cell in notebook.cells:
        cell.source = PLACEHOLDERS.from_string(cell.source).render(instance)
        marker = MARKER.match(cell.source) if cell.cell_type == "raw" else None
        if marker and marker.group(2) == "QUESTION":
            if marker.group(1) == "BEGIN":
                current, rubric, heading = _question_settings(cell), [], ""
                kept = {k: v for k, v in current.items() if k in OTTER_KEYS}
                cell.source = f"# BEGIN QUESTION\n{yaml.safe_dump(kept, sort_keys=False)}".rstrip()
            else:
                questions.append(_question(current, heading, rubric))
                current = None
        elif current is not None and cell.cell_type == "markdown" and not heading:
            heading = cell.source.splitlines()[0].lstrip("# ").strip()
        if "instance" in tags(cell):
            continue
        if "rubric" in tags(cell):
            rubric.append(cell.source)
        elif "wrong" in tags(cell):
            wrong.append(_wrong(cell, current))
        else:
            cells.append(cell)
    notebook.cells = cells
    _check(questions, wrong)
    return ProblemSet(
        name,
        key,
        sources.title(notebook),
        str(front.get("hours", "")),
        instance,
        tuple(questions),
        tuple(wrong),
        notebook,
    )


def tags(cell):
    return cell.metadata.get("tags", [])


def _question_settings(cell):
    settings = yaml.safe_load(cell.source.split("\n", 1)[1])
    missing = {"name", "points", "kind"} - set(settings)
    if missing:
        raise ValueError(f"a question lacks {', '.join(sorted(missing))}: {cell.source!r}")
    if settings["kind"] not in KINDS:
        raise ValueError(f"question {settings['name']} has kind {settings['kind']!r}; allowed: {', '.join(KINDS)}")
    return settings


def _question(settings, heading, rubric):
    manual = bool(settings.get("manual"))
    if manual and not rubric:
        raise ValueError(f"question {settings['name']} is graded by hand but has no rubric")
    text = "\n\n".join(rubric)
    return Question(settings["name"], heading, settings["kind"], settings["points"], manual, text)


def _wrong(cell, current):
    match = WRONG.match(cell.source)
    if not match or current is None:
        raise ValueError(
            f"a wrong answer must stand inside its question and begin `# WRONG: q1 -2: why`: {cell.source!r}"
        )
    loses = dict(part.split(" -") for part in match.group(1).split(", "))
    loses = {question: float(points) for question, points in loses.items()}
    return Wrong(current["name"], loses, match.group(2), cell.source)


def _check(questions, wrong):
    if not 3 <= len(questions) <= 5:
        raise ValueError(f"it has {len(questions)} questions; a set has 3 to 5")
    absent = set(KINDS) - {question.kind for question in questions}
    if absent:
        raise ValueError(f"no question is of the kind {', '.join(sorted(absent))}")
    known = {question.name for question in questions}
    for answer in wrong:
        if unknown := set(answer.loses) - known:
            raise ValueError(f"a wrong answer loses points of {', '.join(sorted(unknown))}, which does not exist")
