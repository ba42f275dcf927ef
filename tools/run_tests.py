"""Run every test of the project, one line a group; the last line counts them all.

    python -m tools.run_tests [GROUP ...]

Groups, in order: ruff-check and ruff-format (style), unit (library, project, chapter sources), notebooks (every chapter
is executed again, as a plain notebook, by nbval), site (the built pages in a real browser), colab (two notebooks on a
machine like Colab's), coursework (hostile submissions, one problem set proved). The groups colab-all and
coursework-all, which run when they are named, take all notebooks and all problem sets.
The full output of each group is kept in _build/test-logs/ and shown when the group fails. A group that finds no test
fails too.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

from tools import ensure_browser, execute, sources
from tools import notebooks as exporter

LOGS = sources.BUILD / "test-logs"
NOTEBOOKS = sources.BUILD / "nbval"
CELL_TIMEOUT = 1800  # seconds: a cell that takes longer hangs


@dataclass(frozen=True)
class Outcome:
    """What one group came to."""

    passed: int
    failed: int
    output: str
    skipped: int = 0


def call(command, **environment):
    """Run a command in the repository; return its exit status and all that it wrote."""
    done = subprocess.run(
        command,
        cwd=sources.ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def program(*command):
    """A group that is one program: it passes or fails as a whole."""
    status, output = call([sys.executable, "-m", *command])
    return Outcome(passed=int(status == 0), failed=int(status != 0), output=output)


def pytest(name, *arguments, **environment):
    """A group of pytest; counts come from its JUnit report, and a bad exit status is at least one failure."""
    junit = LOGS / f"{name}.xml"
    junit.unlink(missing_ok=True)
    status, output = call([sys.executable, "-m", "pytest", f"--junitxml={junit}", *arguments], **environment)
    if not junit.exists():
        return Outcome(0, 1, output)
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    total, failures, errors, skipped = (int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped"))
    failed = failures + errors
    return Outcome(total - failed - skipped, max(failed, int(status != 0)), output, skipped)


def unit():
    """Tests without the site. Some try interactive figures in a browser: it is installed before workers start."""
    folders = ("tests/lib", "tests/project", "tests/chapters")
    threads = dict.fromkeys(execute.THREAD_VARIABLES, "1")  # two workers with two threads each would collide
    return pytest("unit", "-n", "2", *folders, **threads, LOWDIM_CHROMIUM=ensure_browser.ensure())


def notebooks():
    """Execute the chapters as a reader would meet them outside the book: as notebooks, in another folder."""
    count = len(exporter.write(NOTEBOOKS))
    jobs = min(execute.cores(), count)
    threads = str(max(1, execute.cores() // jobs))
    return pytest(
        "notebooks",
        "--nbval-lax",
        f"--nbval-cell-timeout={CELL_TIMEOUT}",
        f"-n{jobs}",
        "--dist=loadscope",  # the cells of one notebook must stay together
        str(NOTEBOOKS),
        **dict.fromkeys(execute.THREAD_VARIABLES, threads),
        LOWDIM_PROGRESS="0",
    )


def site():
    """The pages as built from the present sources: building is quick when nothing has changed."""
    status, output = call([sys.executable, "-m", "tools.build_book"])
    if status:
        return Outcome(0, 1, f"The book cannot be built, so its pages were not tested.\n{output}")
    # Pages go to the workers whole (loadgroup): the tests of one page share its visit.
    return pytest("site", "-n2", "--dist=loadgroup", "tests/site", LOWDIM_CHROMIUM=ensure_browser.ensure())


def colab(count="2"):
    """Execute notebooks on an imitation of Colab's machine: `count` of them, or "all"."""
    began = str(time.time())
    status, output = call([sys.executable, "-m", "tools.colab_imitation"])
    if status:
        return Outcome(0, 1, output)
    threads = str(max(1, execute.cores() // 2))
    return pytest(
        f"colab-{count}",
        "-n2",
        "--dist=loadgroup",  # the tests of one notebook share its execution
        "--durations=0",
        "tests/colab",
        **dict.fromkeys(execute.THREAD_VARIABLES, threads),
        LOWDIM_COLAB_PREPARED="1",
        LOWDIM_COLAB_NOTEBOOKS=count,
        LOWDIM_COLAB_BEGAN=began,
    )


def coursework(count="1"):
    """Grade hostile submissions, and prove problem sets: `count` of them, or "all" and nothing else."""
    files = ["tests/coursework/test_sets.py"] if count == "all" else ["tests/coursework"]
    return pytest(f"coursework-{count}", "--durations=0", *files, LOWDIM_COURSEWORK_SETS=count, LOWDIM_PROGRESS="0")


GROUPS = {
    "ruff-check": lambda: program("ruff", "check", "."),
    "ruff-format": lambda: program("ruff", "format", "--check", "."),
    "unit": unit,
    "notebooks": notebooks,
    "site": site,
    "colab": colab,
    "coursework": coursework,
}
# Groups that run only when they are named.
LONG_GROUPS = {"colab-all": lambda: colab("all"), "coursework-all": lambda: coursework("all")}


def run_group(name):
    """Run one group, keep its output, print its line."""
    if sys.stdout.isatty():
        print(f"{name:12} ...", end="\r", flush=True)
    began = time.monotonic()
    outcome = (GROUPS | LONG_GROUPS)[name]()
    seconds = time.monotonic() - began
    (LOGS / f"{name}.log").write_text(outcome.output, "utf8")
    if outcome.passed + outcome.failed == 0:
        outcome = Outcome(0, 1, outcome.output + "\nNo test was found.\n", outcome.skipped)
    skipped = f", {outcome.skipped} skipped" if outcome.skipped else ""
    print(f"{name:12} {outcome.passed} passed, {outcome.failed} failed{skipped}, {seconds:.1f} s", flush=True)
    if outcome.failed:
        print(f"\n{outcome.output.rstrip()}\n(also in {sources.shown(LOGS / name)}.log)\n", flush=True)
    return outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*GROUPS, *LONG_GROUPS]
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"only these, of {', '.join(known)}")
    options = parser.parse_args()
    unknown = sorted(set(options.groups) - set(known))
    if unknown:
        parser.error(f"there is no group {', '.join(unknown)}; the groups are {', '.join(known)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in known if name in (options.groups or GROUPS)]
    outcomes = {name: run_group(name) for name in chosen}
    bad = [name for name, outcome in outcomes.items() if outcome.failed]
    print(f"\nFailing groups: {', '.join(bad)}" if bad else "\nAll groups pass.")
    passed = sum(outcome.passed for outcome in outcomes.values())
    failed = sum(outcome.failed for outcome in outcomes.values())
    print(f"{passed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
