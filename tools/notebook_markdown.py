"""A Sphinx builder that turns pages into the cells of plain notebooks, in Markdown that Colab and Jupyter can show.

It works on the resolved document tree, so that Sphinx itself has numbered equations, theorems and figures as on the
site, found every reference and formatted every citation. What remains is to write them in plain Markdown:

- display mathematics on one line (`$$ … \\tag{3} $$`): inside a quotation Jupyter would take the `>` of a second line
  for mathematics, and Colab takes a line that holds only `=` for the underline of a heading;
- theorems and boxes are block quotes, exercises headings, solutions folded (`<details>`);
- a link to another page goes to the site if its address is known, else its text stays; glossary terms are plain text;
- a citation leads to the list of works at the end; an image is embedded;
- a number that the site takes from its run (`{glue:text}`) is that of the last build, marked †, or the name under which
  the reader's own run prints it.

A construct that has no rule here stops the export: nothing is dropped silently.
"""

import base64
import mimetypes
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from pybtex_docutils import Backend
from sphinx import addnodes
from sphinx.builders import Builder
from sphinx.util.docutils import SphinxRole

from tools import address

PUBLISHED = "†"
ADMONITIONS = {
    nodes.note: "Note",
    nodes.tip: "Tip",
    nodes.hint: "Hint",
    nodes.important: "Important",
    nodes.warning: "Warning",
    nodes.caution: "Caution",
    nodes.attention: "Attention",
    nodes.danger: "Danger",
    nodes.error: "Error",
    addnodes.seealso: "See also",
}
SILENT = (
    nodes.comment,
    nodes.substitution_definition,
    nodes.target,
    nodes.meta,
    addnodes.index,
    addnodes.toctree,
    addnodes.highlightlang,
)
TRANSPARENT = (nodes.container, nodes.compound, addnodes.glossary, addnodes.only)
OPENS_A_BLOCK = re.compile(r"^(\d+)([.)])(?=\s)|^([-+#>])(?=\s|#)|^(=+|-+)$")
BARE_ANGLE = re.compile(r"(?<!\\left)(?<!\\right)(?<!\\big)(?<!\\Big)<")


@dataclass(frozen=True)
class CodeCell:
    """The place of code cell number `position` of the source (from 0); `folded` inside a solution."""

    position: int
    folded: bool = False


class Heading(str):
    """A heading with what belongs on its line: a new Markdown cell begins here."""


@dataclass
class Page:
    """One exported page: its cells in order (Markdown text or `CodeCell`) and whether it shows published numbers."""

    cells: list = field(default_factory=list)
    published: bool = False
    named: bool = False


class published_value(nodes.Inline, nodes.TextElement):
    """A number of the prose that comes from a run."""


class PublishedValue(SphinxRole):
    """`{glue:text}` in an export, where no cell has run: only the name is known while reading."""

    def run(self):
        key = re.split(r"(?<!:):(?!:)", self.text)[0].strip()  # what follows a single colon is a format
        return [published_value(self.text, self.text, key=key)], []


class NotebookBuilder(Builder):
    """Collects one `Page` for each document in `wanted`; `values` are published numbers, {docname: {name: text}}."""

    name = "notebook"
    format = "notebook"
    allow_parallel = False

    def init(self):
        self.pages, self.wanted, self.values = {}, set(), {}

    def get_outdated_docs(self):
        return self.env.found_docs

    def get_target_uri(self, docname, typ=None):
        return f"{docname}.html"

    def prepare_writing(self, docnames):
        pass

    def write_doc(self, docname, doctree):
        if docname in self.wanted:
            self.pages[docname] = Writer(self, docname, doctree).page()


def setup(app):
    app.add_builder(NotebookBuilder)
    app.add_node(published_value)
    app.add_role("glue", PublishedValue(), override=True)
    for role in ("text", "any"):
        app.add_role_to_domain("glue", role, PublishedValue(), override=True)
    return {"version": "1", "parallel_read_safe": True}


