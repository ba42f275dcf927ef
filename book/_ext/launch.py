"""The button "Colab" in the header of every chapter. It leads to the chapter's notebook on the branch `notebooks`.

The theme's own launch buttons cannot do that: they point at the page's source, Markdown, which Colab does not open.
The repository's address comes from the environment (tools/address.py); with none known there is no button.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # Jupyter Book starts elsewhere
from tools import address


def remember_repository(app, config):
    """Make the address a setting, so that a change of it renews the pages."""
    config.book_repository = address.repository() or ""


def add_button(app, pagename, templatename, context, doctree):
    if not app.config.book_repository or "kernelspec" not in app.env.metadata.get(pagename, {}):
        return
    context["header_buttons"].insert(
        0,
        {
            "type": "link",
            "url": address.colab(f"{Path(pagename).name}.ipynb"),
            "tooltip": "Open in Colab: run and change this chapter",
            "icon": "fas fa-rocket",
            "text": "\N{NO-BREAK SPACE}Colab",
            "label": "colab",
        },
    )


def setup(app):
    app.add_config_value("book_repository", "", "html")
    app.connect("config-inited", remember_repository)
    app.connect("html-page-context", add_button, priority=600)  # behind the theme, which makes the list
    return {"version": "1", "parallel_read_safe": True}
