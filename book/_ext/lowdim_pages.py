"""The finish of each page: interactive figures as light as they can be, permanent links, downloads, valid HTML.

Interactive figures arrive as one piece of HTML with all frames inside (lowdim.explore). On the site their style and
script are shared files, and each frame is a file that a browser fetches when somebody moves a slider.
"""

import os
import posixpath
import re
import shutil
from pathlib import Path

from docutils import nodes

from lowdim import explore

FRAMES = "_explorers"
DOWNLOADS = "downloads"
# sphinx-proof and sphinx-exercise give the body of every theorem and exercise one and the same id.
REPEATED_IDS = {"proof-content", "exercise-content", "solution-content"}
PERMANENT = {"proof": "statement", "exercise": "exercise"}
EXPLORER = re.compile(r'<figure class="lowdim-explorer" id="([\w-]+)"')


# --- Interactive figures ------------------------------------------------------------------------------------------


def share_explorer_assets(app, config):
    """Write the explorers' style and script once, where Sphinx collects static files."""
    folder = Path(app.outdir).parent / "explorer-assets"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("explorer.css", explore.STYLE), ("explorer.js", explore.SCRIPT.strip() + "\n")):
        (folder / name).write_text(text, "utf8")
    config.html_static_path.append(str(folder))


def move_frames_to_files(app, doctree, docname):
    """Replace each self-contained explorer of a page by one whose frames lie beside the site's pages."""
    for node in doctree.findall(nodes.raw):
        found = EXPLORER.search(node.rawsource or node.astext())
        if not found or "html" not in node.get("format", ""):
            continue
        up = "../" * docname.count("/")
        text, files = explore.for_page(node.astext(), f"{up}{FRAMES}/{found[1]}")
        for address, picture in files.items():
            path = Path(app.outdir, posixpath.normpath(posixpath.join(posixpath.dirname(docname), address)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture)
        node.children = [nodes.Text(text)]


def drop_unused_frames(app, exception):
    """Remove frames of explorers that no page shows any more."""
    if exception is not None:
        return
    used = set()
    for page in Path(app.outdir).rglob("*.html"):
        used.update(EXPLORER.findall(page.read_text("utf8")))
    for folder in Path(app.outdir, FRAMES).glob("*"):
        if folder.name not in used:
            shutil.rmtree(folder)


# --- Anchors ------------------------------------------------------------------------------------------------------


def give_permanent_links(app, doctree, docname):
    """Theorems and exercises get the same visible anchor that headings and equations have; ids become unique."""
    if app.builder.format != "html":
        return
    for section in doctree.findall(nodes.section):
        section["ids"] = [name for name in section["ids"] if name not in REPEATED_IDS]
    for box in doctree.findall(nodes.Admonition):
        kind = next((PERMANENT[name] for name in box.get("classes", []) if name in PERMANENT), None)
        title = box.next_node(nodes.title)
        if kind and title is not None and box["ids"]:
            anchor = (
                f'<a class="headerlink" href="#{box["ids"][0]}" title="Link to this {kind}" '
                f'aria-label="Link to this {kind}">#</a>'
            )
            title += nodes.raw("", anchor, format="html")


# --- Downloads ----------------------------------------------------------------------------------------------------


def offer_downloads(app, pagename, templatename, context, doctree):
    """A menu in the header of each chapter with its source, its notebook and its printable form."""
    name = posixpath.basename(pagename)
    offered = [kind for kind in os.environ.get("LOWDIM_DOWNLOADS", "").split() if doctree and is_chapter(app, pagename)]
    if not offered:
        return
    entries = {
        "md": ("Source (.md)", "fas fa-file-lines", f"_sources/{context.get('sourcename')}"),
        "ipynb": ("Notebook (.ipynb)", "fas fa-code", f"{DOWNLOADS}/{name}.ipynb"),
        "pdf": ("Printable (.pdf)", "fas fa-file-pdf", f"{DOWNLOADS}/{name}.pdf"),
    }
    buttons = [
        {
            "type": "link",
            "url": context["pathto"](path, 1),
            "text": text,
            "tooltip": f"Download this chapter: {text}",
            "icon": icon,
            "label": f"download-{kind}-button",
        }
        for kind, (text, icon, path) in entries.items()
        if kind in offered
    ]
    context["header_buttons"].insert(
        0,
        {
            "type": "group",
            "tooltip": "Download this chapter",
            "icon": "fas fa-download",
            "label": "download-buttons",
            "buttons": buttons,
        },
    )


def is_chapter(app, docname):
    return "kernelspec" in app.env.metadata.get(docname, {})


# --- Valid and accessible HTML ------------------------------------------------------------------------------------


def mend_body(app, pagename, templatename, context, doctree):
    """Undo what docutils and the theme get wrong in the body: a list role around elements that are no list items."""
    body = context.get("body")
    if body:
        body = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
        context["body"] = body.replace(' role="doc-biblioentry"', "")


def setup(app):
    app.connect("config-inited", share_explorer_assets)
    app.connect("doctree-resolved", move_frames_to_files)
    app.connect("doctree-resolved", give_permanent_links)
    app.connect("html-page-context", mend_body)
    # After the theme, which begins its list of header buttons anew for each page.
    app.connect("html-page-context", offer_downloads, priority=900)
    app.connect("build-finished", drop_unused_frames)
    app.add_css_file("explorer.css")
    app.add_js_file("explorer.js", loading_method="defer")
    return {"version": "1", "parallel_read_safe": True}
