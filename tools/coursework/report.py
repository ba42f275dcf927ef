"""What grades are written as: a table, a letter to each student, a summary of the class, tables for other systems."""

import base64
import csv
import html
import io
from pathlib import Path

import matplotlib.figure
import numpy as np

from tools.coursework.build import page


def write(grades, problems, out):
    """Write everything beside `out`; return a sentence for who started the grading.

    Points that somebody has put into the columns of an earlier table for questions graded by hand are kept, and count
    in the tables for other systems.
    """
    out = Path(out)
    manual = {f"{q['name']} by hand (of {q['points']:g})": q["points"] for q in problems["questions"] if q["manual"]}
    hand = points_by_hand(out, manual)
    write_table(grades, manual, hand, out)
    letters = out.with_suffix("").with_name(f"{out.stem}.feedback")
    letters.mkdir(parents=True, exist_ok=True)
    for grade in grades:
        (letters / f"{grade.student}.md").write_text(letter(grade, problems), "utf8")
    summary = out.with_suffix("").with_name(f"{out.stem}.summary.html")
    summary.write_text(class_page(grades, problems), "utf8")
    exports = write_exports(grades, problems, hand, out)
    unreadable = sum(grade.status != "graded" for grade in grades)
    note = f", {unreadable} of them unreadable" if unreadable else ""
    names = ", ".join(path.name for path in exports)
    none = dict.fromkeys(manual, "")
    empty = sum(text == "" for grade in grades for text in hand.get(plain(grade.student), none).values())
    rest = f" {empty} answers are to be graded by hand: fill {out.name} in and start again." if empty else ""
    return (
        f"{len(grades)} submissions{note}. Table: {out}; feedback: {letters.name}/; class: {summary.name}; "
        f"for upload: {names}.{rest}"
    )


def points_by_hand(out, manual):
    """{student: {column: text}} of an earlier table; a number out of range ends the program."""
    if not out.exists():
        return {}
    found = {}
    for row in csv.DictReader(out.read_text("utf8").splitlines()):
        texts = {column: (row.get(column) or "").strip() for column in manual}
        for column, text in texts.items():
            if text and not 0 <= number(text) <= manual[column]:
                raise SystemExit(f"{out}: “{column}” of {row.get('student')} is {text!r}; it must be a number in range")
        found[row.get("student", "")] = texts
    return found


