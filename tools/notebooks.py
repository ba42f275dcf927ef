"""Write the chapters and problem sets as plain notebooks that Colab, Jupyter and nbval can run.

    python -m tools.notebooks                          every chapter, into _build/notebooks
    python -m tools.notebooks information_exponent     only that one
    python -m tools.notebooks --publish FOLDER         what the branch `notebooks` holds: notebooks, wheel, a README

The prose is written by tools/notebook_markdown.py from Sphinx's own document trees; code cells are those of the source,
letter by letter. In front stands one more code cell, tools/setup_cell.py, which installs the library on Colab. Nothing
is executed here. Numbers of the prose that come from a run are those of the last `make book`, if its results still
belong to these sources.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import nbformat
import yaml
from jupyter_book.config import get_final_config
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from lowdim.notes import HIDDEN
from tools import address, execute, notebook_markdown, sources

FOLDER = sources.BUILD / "notebooks"
SETUP_CELL = Path(__file__).with_name("setup_cell.py")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# Binder's machines have no GPU, and pip's torch would bring gigabytes for one: conda has a build without.
CONDA_NAMES = {"torch": "pytorch-cpu"}
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}  # Colab's way and Jupyter's
HIDING_TAGS = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def project():
    return tomllib.loads((sources.ROOT / "pyproject.toml").read_text("utf8"))["project"]


def wheel_path():
    """Where the branch holds the wheel of this very library: an old notebook keeps finding the one it was made with."""
    return f"wheels/{sources.library_hash()}/lowdim-{project()['version']}-py3-none-any.whl"


def build_wheel(folder):
    """Build the library's wheel into `folder` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as copy:  # setuptools would leave its work in the repository
        for name in ("pyproject.toml", "LICENSE", "README.md"):
            shutil.copy(sources.ROOT / name, copy)
        shutil.copytree(sources.LIBRARY, Path(copy, "lib", "lowdim"), ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*command, "-w", str(folder), copy], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"The wheel cannot be built:\n{done.stdout}{done.stderr}")
    return folder / Path(wheel_path()).name


def published_values(selected):
    """{docname: {name: text}}: what the last execution glued, where it still belongs to the present code."""
    folder = execute.CACHES / sources.execution_key()
    if not folder.exists():
        return {}
    cache, values = get_cache(folder), {}
    for source in selected:
        notebook = execute.cached(cache, source.read())
        values[source.docname] = {} if notebook is None else glued(notebook)
    return values


def glued(notebook):
    """The numbers that an executed notebook stored for its prose."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    stored = [output for output in outputs if "scrapbook" in output.get("metadata", {})]
    return {output.metadata["scrapbook"]["name"]: output.data[HIDDEN + "text/plain"] for output in stored}


def placeholder_cache(selected, folder):
    """A cache in which every cell with a caption has shown something: Sphinx numbers figures and executes nothing."""
    cache = get_cache(folder)
    for source in selected:
        notebook = source.read()
        for cell in notebook.cells:
            if cell.cell_type == "code" and "figure" in cell.metadata.get("mystnb", {}):
                cell.outputs = [nbformat.v4.new_output("display_data", {"text/plain": "figure"})]
        cache.cache_notebook_bundle(CacheBundleIn(notebook, str(source.path)), check_validity=False, overwrite=True)


def read_book(selected, work):
    """Let Sphinx read the whole book, so that numbers and references are the site's; return {docname: Page}."""
    placeholder_cache(sources.chapters(), work / "cache")
    os.environ["LOWDIM_EXECUTION_CACHE"] = str(work / "cache")
    overrides = {
        "latex_individualpages": False,
        "nb_mime_priority_overrides": [(notebook_markdown.NotebookBuilder.name, "text/plain", 1)],
    }
    config, _ = get_final_config(user_yaml=sources.ROOT / "_config.yml", sourcedir=sources.ROOT, cli_config=overrides)
    config["extensions"].append(notebook_markdown.__name__)
    with patch_docutils(sources.ROOT), docutils_namespace():
        app = Sphinx(
            srcdir=sources.ROOT,
            confdir=None,
            outdir=work / "out",
            doctreedir=work / "doctrees",
            buildername=notebook_markdown.NotebookBuilder.name,
            confoverrides=config,
            status=None,
            freshenv=True,
            warningiserror=True,
            keep_going=True,
        )
        if "numbered: true" in sources.TOC.read_text("utf8"):  # as Jupyter Book does for the site
            app.setup_extension("sphinx_multitoc_numbering")
        app.builder.values = published_values(selected)
        app.builder.wanted = {source.docname for source in selected}
        app.build(force_all=True)
        if app.statuscode:
            raise SystemExit("Sphinx found faults in the pages (see above), so no notebook was written.")
        return app.builder.pages


def setup_cell():
    """The first code cell, for this version and this repository."""
    text = SETUP_CELL.read_text("utf8").rstrip()
    source = address.raw(wheel_path())
    text = text.replace('"VERSION"', json.dumps(project()["version"]))
    return text.replace('"SOURCE"', json.dumps(source) if source else "None")


