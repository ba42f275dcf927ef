"""What the book is made of: the executable chapters named in _toc.yml, and the keys that say when to run them again.

python -m tools.sources    list the chapters and the current execution key
"""

import argparse
import ast
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from myst_nb.core.read import read_myst_markdown_notebook

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
TOC = ROOT / "_toc.yml"
LIBRARY = ROOT / "lib" / "lowdim"

# What a chapter computes depends on these besides its own code (value: the default when unset).
SETTINGS = {"LOWDIM_SEED": "0", "LOWDIM_SCALE": "quick", "LOWDIM_DEVICE": ""}


@dataclass(frozen=True)
class Source:
    """One executable chapter: `docname` as Sphinx calls it, `name` as `make chapter NAME=` does."""

    docname: str

    @property
    def name(self):
        return self.docname.rsplit("/", 1)[-1]

    @property
    def path(self):
        return ROOT / f"{self.docname}.md"

    def read(self):
        """The chapter as a notebook, parsed exactly as Sphinx will parse it (so that cache keys agree)."""
        return read_myst_markdown_notebook(self.path.read_text("utf8"), add_source_map=True, path=self.path)


def toc_files(node):
    """All `file:` and `root:` entries of a table of contents, in reading order."""
    files = [node[key] for key in ("root", "file") if key in node]
    for key in ("parts", "chapters", "sections"):
        for child in node.get(key, []):
            files += toc_files(child)
    return files


def read_toc():
    return yaml.safe_load(TOC.read_text("utf8"))


def front_matter(path):
    """The YAML block at the top of a Markdown file, or {}."""
    match = re.match(r"---\n(.*?)\n---\n", path.read_text("utf8"), flags=re.DOTALL)
    return yaml.safe_load(match.group(1)) if match else {}


def chapters():
    """The executable sources of the book, in reading order: pages whose front matter names a kernel."""
    found = []
    for docname in toc_files(read_toc()):
        path = ROOT / f"{docname}.md"
        if not path.exists():
            raise SystemExit(f"_toc.yml names {docname}, but {path.relative_to(ROOT)} does not exist")
        if "kernelspec" in front_matter(path):
            found.append(Source(docname))
    return found


def select(names):
    """The chapters called `names` (all when empty); an unknown name ends the program with the list of known ones."""
    known = chapters()
    unknown = sorted(set(names) - {source.name for source in known})
    if unknown:
        listing = "\n".join(f"  {source.name}" for source in known)
        raise SystemExit(f"There is no chapter named {', '.join(map(repr, unknown))}. The chapters are:\n{listing}")
    return [source for source in known if not names or source.name in names]


def book_title():
    return yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))["title"]


def title(notebook):
    """The first top-level heading of a notebook."""
    for cell in notebook.cells:
        match = re.search(r"^# (.+)$", cell.source, flags=re.MULTILINE) if cell.cell_type == "markdown" else None
        if match:
            return match.group(1).strip()
    return "Untitled"


def _digest(parts):
    """A short hash of a sequence of byte strings, each preceded by its length so that boundaries count."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part)
    return digest.hexdigest()[:16]


def library_hash():
    """Changes exactly when a file of the library changes, moves, appears or goes."""
    return _files_hash(LIBRARY, LIBRARY.rglob("*.py"))


def frame_hash():
    """Changes when the frame around the pages does: styles, pictures, extensions, settings, order of chapters."""
    files = [
        path
        for folder in ("_static", "_ext", "_templates")
        for path in (ROOT / "book" / folder).rglob("*")
        if path.is_file()
    ]
    files = [path for path in files if "__pycache__" not in path.parts]
    return _files_hash(ROOT, [*files, TOC, ROOT / "_config.yml"])


def _files_hash(root, paths):
    parts = []
    for path in sorted(paths):
        parts += [path.relative_to(root).as_posix().encode(), path.read_bytes()]
    return _digest(parts)


def execution_key():
    """Names one state of everything that outputs depend on besides a chapter's own code."""
    settings = {name: os.environ.get(name, default) for name, default in SETTINGS.items()}
    requirements = (ROOT / "requirements.txt").read_bytes()
    return _digest([library_hash().encode(), requirements, json.dumps(settings).encode()])


def code_hash(notebook):
    """Changes when a code cell of the notebook changes, not when its prose does."""
    return _digest(cell.source.encode() for cell in code_cells(notebook))


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def top_level(cell):
    """The statements of a cell that run when it does: not those inside functions and classes."""
    lines = [line for line in cell.source.splitlines() if not line.startswith(("%", "!"))]
    body = ast.parse("\n".join(lines)).body
    return [node for node in body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]


def calls(cell):
    """What a cell calls at its top level, as dotted names such as "plt.subplots"."""
    nodes = (node for statement in top_level(cell) for node in ast.walk(statement))
    return [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]


def cell_claims(cell):
    """The rows that `claims.check` left in the outputs of one executed cell, in order."""
    marks = (output.get("metadata", {}).get("lowdim", {}) for output in cell.outputs)
    return [mark["claim"] for mark in marks if "claim" in mark]


def claim_rows(notebook):
    """The rows that `claims.check` left in the outputs of an executed notebook, in order."""
    return [row for cell in code_cells(notebook) for row in cell_claims(cell)]


def claim_problems(notebook):
    """What is wrong with the claims of an executed notebook, as sentences: a claim that failed, one that the code
    states but that never ran (a loop over nothing, a branch not taken), two with names that cannot be told apart."""
    problems = []
    for number, cell in enumerate(code_cells(notebook), start=1):
        stated, recorded = calls(cell).count("claims.check"), len(cell_claims(cell))
        if recorded < stated:
            problems.append(f"code cell {number} states {stated} claims, but {recorded} of them ran")
    rows = claim_rows(notebook)
    anchors = [row["anchor"] for row in rows]
    problems += [
        f"the claim “{row['name']}” has the same place on the page as another: give it another name"
        for row in rows
        if anchors.count(row["anchor"]) > 1
    ]
    problems += [f"the claim “{row['name']}” does not hold" for row in rows if row["verdict"] != "holds"]
    return problems if rows else [*problems, "it makes no claim at all"]


def write_if_changed(path, text):
    """Write `text` unless the file already holds it: its time stamp then tells Sphinx the truth. True if written."""
    if path.exists() and path.read_text("utf8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf8")
    return True


def shown(path):
    """A path relative to the repository, for messages."""
    return os.path.relpath(path, ROOT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CHAPTER", help="only these chapters (default: all)")
    options = parser.parse_args()
    for source in select(options.names):
        print(f"{source.name:28} {source.docname}.md")
    print(f"execution key {execution_key()}, library {library_hash()}")


if __name__ == "__main__":
    main()