class Writer:
    """Writes one document as Markdown."""

    def __init__(self, builder, docname, doctree):
        self.builder, self.env, self.docname, self.doctree = builder, builder.env, docname, doctree
        self.values = builder.values.get(docname, {})
        self.numbers = self.env.toc_fignumbers.get(docname, {})
        self.works = {citation.citation_id: citation for citation in self.env.get_domain("cite").citations}
        self.cited = set()
        self.code_cells = 0
        self.in_table = False
        self.folded = False
        self.result = Page()
        self.linked = {self.local(reference) for reference in doctree.findall(nodes.reference)} - {None}

    def page(self):
        """The whole document, cut into cells."""
        items = list(self.blocks(self.doctree.children, level=1))
        works = [self.work(citation_id) for citation_id in self.works if citation_id in self.cited]
        if works:
            items += [Heading("## Works cited"), "\n".join(works)]
        text = []
        for item in items:
            if isinstance(item, Heading | CodeCell) and text:
                self.result.cells.append("\n\n".join(text))
                text = []
            if isinstance(item, CodeCell):
                self.result.cells.append(item)
            else:
                text.append(str(item))
        if text:
            self.result.cells.append("\n\n".join(text))
        return self.result

    # --- Links -------------------------------------------------------------------------------------------------------

    def local(self, reference):
        """The id on this page that a reference points at, or None."""
        if "refid" in reference:
            return reference["refid"]
        parts = urlsplit(reference.get("refuri", ""))
        if parts.scheme or parts.netloc or not parts.fragment:
            return None
        return parts.fragment if not parts.path or self.other_page(parts.path) == self.docname else None

    def other_page(self, path):
        """The document that a relative address leads to."""
        here = posixpath.dirname(self.docname)
        return posixpath.normpath(posixpath.join(here, path)).removesuffix(".html")

    def anchor(self, node):
        """Invisible marks for those ids of a node that something on this page links to."""
        wanted = [name for name in node.get("ids", []) if name in self.linked]
        self.linked -= set(wanted)
        return "".join(f'<a id="{name}" name="{name}"></a>' for name in wanted)

    def link(self, node):
        text = self.inline(node)
        if "std-term" in " ".join(" ".join(child.get("classes", [])) for child in node.findall(nodes.inline)):
            return text
        target = self.local(node)
        if target:
            return f"[{text}](#{target})"
        uri = node.get("refuri", "")
        parts = urlsplit(uri)
        if parts.scheme or parts.netloc:
            return f"<{uri}>" if text == uri else f"[{text}]({uri})"
        if parts.fragment in self.works and self.works[parts.fragment].bibliography_key.docname == self.other_page(
            parts.path
        ):
            citation = self.works[parts.fragment]
            self.cited.add(parts.fragment)
            return f"[{text}](#{citation.key})"
        page = address.page(self.other_page(parts.path))
        if page is None:
            return text
        return f"[{text}]({page}{'#' + parts.fragment if parts.fragment else ''})"

    def work(self, citation_id):
        """One line of the list of works, as the site's own bibliography writes it."""
        citation = self.works[citation_id]
        text = self.inline(Backend().paragraph(citation.formatted_entry))
        return f'- <a id="{citation.key}" name="{citation.key}"></a>{text}'

    # --- Inline ------------------------------------------------------------------------------------------------------

    def inline(self, node):
        return "".join(self.span(child) for child in node.children)

    def span(self, node):
        match node:
            case nodes.Text():
                return self.escape(node.astext())
            case nodes.math():
                return f"${self.formula(node.astext())}$"
            case nodes.emphasis():
                return self.marked(node, "*")
            case nodes.strong():
                return self.marked(node, "**")
            case nodes.literal():
                return code(node.astext(), self.in_table)
            case published_value():
                return self.published(node["key"])
            case nodes.reference():
                return self.anchor(node) + self.link(node)
            case nodes.footnote_reference():
                return f"<sup>[{node.astext()}](#{node['refid']})</sup>"
            case nodes.superscript():
                return f"<sup>{self.inline(node)}</sup>"
            case nodes.subscript():
                return f"<sub>{self.inline(node)}</sub>"
            case nodes.image():
                return self.image(node)
            case nodes.raw():
                return node.astext() if "html" in node.get("format", "") else ""
            case nodes.target():
                return self.anchor(node)
            case nodes.problematic() | nodes.system_message():
                raise ValueError(f"{self.docname}: Sphinx could not resolve {node.astext()!r}")
            case nodes.inline() | nodes.abbreviation() | nodes.title_reference() | nodes.generated():
                return self.anchor(node) + self.inline(node)
            case addnodes.index() | nodes.comment():
                return ""
            case addnodes.download_reference() | addnodes.pending_xref():
                return self.inline(node)
            case nodes.paragraph():
                return self.inline(node)
        raise ValueError(f"{self.docname}: no rule to write {node.tagname} in a line: {node.astext()[:80]!r}")

    def marked(self, node, mark):
        """Emphasis; Markdown wants the marks to touch the words."""
        text = self.inline(node)
        core = text.strip()
        if not core:
            return text
        before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        return f"{before}{mark}{core}{mark}{after}"

    def escape(self, text):
        """Plain words, safe in Markdown."""
        text = re.sub(r"\s*\n\s*", " ", text)
        text = re.sub(r"([\\*`$])", r"\\\1", text)
        text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
        text = text.replace("<", "&lt;").replace("](", "]\\(")
        return text.replace("|", "\\|") if self.in_table else text

    def formula(self, text):
        text = " ".join(text.split())
        text = BARE_ANGLE.sub(r"\\lt ", text)
        if self.in_table:
            text = text.replace("\\|", "\\Vert ").replace("|", "\\vert ")
        return text

    def published(self, key):
        if key in self.values:
            self.result.published = True
            return f"{self.values[key]}<sup>{PUBLISHED}</sup>"
        self.result.named = True
        return f"(`{key}`)"

    def image(self, node):
        uri = node["uri"]
        if not urlsplit(uri).scheme:
            path = Path(self.env.srcdir) / uri
            kind = mimetypes.guess_type(path.name)[0]
            uri = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
        alt = " ".join(node.get("alt", "").split()).replace("[", "(").replace("]", ")")
        return f"![{alt}]({uri})"

    # --- Blocks ------------------------------------------------------------------------------------------------------

    def blocks(self, children, level):
        """The Markdown blocks and code cells of some nodes, in order."""
        items = []
        for node in children:
            for item in self.block(node, level):
                mark = re.fullmatch(r"((?:<a id=[^>]*></a>)+)\n(\$\$.*)", item) if isinstance(item, str) else None
                # An anchor of its own would be an empty line: let it ride on the paragraph before.
                if mark and items and type(items[-1]) is str and not items[-1].endswith(("```", ">", "$$")):
                    items[-1] += mark[1]
                    item = mark[2]
                elif mark:
                    items.append(mark[1])
                    item = mark[2]
                items.append(item)
        return items

    def block(self, node, level):
        """The items of one node."""
        kind = type(node)
        if kind.__module__.startswith("sphinx_proof"):
            return self.statement(node, level)
        if kind.__module__.startswith("sphinx_exercise"):
            return self.exercise(node, level)
        if node.get("nb_element") == "cell_code":
            return self.code_cell(node)
        if node.get("design_component") == "dropdown":
            title, *rest = node.children if isinstance(node.children[0], nodes.rubric) else [None, *node.children]
            return self.details(self.summary(title).strip() if title else "More", self.blocks(rest, level + 1))
        if isinstance(node, SILENT):
            return []
        if kind in ADMONITIONS or isinstance(node, nodes.admonition):
            return self.admonition(node, level)
        if kind.__name__ == "HideCodeCellNode" or isinstance(node, TRANSPARENT):
            return [*filter(None, [self.anchor(node)]), *self.blocks(node.children, level)]
        rule = getattr(self, f"block_{node.tagname}", None)
        if rule is None:
            raise ValueError(f"{self.docname}: no rule to write {node.tagname}: {node.astext()[:80]!r}")
        return rule(node, level)

    def block_section(self, node, level):
        title, *rest = node.children
        if not isinstance(title, nodes.title):
            return self.blocks(node.children, level)
        # An anchor stands behind the title: Colab finds a heading only at the beginning of a line.
        heading = Heading(f"{'#' * min(level, 6)} {self.inline(title)}{self.anchor(node)}")
        return [heading, *self.blocks(rest, level + 1)]

    def block_paragraph(self, node, level):
        text = self.anchor(node) + self.inline(node).strip()
        return [OPENS_A_BLOCK.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[0]}", text)]

    def block_rubric(self, node, level):
        return [f"**{self.inline(node)}**"]

    def block_math_block(self, node, level):
        text = "\n".join(line for line in node.astext().splitlines() if not line.lstrip().startswith("%"))
        text = self.formula(text)
        if "\\\\" in re.sub(r"\\begin\{(\w+\*?)\}.*?\\end\{\1\}", "", text):
            text = f"\\begin{{aligned}} {text} \\end{{aligned}}"
        number = self.equation_number(node)
        text = re.sub(r"^\\begin\{(equation|gather|align)\*?\}(.*)\\end\{\1\*?\}$", _inner_environment, text)
        tag = f" \\tag{{{number}}}" if number else ""
        marks = self.anchor(node)
        return [f"{marks}\n$$ {text}{tag} $$" if marks else f"$$ {text}{tag} $$"]

    def equation_number(self, node):
        if not node.get("number") or not node.get("ids"):
            return ""
        if not (self.env.config.math_numfig and self.env.config.numfig):
            return str(node["number"])
        return self.number("displaymath", node)

    def number(self, kind, node):
        """The number that the site shows, such as 3 or 2.3; "" without one."""
        known = self.numbers.get(kind, {})
        found = next((known[name] for name in node.get("ids", []) if name in known), ())
        return ".".join(map(str, found))

    def block_literal_block(self, node, level):
        text = node.astext()
        fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
        language = node.get("language", "")
        return [f"{fence}{'' if language in ('none', 'default', 'text') else language}\n{text.rstrip()}\n{fence}"]

    def block_bullet_list(self, node, level):
        return self.listing(node, ["-"] * len(node.children), level)

    def block_enumerated_list(self, node, level):
        start = node.get("start", 1)
        return self.listing(node, [f"{start + i}." for i in range(len(node.children))], level)

    def listing(self, node, bullets, level):
        """A list; blocks inside an item are indented by the width of its bullet. A code cell cannot be inside."""
        lines = []
        loose = False
        for bullet, entry in zip(bullets, node.children, strict=True):
            parts = self.only_text(entry, level)
            loose = loose or len(parts) > 1
            text = "\n\n".join(parts).replace("\n", "\n" + " " * (len(bullet) + 1))
            lines.append(f"{bullet} {text}")
        return [("\n\n" if loose else "\n").join(re.sub(r"[ ]+$", "", line, flags=re.MULTILINE) for line in lines)]

    def only_text(self, node, level):
        items = self.blocks(node.children, level)
        if any(isinstance(item, CodeCell) for item in items):
            raise ValueError(f"{self.docname}: a code cell inside a {node.tagname} cannot be exported")
        return items

    def block_definition_list(self, node, level):
        entries = []
        for entry in node.children:
            terms = [child for child in entry.children if isinstance(child, nodes.term)]
            name = ", ".join(self.anchor(term) + self.inline(term) for term in terms)
            (definition,) = [child for child in entry.children if isinstance(child, nodes.definition)]
            text = "\n\n".join(self.only_text(definition, level)).replace("\n", "\n  ")
            entries.append(f"- **{name}:** {text}")
        return ["\n".join(entries)]

    def block_block_quote(self, node, level):
        return quoted(self.blocks(node.children, level))

    def block_transition(self, node, level):
        return ["***"]

    def block_raw(self, node, level):
        return [node.astext()] if "html" in node.get("format", "") else []

    def block_line_block(self, node, level):
        return ["  \n".join(self.inline(line) for line in node.findall(nodes.line))]

    def block_topic(self, node, level):
        return self.admonition(node, level)

    block_sidebar = block_topic

    def block_image(self, node, level):
        return [self.anchor(node) + self.image(node)]

    def block_figure(self, node, level):
        items = []
        for child in node.children:
            if isinstance(child, nodes.caption):
                items.append(self.caption(node, child))
            elif isinstance(child, nodes.legend):
                items += self.blocks(child.children, level)
            else:
                items += self.blocks([child], level)
        return items

    def caption(self, figure, caption):
        """The line below a figure, numbered as on the site."""
        number = self.number("figure", figure)
        name = self.env.config.numfig_format.get("figure", "Fig. %s") % number if number else ""
        return f"<small>{self.anchor(figure)}{f'**{name}.** ' if name else ''}{self.inline(caption).strip()}</small>"

    def block_table(self, node, level):
        lines = []
        title = next((child for child in node.children if isinstance(child, nodes.title)), None)
        if title is not None:
            number = self.number("table", node)
            name = self.env.config.numfig_format.get("table", "Table %s") % number if number else "Table"
            lines.append(f"{self.anchor(node)}**{name}.** {self.inline(title)}\n")
        (group,) = [child for child in node.children if isinstance(child, nodes.tgroup)]
        head = next((child for child in group.children if isinstance(child, nodes.thead)), None)
        body = next(child for child in group.children if isinstance(child, nodes.tbody))
        self.in_table = True
        rows = [self.table_row(row) for part in (head, body) if part is not None for row in part.children]
        self.in_table = False
        if head is None:
            rows.insert(0, "| " + " | ".join("" for _ in range(int(group["cols"]))) + " |")
        lines += [rows[0], "|" + "---|" * int(group["cols"]), *rows[1:]]
        return ["\n".join(lines)]

    def table_row(self, row):
        cells = []
        for entry in row.children:
            if "morecols" in entry or "morerows" in entry:
                raise ValueError(f"{self.docname}: a table cell that spans others cannot be written in Markdown")
            cells.append("<br>".join(" ".join(part.split("\n")) for part in self.only_text(entry, 6)))
        return f"| {' | '.join(cells)} |"

    def block_footnote(self, node, level):
        label, *rest = node.children
        text = "\n\n".join(self.blocks(rest, level))
        marks = "".join(f'<a id="{name}" name="{name}"></a>' for name in node["ids"])
        return [f"{marks}[{label.astext()}] {text}"]

    def block_citation(self, node, level):
        """An entry of a bibliography on this very page."""
        text = " ".join(self.inline(child) for child in node.children if not isinstance(child, nodes.label))
        return [f"{self.anchor(node)}{text}"]

    # --- Boxes -------------------------------------------------------------------------------------------------------

    def admonition(self, node, level):
        children, folded = list(node.children), "dropdown" in node.get("classes", [])
        title = ADMONITIONS.get(type(node), "")
        if children and isinstance(children[0], nodes.title):
            title = self.summary(children[0]).strip() if folded else self.inline(children[0])
            children.pop(0)
        inside = self.blocks(children, level + 1)
        if folded:
            return self.details(title or ("Proof" if "proof" in node["classes"] else "More"), inside)
        return quoted([f"**{title}**", *inside] if title else inside)

    def statement(self, node, level):
        """A theorem, definition, remark …: a bold heading and the text, all quoted. A proof is a quotation too."""
        if type(node).__name__ == "proof_node":
            first, *rest = self.blocks(node.children, level)
            return [first.replace("> Proof.", "> *Proof.*", 1), *rest]
        kind = node.get("realtype", "").title()
        number = self.number(node.get("countertype", ""), node)
        title, *rest = node.children
        heading = f"**{' '.join(filter(None, [kind, number]))}**"
        extra = self.inline(title).strip()
        line = f"{self.anchor(node)}{heading}{' ' + extra if extra else ''}"
        return quoted([line, *self.blocks(rest, level + 1)])

    def exercise(self, node, level):
        title, *rest = node.children
        if type(node).__name__.startswith("solution"):
            # A link inside a summary would open it instead of leading somewhere.
            name = " ".join(self.summary(title).split())
            outer, self.folded = self.folded, True
            inside = self.blocks(rest, level + 1)
            self.folded = outer
            return self.details(name, inside)
        number = self.number("exercise", node)
        name = title["title"] % number if "%s" in title.get("title", "") else ""
        heading = f"{'#' * min(level, 6)} {name}{self.inline(title)}{self.anchor(node)}"
        return [Heading(heading), *self.blocks(rest, level + 1)]

    def summary(self, node):
        """A title inside HTML, where Markdown means nothing but mathematics still does."""
        parts = []
        for child in node.children:
            if isinstance(child, nodes.Text):
                parts.append(child.astext().replace("&", "&amp;").replace("<", "&lt;"))
            else:
                parts.append(self.span(child) if isinstance(child, nodes.math) else self.summary(child))
        return "".join(parts)

    def details(self, summary, items):
        """A folded text. A code cell inside interrupts it: the text goes on, folded, behind the cell."""
        result, text = [], []
        for item in [*items, None]:
            if isinstance(item, str):
                text.append(item)
                continue
            if text:
                result.append("\n\n".join([f"<details><summary><b>{summary}</b></summary>", *text, "</details>"]))
                text = []
            if item is not None:
                result.append(item)
        return result

    def code_cell(self, node):
        """The place of a code cell, and below it the caption of its figure."""
        items = [CodeCell(self.code_cells, self.folded)]
        self.code_cells += 1
        for figure in node.findall(nodes.figure):
            items += [
                self.caption(figure, caption) for caption in figure.children if isinstance(caption, nodes.caption)
            ]
        return items


def _inner_environment(match):
    """Inside `$$ … \\tag{n} $$` only the inner forms of AMS environments are allowed."""
    inner = {"gather": "gathered", "align": "aligned"}.get(match[1])
    return f"\\begin{{{inner}}}{match[2]}\\end{{{inner}}}" if inner else match[2].strip()


def code(text, in_table=False):
    """Inline code, whatever backticks it holds."""
    text = " ".join(text.split("\n"))
    if in_table:
        text = text.replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall(r"`+", text)), default=0))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def quoted(items):
    """A block quote. Code cells inside it interrupt it."""
    result, text = [], []
    for item in [*items, None]:
        if isinstance(item, str):
            text.append(str(item))
            continue
        if text:
            lines = "\n\n".join(text).split("\n")
            result.append("\n".join(f"> {line}".rstrip() for line in lines))
            text = []
        if item is not None:
            result.append(item)
    return result