def introduction(source, page):
    """The lines below the title: where the notebook comes from, and what a marked number is."""
    book = "*Learning Low-Dimensional Functions*"
    online = address.page(source.docname)
    lines = [
        f"A chapter of {book}, version {project()['version']}" + (f" ([read it online]({online}))." if online else ".")
    ]
    if page.published:
        lines.append(
            f"A number marked {notebook_markdown.PUBLISHED} is that of the published page; your run prints its own."
        )
    if page.named:
        lines.append("A name in round brackets stands for a number that your run prints under this name.")
    return f"<small>{' '.join(lines)}</small>"


def code_cell(cell, folded):
    """A code cell of the source, without what only the site needs."""
    tags = cell.metadata.get("tags", [])
    made = nbformat.v4.new_code_cell(cell.source)
    if tags:
        made.metadata["tags"] = list(tags)
    if folded or HIDING_TAGS & set(tags):
        made.metadata |= FOLDED
    return made


def assemble(source, page):
    """The notebook of one page."""
    code = [cell for cell in source.read().cells if cell.cell_type == "code"]
    places = [item.position for item in page.cells if isinstance(item, notebook_markdown.CodeCell)]
    if places != list(range(len(code))):
        raise SystemExit(f"{sources.shown(source.path)}: Sphinx shows code cells {places}, the source has {len(code)}.")
    title, *opening = page.cells[0].split("\n\n")
    cells = [nbformat.v4.new_markdown_cell(f"{title}\n\n{introduction(source, page)}")]
    cells.append(nbformat.v4.new_code_cell(setup_cell(), metadata=dict(FOLDED)))
    for item in ["\n\n".join(opening), *page.cells[1:]]:
        if isinstance(item, notebook_markdown.CodeCell):
            cells.append(code_cell(code[item.position], item.folded))
        elif item:
            cells.append(nbformat.v4.new_markdown_cell(item))
    for number, cell in enumerate(cells):  # the same sources give the same file
        cell["id"] = hashlib.sha256(f"{source.docname} {number}".encode()).hexdigest()[:12]
    colab = {"name": f"{source.name}.ipynb", "provenance": [], "toc_visible": True}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={**METADATA, "colab": colab})
    nbformat.validate(notebook)
    return notebook


def export(folder, names=()):
    """Write notebooks in this process (which must not be running Sphinx already) and return their paths."""
    selected = sources.select(names)
    with tempfile.TemporaryDirectory() as work:
        pages = read_book(selected, Path(work))
    folder.mkdir(parents=True, exist_ok=True)
    if not names:
        for stale in folder.glob("*.ipynb"):
            stale.unlink()
    paths = []
    for source in selected:
        path = folder / f"{source.name}.ipynb"
        nbformat.write(assemble(source, pages[source.docname]), path)
        paths.append(path)
    return paths


def write(folder, names=()):
    """Write the notebooks of the chapters called `names` (all when empty) into `folder`; return their paths.

    The work is done in another process, because Sphinx cannot run inside Sphinx.
    """
    command = [sys.executable, "-m", "tools.notebooks", "--folder", str(Path(folder).resolve()), *names]
    done = subprocess.run(command, cwd=sources.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"The notebooks cannot be written:\n{done.stdout}{done.stderr}")
    return [Path(folder) / f"{source.name}.ipynb" for source in sources.select(names)]


def publish(folder):
    """Fill `folder`, a checkout of the branch, with the notebooks and the wheel that they install."""
    for path in export(folder):
        print(path.name)
    wheel = folder / wheel_path()
    if not wheel.exists():  # two builds of one library differ in their time stamps: the first is kept
        build_wheel(wheel.parent)
    print(wheel.relative_to(folder))
    lines = [
        "# Generated notebooks",
        "",
        "Written from the Markdown chapters of the branch `main` by its workflow; do not edit here. `wheels/` holds",
        "the library as each notebook installs it.",
        "",
    ]
    for source in sources.select(()):
        name = f"{source.name}.ipynb"
        links = {"Colab": address.colab(name), "Binder": address.binder(name)}
        places = [f"[{place}]({link})" for place, link in links.items() if link]
        lines.append(" · ".join([f"- [{sources.title(source.read())}]({name})", *places]))
    (folder / "README.md").write_text("\n".join(lines) + "\n", "utf8")
    write_binder(folder / ".binder", wheel.relative_to(folder))


def write_binder(folder, wheel):
    """What Binder needs to start the branch: an environment for conda, then the library's wheel without more."""
    folder.mkdir(exist_ok=True)
    names = [re.match(r"[\w-]+", requirement)[0] for requirement in project()["dependencies"]]
    packages = ["python=3.11", *(CONDA_NAMES.get(name, name) for name in names), "pip"]
    environment = {"channels": ["conda-forge"], "dependencies": packages}
    (folder / "environment.yml").write_text(yaml.safe_dump(environment, sort_keys=False), "utf8")
    script = folder / "postBuild"
    script.write_text(f"#!/bin/sh\nset -e\npip install --no-deps {wheel}\n", "utf8")
    script.chmod(0o755)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write (default: _build/notebooks)")
    parser.add_argument("--publish", type=Path, metavar="FOLDER", help="write all that the branch holds there")
    parser.add_argument("names", nargs="*", metavar="CHAPTER", help="only these chapters (default: all)")
    options = parser.parse_args()
    if options.publish:
        if options.names:
            parser.error("the branch holds all chapters: leave the names out")
        publish(options.publish)
        return
    for path in export(options.folder, options.names):
        print(sources.shown(path))


if __name__ == "__main__":
    main()
