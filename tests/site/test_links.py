"""Links inside the site resolve, and every page can be reached. Read from the files: no network, no browser."""

from functools import cache
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from bs4 import BeautifulSoup

from tests.site.browsing import SITE, site_pages
from tools import sources

ADDRESSES = {"a": "href", "link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}


@cache
def parsed(path):
    return BeautifulSoup((SITE / path).read_text("utf8"), "html.parser")


@cache
def anchors(path):
    return {tag[key] for key in ("id", "name") for tag in parsed(path).find_all(attrs={key: True})}


def local_links(path):
    """(as written, target path, fragment) of every link of a page that stays within the site."""
    for tag in parsed(path).find_all(list(ADDRESSES)):
        written = tag.get(ADDRESSES[tag.name])
        if written and not urlsplit(written).scheme and not written.startswith("//"):
            target = urlsplit(urljoin(path, written))
            yield written, unquote(target.path) or path, unquote(target.fragment)


@pytest.mark.usefixtures("site")
def test_links_and_anchors_resolve(page_path):
    broken = []
    for written, target, fragment in local_links(page_path):
        file = SITE / target
        if not file.is_file():
            broken.append(f"{written}: no such file")
        elif fragment and target.endswith(".html") and fragment not in anchors(target):
            broken.append(f"{written}: no such place on that page")
    assert not broken


@pytest.mark.usefixtures("site")
def test_no_page_is_an_orphan():
    """Everything is reachable by links from the first page."""
    first = f"{sources.read_toc()['root']}.html"
    reached, waiting = {first}, [first]
    while waiting:
        for _, target, _ in local_links(waiting.pop()):
            if target.endswith(".html") and target not in reached and (SITE / target).is_file():
                reached.add(target)
                waiting.append(target)
    assert set(site_pages()) <= reached


@pytest.mark.usefixtures("site")
def test_every_page_of_the_contents_is_built():
    wanted = {f"{docname}.html" for docname in sources.toc_files(sources.read_toc())}
    assert wanted <= set(site_pages())
