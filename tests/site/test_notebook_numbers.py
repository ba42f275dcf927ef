"""Equations, figures, theorems and exercises have the same numbers in a notebook as on the site."""

import re

import nbformat
import pytest
from bs4 import BeautifulSoup

from tools import notebooks, sources

NAMED = re.compile(r"(?:\*\*|^#+ )(?:<a [^>]*></a>)*((?:[A-Z][a-z]+\.?) [\d.]*\d)(?=[ .*<]|$)", re.MULTILINE)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    paths = notebooks.write(tmp_path_factory.mktemp("notebooks"))
    return {path.stem: nbformat.read(path, as_version=4) for path in paths}


@pytest.mark.parametrize("source", sources.chapters(), ids=lambda source: source.name)
def test_numbers_agree(site, written, source):
    page = BeautifulSoup((site / f"{source.docname}.html").read_text("utf8"), "html.parser")
    text = "\n\n".join(cell.source for cell in written[source.name].cells if cell.cell_type == "markdown")
    equations = [re.search(r"\(([\d.]+)\)", span.text)[1] for span in page.select("span.eqno")]
    assert re.findall(r"\\tag\{([^}]+)\}", text) == equations
    captions = [span.text.strip() for span in page.select("span.caption-number")]
    numbered = [caption for caption in captions if re.search(r"\d", caption)]
    assert numbered and NAMED.findall(text) == numbered
