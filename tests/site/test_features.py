"""What the site offers beyond text: search, downloads, anchors, the ledger, the map, pages from a disk."""

import json
from functools import cache

import nbformat
import pytest
from bs4 import BeautifulSoup

from tests.site.browsing import SITE, Visit, explorer_pages, site_pages
from tools import execute, pdf, sources

CHAPTERS = sources.chapters()


@pytest.fixture(params=CHAPTERS, ids=lambda source: source.name)
def chapter(request):
    return request.param


@cache
def soup(path):
    """A page, parsed once: the ledger alone looks hundreds of times into the chapters."""
    return BeautifulSoup((SITE / path).read_text("utf8"), "html.parser")


# --- Search and navigation ----------------------------------------------------------------------------------------


def test_search_finds_a_word_of_a_chapter(visitor):
    visit = Visit()
    page = visitor.open("search.html?q=equator", visit)
    page.wait_for_selector("#search-results li a")
    results = page.locator("#search-results").inner_text()
    page.close()
    assert "The information exponent" in results
    assert not visit.external + visit.errors


def test_every_page_leads_to_its_neighbours():
    order = sources.toc_files(sources.read_toc())
    for before, here, after in zip([None, *order], order, [*order[1:], None], strict=False):
        links = {link.get("title"): link["href"] for link in soup(f"{here}.html").select(".prev-next-area a")}
        assert ("previous page" in links) == (before is not None) and ("next page" in links) == (after is not None)
        assert after is None or links["next page"].endswith(f"{after.rsplit('/', 1)[-1]}.html")


def test_the_map_shows_every_chapter_and_its_question():
    page = soup(f"{sources.read_toc()['root']}.html")
    for source in CHAPTERS:
        address = f"../{source.docname}.html"
        assert page.select(f'.lowdim-map a[href="{address}"]')
        entry = page.select_one(f'.lowdim-questions a.chapter[href="{address}"]').find_parent("li")
        assert sources.front_matter(source.path)["question"] in entry.get_text()


# --- Downloads ----------------------------------------------------------------------------------------------------


def test_a_chapter_can_be_downloaded_in_three_forms(chapter):
    links = [
        link["href"].removeprefix("../") for link in soup(f"{chapter.docname}.html").select(".dropdown-item[href]")
    ]
    files = {kind: SITE / next(link for link in links if link.endswith(f".{kind}")) for kind in ("md", "ipynb", "pdf")}
    assert files["md"].read_text("utf8") == chapter.path.read_text("utf8")
    nbformat.validate(nbformat.read(files["ipynb"], 4))
    assert files["pdf"].read_bytes().startswith(b"%PDF") and files["pdf"].stat().st_size > 200_000


def test_paper_shows_the_article_and_its_solutions(visitor, chapter):
    page = visitor.open(f"{chapter.docname}.html", Visit())
    page.emulate_media(media="print")
    solution = page.locator("div.solution section").first
    assert not solution.is_visible()
    page.evaluate(pdf.PREPARE)
    assert solution.is_visible()
    assert page.locator("article h1").first.is_visible()
    for hidden in (".bd-sidebar-primary", ".bd-header-article", ".lowdim-controls"):
        assert not page.locator(hidden).first.is_visible()
    page.close()


# --- Anchors ------------------------------------------------------------------------------------------------------


def test_statements_and_equations_have_permanent_anchors(chapter):
    page = soup(f"{chapter.docname}.html")
    anchored = {link["href"].removeprefix("#") for link in page.select("a.headerlink")}
    boxes = [box["id"] for box in page.select("div.proof[id]:not([id=proof]), div.exercise[id]")]
    equations = [box["id"] for box in page.select('div.math[id^="equation-"]')]
    assert boxes and equations
    assert set(boxes) | set(equations) <= anchored
    assert all("-" in name and not name.startswith("id") for name in boxes), "an anchor that a new box would move"


# --- The ledger ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def claims():
    return json.loads(execute.LEDGER.read_text("utf8"))


def test_the_ledger_lists_every_claim_with_a_link_to_its_place(claims):
    rows = soup("book/claims.html").select("#ledger tbody tr")
    assert [row.th.get_text() for row in rows] == [claim["name"] for claim in claims]
    for row, claim in zip(rows, claims, strict=True):
        path, anchor = row.th.a["href"].removeprefix("../").split("#")
        assert path == f"{claim['docname']}.html"
        assert soup(path).find(id=anchor), f"no {anchor} in {path}"


def test_the_ledger_counts_per_chapter(claims):
    counts = {
        row.th.get_text(): row.td.get_text() for row in soup("book/claims.html").select("table")[0].select("tbody tr")
    }
    assert counts["All chapters"] == str(len(claims))
    for title in {claim["title"] for claim in claims}:
        assert counts[title] == str(sum(claim["title"] == title for claim in claims))


def shown_rows(page):
    return page.locator("#ledger tbody tr:visible")


def test_the_ledger_is_sorted_and_filtered(visitor, claims):
    visit = Visit()
    page = visitor.open("book/claims.html", visit)
    measured = [float(claim["measured"]) for claim in claims]  # an infinite threshold is the text "inf"
    button = page.get_by_role("button", name="Measured")
    for expected in (sorted(measured), sorted(measured, reverse=True)):
        button.click()
        values = page.locator("#ledger tbody tr td:nth-child(4) data").evaluate_all(
            "all => all.map(d => Number(d.value.replace('inf', 'Infinity')))"
        )
        assert values == expected
    assert page.locator("#ledger th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.get_by_label("Words").fill("gradient norm")
    wanted = [claim for claim in claims if "gradient norm" in claim["name"]]
    assert 0 < shown_rows(page).count() < len(claims) and shown_rows(page).count() >= len(wanted)
    assert f"of {len(claims)} claims shown" in page.get_by_role("status").inner_text()
    page.get_by_label("Words").fill("")
    page.get_by_role("combobox", name="Chapter").select_option(claims[-1]["title"])
    assert shown_rows(page).count() == sum(claim["title"] == claims[-1]["title"] for claim in claims)
    page.close()
    assert not visit.errors


# --- From a disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", explorer_pages())
def test_a_page_works_without_a_server(browser, path):
    context = browser.new_context(offline=True)
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((SITE / path).as_uri(), wait_until="load")
    page.evaluate("() => window.MathJax.startup.promise.then(() => true)")
    assert page.locator("mjx-container").count() > 20
    explorer = page.locator(".lowdim-explorer").first
    before = explorer.locator("img").get_attribute("src")
    slider = explorer.locator("input").first
    slider.focus()
    page.keyboard.press("ArrowLeft" if slider.evaluate("s => s.value === s.max") else "ArrowRight")
    image = explorer.locator("img")
    assert image.get_attribute("src") != before
    page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
    context.close()
    assert not errors


def test_there_is_no_stray_page():
    wanted = {f"{docname}.html" for docname in sources.toc_files(sources.read_toc())}
    assert set(site_pages()) - wanted == {"search.html"}
