"""The map of the book: which question each chapter answers, and which chapters it builds on.

Both stand in a chapter's own front matter, so that a new chapter draws itself into the map:

    question: How many samples does online SGD need to find one hidden direction?
    builds_on: [lazy_barrier]
"""

import html
import itertools
import json
import posixpath
import textwrap

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

# Sizes of the drawing in its own units, which are CSS pixels where the text column is wide enough.
NODE_WIDTH, NODE_HEIGHT, GAP, LEVEL_GAP, MARGIN = 158, 66, 18, 44, 4
LINE_HEIGHT, LETTERS = 18, 19


class book_map(nodes.General, nodes.Element):
    """Stands for the map until all chapters are read."""


class BookMap(SphinxDirective):
    """`book-map`: a drawing of the chapters and a list of their questions."""

    def run(self):
        return [book_map()]


def chapters(env):
    """{docname: (title, question, docnames it builds on)} of all executable chapters, in reading order."""
    order = list(reading_order(env, env.config.root_doc))
    metadata = {docname: env.metadata[docname] for docname in order if "kernelspec" in env.metadata[docname]}
    by_name = {posixpath.basename(docname): docname for docname in metadata}
    found = {}
    for docname, entries in metadata.items():
        if not entries.get("question"):
            raise ExtensionError(f"{docname}.md has no `question:` in its front matter; the map of the book needs it")
        names = as_list(entries.get("builds_on", []))
        # A chapter built alone shows the map of itself: what it builds on is not there.
        parents = [by_name[name] for name in names if name in by_name]
        found[docname] = (env.titles[docname].astext(), entries["question"], parents)
    return found


def as_list(value):
    """Front matter that is not plain text reaches Sphinx as JSON."""
    return json.loads(value) if isinstance(value, str) else list(value)


def reading_order(env, docname):
    yield docname
    for child in env.toctree_includes.get(docname, []):
        yield from reading_order(env, child)


def levels(found):
    """Chapters in rows: each stands below everything it builds on."""
    level = {}

    def place(docname, trail=()):
        if docname in trail:
            raise ExtensionError(f"these chapters build on each other in a circle: {' → '.join([*trail, docname])}")
        if docname not in level:
            level[docname] = 1 + max((place(parent, (*trail, docname)) for parent in found[docname][2]), default=-1)
        return level[docname]

    for docname in found:
        place(docname)
    rows = sorted(found, key=lambda docname: level[docname])
    return [list(row) for _, row in itertools.groupby(rows, key=lambda docname: level[docname])]


def drawing(found, link):
    """The map as SVG; a screen reader is given the list below it instead."""
    rows = levels(found)
    width = max(len(row) for row in rows) * (NODE_WIDTH + GAP) - GAP + 2 * MARGIN
    height = len(rows) * (NODE_HEIGHT + LEVEL_GAP) - LEVEL_GAP + 2 * MARGIN
    place = {}
    for i, row in enumerate(rows):
        left = (width - len(row) * (NODE_WIDTH + GAP) + GAP) / 2
        for j, docname in enumerate(row):
            place[docname] = left + j * (NODE_WIDTH + GAP), MARGIN + i * (NODE_HEIGHT + LEVEL_GAP)
    edges = [edge(place[parent], place[docname]) for docname in found for parent in nearest(found, docname)]
    boxes = [box(*place[docname], found[docname][0], link(docname)) for docname in found]
    return (
        f'<svg class="lowdim-map" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'aria-hidden="true" focusable="false">{"".join(edges)}{"".join(boxes)}</svg>'
    )


def nearest(found, docname):
    """What a chapter builds on directly: an arrow that others imply would run behind their boxes."""

    def ancestors(of):
        return {older for parent in found[of][2] for older in (parent, *ancestors(parent))}

    parents = found[docname][2]
    return [parent for parent in parents if not any(parent in ancestors(other) for other in parents)]


def edge(start, end):
    """A curve from the foot of one box to the head of another, with a small arrow head."""
    x1, y1, x2, y2 = start[0] + NODE_WIDTH / 2, start[1] + NODE_HEIGHT, end[0] + NODE_WIDTH / 2, end[1]
    bend = (y2 - y1) / 2
    return (
        f'<path class="edge" d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2 - 6:g}"/>'
        f'<path class="head" d="M{x2:g} {y2:g}l-5 -8h10z"/>'
    )


def box(x, y, title, address):
    """One chapter: a rounded box with its title, which leads to it."""
    lines = textwrap.wrap(title, LETTERS)
    top = y + NODE_HEIGHT / 2 - (len(lines) - 1) * LINE_HEIGHT / 2
    words = "".join(
        f'<text x="{x + NODE_WIDTH / 2:g}" y="{top + i * LINE_HEIGHT:g}">{html.escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    rectangle = f'<rect x="{x:g}" y="{y:g}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="8"/>'
    return f'<a href="{address}" tabindex="-1">{rectangle}{words}</a>'


def listing(found, link):
    """The questions, one entry a chapter, with what each builds on."""
    entries = []
    for docname, (title, question, parents) in found.items():
        needs = ", ".join(f'<a href="{link(parent)}">{html.escape(found[parent][0])}</a>' for parent in parents)
        entries.append(
            f'<li><a class="chapter" href="{link(docname)}">{html.escape(title)}</a>'
            f"<p>{html.escape(question)}</p>" + (f'<p class="needs">Builds on {needs}.</p>' if needs else "") + "</li>"
        )
    return f'<ol class="lowdim-questions">{"".join(entries)}</ol>'


def draw_map(app, doctree, docname):
    for node in list(doctree.findall(book_map)):
        found = chapters(app.env)

        def link(target):
            return html.escape(app.builder.get_relative_uri(docname, target), quote=True)

        node.replace_self(nodes.raw("", drawing(found, link) + listing(found, link), format="html"))


def renew_map(app, env):
    """The page with the map depends on the front matter of all chapters: write it again with every build."""
    return [docname for docname in env.found_docs if env.metadata.get(docname, {}).get("lowdim_map")]


def note_page(app, doctree):
    if any(True for _ in doctree.findall(book_map)):
        app.env.metadata[app.env.docname]["lowdim_map"] = True


def setup(app):
    app.add_node(book_map)
    app.add_directive("book-map", BookMap)
    app.connect("doctree-read", note_page)
    app.connect("env-updated", renew_map)
    app.connect("doctree-resolved", draw_map)
    return {"version": "1", "parallel_read_safe": True}
