"""Execute the chapters of the book into a cache that Sphinx then reads, and collect their claims.

    python -m tools.execute                        every chapter that is not cached yet
    python -m tools.execute information_exponent   only that one

The cache lives in _build/execution/<key>/, where <key> covers the library, the pins and the LOWDIM_* settings; inside,
jupyter-cache looks a notebook up by its code cells. So prose is free, a change in one chapter's code runs that chapter,
and a change in the library runs all of them.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from tools import sources

CACHES = sources.BUILD / "execution"
LEDGER = sources.BUILD / "ledger.json"
KEPT_CACHES = 4
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
ENCRYPTED = Config({"KernelManager": {"transport_encryption": "auto"}})  # else each kernel warns about eavesdroppers
WARNING = re.compile(r"\b[A-Z]\w*Warning: ")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Run:
    """One execution of one chapter."""

    source: sources.Source
    notebook: nbformat.NotebookNode
    settings: dict = field(default_factory=dict)
    label: str = ""
    done: int = 0
    seconds: float = 0.0
    error: str | None = None

    @property
    def name(self):
        return f"{self.source.name} {self.label}".strip()

    @property
    def cells(self):
        return sources.code_cells(self.notebook)

    def kernel_environment(self, threads):
        """Bars and chatter off, and no more threads than this kernel's share of the cores."""
        share = dict.fromkeys(THREAD_VARIABLES, str(threads))
        return {**os.environ, **share, "LOWDIM_PROGRESS": "0", "LOWDIM_BUILD": "1", **self.settings}


class Progress:
    """Where each running chapter stands: one live line on a terminal, a line at start and end elsewhere."""

    def __init__(self):
        self.live = sys.stdout.isatty()
        self.running = []
        self.began = time.monotonic()

    def say(self, text):
        if self.live:
            print("\r\033[K", end="")
        print(text, flush=True)

    def start(self, run):
        self.running.append(run)
        if not self.live:
            self.say(f"  {run.name}: running {len(run.cells)} cells")
        self.draw()

    def finish(self, run):
        self.running.remove(run)
        verdict = "FAILED" if run.error else "done"
        self.say(f"  {run.name}: {verdict}, {run.done} of {len(run.cells)} cells, {run.seconds:.1f} s")
        self.draw()

    def draw(self):
        if self.live and self.running:
            state = ", ".join(
                f"{run.name} cell {min(run.done + 1, len(run.cells))}/{len(run.cells)}" for run in self.running
            )
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{f'  {time.monotonic() - self.began:4.0f} s  {state}'[:width]}", end="", flush=True)

    async def tick(self):
        while True:
            self.draw()
            await asyncio.sleep(1)


def output_text(output):
    """All plain text that one output shows."""
    return output.get("text", "") if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")


def noise(run):
    """What is wrong if a cell wrote to stderr or shows a Python warning (a reader must never meet one), else None."""
    for number, cell in enumerate(run.cells, start=1):
        for output in cell.outputs:
            if output.get("name") == "stderr" or WARNING.search(output_text(output)):
                return (
                    f"code cell {number} of {sources.shown(run.source.path)} prints a warning:\n"
                    f"{indent(cell.source)}\nIt printed\n{indent(output_text(output))}"
                )
    return None


def indent(text):
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


async def execute_run(run, threads, progress):
    """Execute one chapter in place; a failure is recorded in `run.error`."""

    def advance(cell, cell_index, execute_reply):
        run.done = sum(earlier.cell_type == "code" for earlier in run.notebook.cells[: cell_index + 1])
        progress.draw()

    # No timing records: jupyter-cache hashes cell metadata, which must stay as written in the source.
    client = NotebookClient(run.notebook, timeout=None, record_timing=False, on_cell_executed=advance, config=ENCRYPTED)
    client.resources = {"metadata": {"path": str(run.source.path.parent)}}
    progress.start(run)
    began = time.monotonic()
    try:
        await client.async_execute(env=run.kernel_environment(threads))
    except CellExecutionError as error:
        cell = run.cells[run.done - 1]
        run.error = (
            f"code cell {run.done} of {sources.shown(run.source.path)} fails:\n{indent(cell.source)}\n"
            f"{indent(ANSI.sub('', traceback_of(cell) or str(error)))}"
        )
    except Exception as error:  # a dead kernel, a missing kernelspec: name the chapter, go on with the others
        run.error = f"{sources.shown(run.source.path)}, after code cell {run.done}: {type(error).__name__}: {error}"
    run.seconds = time.monotonic() - began
    progress.finish(run)