def number(text):
    """The number that a text says, with a decimal point or comma; NaN if it says none."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return float("nan")


def write_table(grades, manual, hand, out):
    """One row a student; points of questions graded by hand are left empty for the grader."""
    questions = sorted({name for grade in grades for name in grade.questions})
    head = ["student", "file", "status", *questions, "autograded", "possible", *manual, "message"]
    with out.open("w", newline="", encoding="utf8") as file:
        table = csv.writer(file)
        table.writerow(head)
        for grade in grades:
            entries = [grade.questions.get(name, {"points": 0, "possible": 0}) for name in questions]
            points = [f"{entry['points']:g}" for entry in entries]
            possible = sum(entry["possible"] for entry in entries)
            row = [plain(grade.student), plain(grade.file), grade.status, *points, f"{grade.points:g}", f"{possible:g}"]
            kept = hand.get(plain(grade.student), dict.fromkeys(manual, ""))
            table.writerow([*row, *[kept[column] for column in manual], plain(grade.message)])


def plain(text):
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def letter(grade, problems):
    """What a student is told."""
    lines = [f"# {problems['title']}", "", f"Submission: `{grade.file}`", ""]
    if grade.message:
        lines += [f"**While it ran:** {grade.message}.", ""]
    for question in problems["questions"]:
        lines += [f"## {question['title']}", ""]
        if question["manual"]:
            lines += [f"Graded by hand, {question['points']:g} points.", ""]
            continue
        entry = grade.questions.get(question["name"], {"points": 0, "possible": question["points"], "remarks": []})
        lines += [f"{entry['points']:g} of {entry['possible']:g} points.", ""]
        lines += [f"- {remark}" for remark in entry["remarks"]] + ([""] if entry["remarks"] else [])
    return "\n".join(lines)


def class_page(grades, problems):
    """The summary: a histogram, and how each question went."""
    totals = np.array([grade.points for grade in grades])
    possible = sum(q["points"] for q in problems["questions"] if not q["manual"])
    rates = {}
    for question in problems["questions"]:
        if not question["manual"]:
            shares = [g.questions.get(question["name"], {"points": 0})["points"] / question["points"] for g in grades]
            rates[question["name"]] = (question["title"], float(np.mean(shares)), float(np.mean(np.array(shares) >= 1)))
    hardest = min(rates, key=lambda name: rates[name][1])
    rows = "\n".join(
        f"<tr><th scope='row'>{html.escape(title)}</th><td>{mean:.0%}</td><td>{full:.0%}</td></tr>"
        for title, mean, full in rates.values()
    )
    bad = [f"<li>{html.escape(g.student)}: {html.escape(g.message)}</li>" for g in grades if g.message]
    median, edition = np.median(totals), html.escape(problems["key"])
    title, mean, _ = rates[hardest]
    body = (
        f"<p>{len(grades)} submissions, edition <code>{edition}</code>. Median {median:g} of {possible:g} autograded "
        f"points. Hardest question: {html.escape(title)}, {mean:.0%} of its points on average.</p>\n"
        f"<img alt='Histogram of autograded points: median {median:g}, lowest {totals.min():g}, highest "
        f"{totals.max():g}.' src='data:image/png;base64,{histogram(totals, possible)}'>\n"
        "<table><thead><tr><th scope='col'>Question</th><th scope='col'>Points earned on average</th>"
        f"<th scope='col'>Full points</th></tr></thead><tbody>{rows}</tbody></table>\n"
        + (f"<h2>Runs with trouble</h2><ul>{''.join(bad)}</ul>" if bad else "")
    )
    return page(f"The class: {problems['title'].removeprefix('Problem set: ')}", body)


def histogram(totals, possible):
    """A PNG, as base64."""
    figure = matplotlib.figure.Figure(figsize=(6.4, 3), layout="constrained")
    axes = figure.subplots()
    edges = np.linspace(0, possible, min(21, int(possible) + 2))
    axes.hist(totals, bins=edges, color="#4477aa", edgecolor="white")
    axes.axvline(np.median(totals), color="#cc3311", linestyle="--")
    side = (-4, "right") if np.median(totals) > possible / 2 else (4, "left")
    place = (np.median(totals), axes.get_ylim()[1] * 0.95)
    axes.annotate("median", place, xytext=(side[0], 0), textcoords="offset points", ha=side[1])
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="autograded points", ylabel="submissions", xlim=(0, possible))
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def write_exports(grades, problems, hand, out):
    """Tables in the form that Canvas, Moodle and Gradescope import; the student column is the name of the file."""
    title = problems["title"].removeprefix("Problem set: ").capitalize()
    possible = f"{sum(q['points'] for q in problems['questions']):g}"

    def total(grade):
        by_hand = [number(text) for text in hand.get(plain(grade.student), {}).values() if text]
        return f"{grade.points + sum(by_hand):g}"

    canvas_head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", title]
    names = [plain(grade.student) for grade in grades]
    rows = list(zip(names, map(total, grades), [plain(grade.message) for grade in grades], strict=True))
    tables = {
        "canvas": [
            canvas_head,
            ["Points Possible", "", "", "", "", possible],
            *[[name, "", name, name, "", points] for name, points, _ in rows],
        ],
        "moodle": [["Username", title, "Feedback comments"], *rows],
        "gradescope": [
            ["SID", "Total Score", "Max Points", "Status"],
            *[[name, points, possible, "Graded"] for name, points, _ in rows],
        ],
    }
    written = []
    for name, table in tables.items():
        path = out.with_suffix("").with_name(f"{out.stem}.{name}.csv")
        with path.open("w", newline="", encoding="utf8") as file:
            csv.writer(file).writerows(table)
        written.append(path)
    return written
