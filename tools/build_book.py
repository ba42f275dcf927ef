"""Build the site: execute what changed, measure the benchmarks if the library changed, run Jupyter Book, add downloads.

    python -m tools.build_book                               the whole book, into _build/html
    python -m tools.build_book --chapter information_exponent  that chapter alone, into _build/chapter/<name>/html

Sphinx itself executes nothing: it finds every notebook in the cache that tools.execute filled. LOWDIM_PDF=0 leaves the
printed chapters out.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tools import ensure_browser, execute, notebooks, pdf, sources

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


def can_print():
    """Whether chapters can be printed: a browser is there or was installed, and nobody said LOWDIM_PDF=0."""
    if os.environ.get("LOWDIM_PDF") == "0":
        return False
    try:
        ensure_browser.ensure()
    except ensure_browser.NoBrowser as problem:
        print(f"The pages come without printed chapters, for lack of a browser. {problem}", file=sys.stderr)
        return False
    return True


def jupyter_book(output, cache, ledger, downloads, toc=sources.TOC, strict=True):
    """Run `jupyter-book build`; the pages appear in <output>/_build/html. Ends the program on a failure."""
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(sources.ROOT), "-n", "-q"]
    command += ["--path-output", str(output), "--toc", str(toc)]
    if strict:
        command += ["-W", "--keep-going"]
    # Sphinx copies styles and pictures only when some page is out of date: a new frame makes all of them so.
    stamp = output / "_build" / ".frame"
    frame = f"{sources.frame_hash()} {downloads}"
    if not stamp.exists() or stamp.read_text("utf8") != frame:
        command.append("--all")
    environment = {**os.environ, "LOWDIM_EXECUTION_CACHE": str(cache), "LOWDIM_LEDGER": str(ledger)}
    environment["LOWDIM_DOWNLOADS"] = downloads
    # Its greeting is of interest only when something goes wrong; warnings go to stderr and are always seen.
    build = subprocess.run(command, cwd=sources.ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if build.returncode:
        print(build.stdout)
        raise SystemExit("Jupyter Book failed" + (" (warnings count as errors)." if strict else "."))
    sources.write_if_changed(stamp, frame)


REDIRECT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="icon" href="_static/favicon.svg">
<meta http-equiv="refresh" content="0; url={first}">
</head>
<body><p><a href="{first}">{title}</a></p></body>
</html>
"""


def finish(html, downloads, selected, toc):
    """What Jupyter Book leaves to do: a valid first page, no stray templates, notebooks and printed chapters."""
    pages = [f"{docname}.html" for docname in sources.toc_files(toc)]
    for page in html.rglob("*.html"):
        path = page.relative_to(html).as_posix()
        if not path.startswith("_static/") and path not in (*pages, "index.html", "search.html"):
            page.unlink()  # of a chapter that was renamed or removed since the last build
    first = pages[0]
    sources.write_if_changed(html / "index.html", REDIRECT.format(title=sources.book_title(), first=first))
    for stray in ("webpack-macros.html", "sbt-webpack-macros.html"):
        (html / "_static" / stray).unlink(missing_ok=True)
    notebooks.write(html / "downloads", [source.name for source in selected])
    if "pdf" in downloads.split():
        pdf.print_chapters(html, selected)


def announce(folder, began):
    page = sources.shown(folder / "index.html")
    print(f"\nDone in {time.monotonic() - began:.1f} s. Open {page}")
    print(f"or serve it: python3 -m http.server --directory {sources.shown(folder)}")


def offered_downloads():
    """The kinds of files that each chapter offers."""
    return "md ipynb pdf" if can_print() else "md ipynb"


def build_book():
    """The whole book."""
    began = time.monotonic()
    print("Chapters:", flush=True)
    cache = execute.execute()
    run_benchmarks()
    print("Pages:", flush=True)
    downloads = offered_downloads()
    jupyter_book(sources.ROOT, cache, execute.LEDGER, downloads)
    finish(HTML, downloads, sources.chapters(), sources.read_toc())
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
    contents = without_other_chapters(sources.read_toc(), name)
    sources.write_if_changed(toc, yaml.safe_dump(contents, sort_keys=False))
    print("Pages:", flush=True)
    downloads = offered_downloads()
    jupyter_book(folder, cache, ledger, downloads, toc, strict=False)
    finish(folder / "_build" / "html", downloads, sources.select([name]), contents)
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
