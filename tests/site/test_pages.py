"""Every page of the built site, as a reader's browser meets it."""

import json
import re

import pytest
from bs4 import BeautifulSoup

from tests.site.browsing import SITE, Visit, explorer_pages, site_pages

RAW_MATHEMATICS = re.compile(r"\$|\\\(|\\\[|\\begin\{")
LIKE_A_FILE = re.compile(r"\.(png|svg|jpe?g|gif|webp)$|^[\w./-]*/[\w./-]*$|^[0-9a-f]{16,}$", re.IGNORECASE)


def test_the_site_has_pages():
    assert len(site_pages()) > 5


def test_nothing_is_asked_of_another_server(visit):
    assert not visit.external


def test_nothing_is_missing(visit):
    assert not visit.missing


def test_the_console_shows_no_error(visit):
    assert not visit.errors


def test_dark_mode_shows_no_error(visitor, page_path):
    visit = visitor.visit(page_path, "dark")
    assert visit.scheme == "dark"
    assert not visit.errors + visit.external + visit.missing


def test_equations_are_typeset(visit):
    assert not visit.untypeset
    assert not visit.math_errors
    found = RAW_MATHEMATICS.search(visit.text)
    assert not found, f"raw mathematics: …{visit.text[max(0, found.start() - 60) : found.end() + 60]}…"


def test_images_are_shown(visit):
    assert not [image["source"] for image in visit.images if image["width"] == 0]


def test_images_keep_their_proportions(visit):
    shown = [image for image in visit.images + visit.images_on_phone if image["content"] and image["stretch"]]
    assert not [image for image in shown if abs(image["stretch"] - 1) > 0.03]


def is_empty_talk(alt):
    """A description that says nothing: a file's name, or a few words such as "a figure"."""
    return bool(LIKE_A_FILE.search(alt.strip())) or len(alt.split()) < 5


def test_images_are_described(visit):
    assert not [image for image in visit.images if not image["alt"].strip() or LIKE_A_FILE.search(image["alt"].strip())]
    alts = [image["alt"] for image in visit.images if image["content"]]
    assert not [alt for alt in alts if is_empty_talk(alt)]
    assert len(alts) == len(set(alts)), "two images of the page have the same description"


def test_a_phone_does_not_scroll_sideways(visit):
    assert not visit.too_wide


def test_index_leads_to_the_first_page(visitor):
    visit = Visit()
    page = visitor.open("index.html", visit)
    page.wait_for_url("**/book/intro.html")
    page.close()
    # Jupyter Book's bare redirect names no icon, so that a browser may ask in vain for one: no error of a page.
    assert not visit.external


def test_some_page_has_an_explorer():
    assert explorer_pages()


@pytest.mark.parametrize("with_explorer", explorer_pages())
def test_every_slider_changes_picture_value_and_description(visitor, with_explorer):
    visit = Visit()
    page = visitor.open(with_explorer, visit)
    for explorer in page.locator(".lowdim-explorer").all():
        image = explorer.locator("img").first
        sliders = explorer.locator("input[type=range]").all()
        assert sliders
        for slider, output in zip(sliders, explorer.locator("output").all(), strict=True):
            before = image.get_attribute("src"), output.text_content(), image.get_attribute("alt")
            start = slider.input_value()
            slider.focus()
            page.keyboard.press("Home" if slider.evaluate("s => s.value === s.max") else "End")
            after = image.get_attribute("src"), output.text_content(), image.get_attribute("alt")
            assert all(new != old for new, old in zip(after, before, strict=True)), (before, after)
            page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
            # Back to the start: far out, two parameters may have nothing to add to each other.
            slider.evaluate("(s, start) => { s.value = start; s.dispatchEvent(new Event('input')); }", start)
            assert image.get_attribute("src") == before[0]
    page.close()
    assert not visit.errors + visit.missing + visit.external


@pytest.mark.parametrize("with_explorer", explorer_pages())
def test_every_frame_is_described(with_explorer):
    page = BeautifulSoup((SITE / with_explorer).read_text("utf8"), "html.parser")
    for explorer in page.select(".lowdim-explorer"):
        alts = json.loads(explorer.find("script", type="application/json").string)["alts"]
        assert len(set(alts)) == len(alts)
        assert not [alt for alt in alts if is_empty_talk(alt)]
