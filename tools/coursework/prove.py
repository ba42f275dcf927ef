"""Prove a problem set: the solution gets all points, the blank notebook none, a wrong answer loses what it should.

    python -m tools.coursework.prove [--set NAME] [--key KEY]

Everything is graded as real submissions are.
"""

import argparse
import json
from pathlib import Path

import nbformat

from tools import execute, sources
from tools.coursework import build, grade, masters, session

LIMITS = session.Limits(seconds=300, step=120)


def cases(problems, folder):
    """{name: (notebook, points that each question must get)} of a built set."""
    solution = nbformat.read(folder / f"{problems.name}-solution.ipynb", 4)
    blank = nbformat.read(folder / "student" / f"{problems.name}.ipynb", 4)
    full = {q.name: float(q.points) for q in problems.questions if not q.manual}
    found = {"solution": (solution, full), "blank": (blank, dict.fromkeys(full, 0.0))}
    for number, wrong in enumerate(problems.wrong, start=1):
        expected = {name: points - wrong.loses.get(name, 0.0) for name, points in full.items()}
        found[f"wrong-{number}-{wrong.question}"] = (replaced(solution, wrong), expected)
    return found


def replaced(solution, wrong):
    """The solution with the answer to one question replaced by a wrong one: a cell right before its check."""
    notebook = nbformat.from_dict(solution)
    place = next(
        i
        for i, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and build.checked_question(cell.source) == wrong.question
    )
    notebook.cells = list(notebook.cells)
    answers = [i for i in range(place) if "otter_assign_solution_cell" in masters.tags(notebook.cells[i])]
    cell = nbformat.v4.new_code_cell(wrong.source)
    notebook.cells[answers[-1]] = cell
    return notebook


def prove(name, key, folder, out=build.OUT, only=None):
    """Grade all cases of a set side by side; return the lines that say what is wrong (none if it is proved)."""
    problems = masters.read(name, key)
    built = build.folder_of(key, name, out)
    chosen = {case: value for case, value in cases(problems, built).items() if only is None or case in only}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for case, (notebook, _) in chosen.items():
        nbformat.write(notebook, folder / f"{case}.ipynb")
    found = {case: folder / f"{case}.ipynb" for case in chosen}
    grades = grade.grade_class(found, built / "autograder.zip", folder / "grades.csv", LIMITS, execute.cores())
    faults = []
    for result in grades:
        points = {question: entry["points"] for question, entry in result.questions.items()}
        expected = chosen[result.student][1]
        if points != expected:
            remarks = json.dumps({q: e["remarks"] for q, e in result.questions.items()}, ensure_ascii=False, indent=1)
            faults.append(f"{name}, {result.student}: got {points}, should get {expected}. {result.message}\n{remarks}")
        if result.student == "solution" and result.message:
            faults.append(f"{name}, solution: {result.message}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", metavar="NAME", help="only this set (default: all)")
    parser.add_argument("--key", default=masters.DEFAULT_KEY, help="the course key (default: %(default)s)")
    options = parser.parse_args()
    session.warm_up()
    faults = []
    for name in masters.select(options.set):
        build.build(name, build.checked_key(options.key))
        found = prove(name, options.key, sources.BUILD / "coursework" / "proof" / options.key / name)
        print(f"{name}: {'; '.join(found) if found else 'proved'}", flush=True)
        faults += found
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
