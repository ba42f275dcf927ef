"""Build the site: execute what changed, measure the benchmarks if the library changed, then run Jupyter Book.

    python -m tools.build_book                               the whole book, into _build/html
    python -m tools.build_book --chapter information_exponent  that chapter alone, into _build/chapter/<name>/html

Sphinx itself executes nothing: it finds every notebook in the cache that tools.execute filled.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tools import execute, sources

HTML = sources.BUILD / "html"
BENCHMARKS = sources.BUILD / "bench" / "results.json"


def measured_library():
    """The library version that the stored benchmark results belong to, or None."""
    if not BENCHMARKS.exists():
        return None
    return json.loads(BENCHMARKS.read_text("utf8")).get("library")


def run_benchmarks():
    """Measure the benchmarks unless the stored results are of this very library."""
    wanted = sources.library_hash()
    if measured_library() == wanted:
        print("Benchmarks: cached")
        return
    print("Benchmarks: measuring", flush=True)
    command = [sys.executable, "-m", "benchmarks", "--out", str(BENCHMARKS.parent)]
    if subprocess.run(command, cwd=sources.ROOT).returncode:
        raise SystemExit("The benchmarks failed.")
    if measured_library() != wanted:
        raise SystemExit(f"{sources.shown(BENCHMARKS)} must name the library it measured: expected {wanted!r}.")


def jupyter_book(output, cache, ledger, toc=sources.TOC, strict=True):
    """Run `jupyter-book build`; the pages appear in <output>/_build/html. Ends the program on a failure."""
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(sources.ROOT), "-n", "-q"]
    command += ["--path-output", str(output), "--toc", str(toc)]
    if strict:
        command += ["-W", "--keep-going"]
    # Sphinx copies styles and pictures only when some page is out of date: a new frame makes all of them so.
    stamp = output / "_build" / ".frame"
    frame = sources.frame_hash()
    if not stamp.exists() or stamp.read_text("utf8") != frame:
        command.append("--all")
    environment = {**os.environ, "LOWDIM_EXECUTION_CACHE": str(cache), "LOWDIM_LEDGER": str(ledger)}
    # Its greeting is of interest only when something goes wrong; warnings go to stderr and are always seen.
    build = subprocess.run(command, cwd=sources.ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if build.returncode:
        print(build.stdout)
        raise SystemExit("Jupyter Book failed" + (" (warnings count as errors)." if strict else "."))
    sources.write_if_changed(stamp, frame)


def announce(folder, began):
    page = sources.shown(folder / "index.html")
    print(f"\nDone in {time.monotonic() - began:.1f} s. Open {page}")
    print(f"or serve it: python3 -m http.server --directory {sources.shown(folder)}")


def build_book():
    """The whole book."""
    began = time.monotonic()
    print("Chapters:", flush=True)
    cache = execute.execute()
    run_benchmarks()
    print("Pages:", flush=True)
    jupyter_book(sources.ROOT, cache, execute.LEDGER)
    announce(HTML, began)


def without_other_chapters(node, name):
    """A table of contents in which `name` is the only executable chapter; parts that become empty are dropped."""
    others = {source.docname for source in sources.chapters() if source.name != name}

    def keep(child):
        if child.get("file") in others:
            return None
        kept = dict(child)
        for key in ("parts", "chapters", "sections"):
            if key in child:
                kept[key] = [grandchild for grandchild in map(keep, child[key]) if grandchild]
        emptied = any(key in child and not kept[key] for key in ("parts", "chapters"))
        return None if emptied else kept

    return keep(node)


def build_chapter(name):
    """One chapter with the pages around it, in a folder of its own; warnings are shown but allowed, because
    references to the other chapters cannot resolve there."""
    began = time.monotonic()
    sources.select([name])
    folder = sources.BUILD / "chapter" / name
    ledger = folder / "ledger.json"
    print("Chapter:", flush=True)
    cache = execute.execute([name], ledger)
    toc = folder / "_toc.yml"
    sources.write_if_changed(toc, yaml.safe_dump(without_other_chapters(sources.read_toc(), name), sort_keys=False))
    print("Pages:", flush=True)
    jupyter_book(folder, cache, ledger, toc, strict=False)
    html = folder / "html"
    if not html.is_symlink():
        html.symlink_to(Path("_build") / "html")  # Jupyter Book insists on its own _build level
    announce(html, began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chapter", metavar="NAME", help="build only this chapter")
    options = parser.parse_args()
    if options.chapter is None:
        build_book()
    else:
        build_chapter(options.chapter)


if __name__ == "__main__":
    main()