def traceback_of(cell):
    """The traceback that a failed cell shows."""
    return "\n".join(line for output in cell.outputs for line in output.get("traceback", []))


async def execute_runs(runs, jobs, threads, after):
    """Execute `runs`, `jobs` at a time with `threads` threads each; call `after(run, say)` when one ends."""
    progress = Progress()
    places = asyncio.Semaphore(jobs)

    async def one(run):
        async with places:
            await execute_run(run, threads, progress)
            after(run, progress.say)

    ticker = asyncio.create_task(progress.tick())
    try:
        await asyncio.gather(*(one(run) for run in runs))
    finally:
        ticker.cancel()


def cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_cache():
    """The cache of the current execution key, marked as the newest; the oldest ones are dropped."""
    folder = CACHES / sources.execution_key()
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    newest_first = sorted(CACHES.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in newest_first[KEPT_CACHES:]:
        shutil.rmtree(old)
    return get_cache(folder), folder


def cached(cache, notebook):
    """The notebook with its outputs from the cache, or None."""
    try:
        return cache.merge_match_into_notebook(notebook)[1]
    except KeyError:
        return None


def ledger_rows(cache, selected):
    """The claims of the selected chapters, with where each stands; a missing or failed one ends the program."""
    rows, problems = [], []
    for source in selected:
        notebook = cached(cache, source.read())
        place = {"docname": source.docname, "title": sources.title(notebook)}
        rows += [{**place, **row} for row in sources.claim_rows(notebook)]
        problems += [f"{sources.shown(source.path)}: {problem}" for problem in sources.claim_problems(notebook)]
    if problems:
        raise SystemExit("\n".join(["The ledger of claims is not whole:", *problems]))
    return rows


def execute(names=(), ledger=LEDGER):
    """Execute what is not cached, write the ledger, and return the cache folder; ends the program on a failure."""
    selected = sources.select(names)
    cache, folder = open_cache()
    notebooks = {source: source.read() for source in selected}
    runs = [Run(source, notebook) for source, notebook in notebooks.items() if cached(cache, notebook) is None]
    waiting = {run.source for run in runs}
    for source in selected:
        if source not in waiting:
            print(f"  {source.name}: cached", flush=True)

    def store(run, say):
        if run.error is None and (problem := noise(run)):
            run.error = problem
            say(f"  {run.name}: a cell prints a warning, so it does not count")
        if run.error is None:
            bundle = CacheBundleIn(run.notebook, str(run.source.path), data={"execution_seconds": run.seconds})
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)

    if runs:
        jobs = min(cores(), len(runs))
        asyncio.run(execute_runs(runs, jobs, max(1, cores() // jobs), after=store))
    failed = [run for run in runs if run.error]
    for run in failed:
        print(f"\n{run.error}", file=sys.stderr)
    if failed:
        raise SystemExit(f"\n{len(failed)} of {len(selected)} chapters failed; nothing was published.")
    rows = ledger_rows(cache, selected)
    sources.write_if_changed(ledger, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CHAPTER", help="only these chapters (default: all)")
    parser.add_argument("--ledger", type=Path, help="where to write the claims (default: _build/ledger.json)")
    options = parser.parse_args()
    if options.names and not options.ledger:
        parser.error("with named chapters say where their claims go: --ledger FILE")
    execute(options.names, options.ledger or LEDGER)


if __name__ == "__main__":
    main()
