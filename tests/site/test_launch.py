"""The button that opens a chapter in Colab: there with the right address, or not at all."""

import pytest
from bs4 import BeautifulSoup

from tests.site.browsing import SITE, site_pages
from tools import address, sources

CHAPTERS = {f"{source.docname}.html": source for source in sources.chapters()}


@pytest.mark.parametrize("path", [str(path) for path in site_pages()])
def test_chapters_alone_open_in_colab_and_only_with_an_address(site, path):
    page = BeautifulSoup((SITE / path).read_text("utf8"), "html.parser")
    found = [link["href"] for link in page.select("a.btn-colab")]
    source = CHAPTERS.get(path)
    expected = address.colab(f"{source.name}.ipynb") if source else None
    assert found == ([expected] if expected else [])
