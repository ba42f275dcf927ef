"""Visiting the pages of the built site with a real browser."""

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tools import build_book

SITE = build_book.HTML
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
SCHEMES = ("light", "dark")
AXE = gzip.decompress((Path(__file__).parent / "vendor" / "axe" / "axe.min.js.gz").read_bytes()).decode("utf8")

# Text nodes that a reader can meet, hidden dropdowns included; code may show a dollar, and typeset mathematics is done.
TEXT = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const skipped = "script, style, noscript, template, pre, code, textarea, mjx-container";
  const texts = [];
  while (walker.nextNode()) {
    if (!walker.currentNode.parentElement.closest(skipped)) texts.push(walker.currentNode.textContent);
  }
  return texts.join(" ");
}"""

IMAGES = """() => [...document.images].map(image => ({
  source: image.src.slice(0, 120), alt: image.alt, width: image.naturalWidth,
  content: image.closest("article") !== null,
  stretch: image.width && image.width / image.height / (image.naturalWidth / image.naturalHeight)
}))"""

# Images further down are fetched when a reader comes near them; this reader is everywhere at once.
LOAD_IMAGES = """() => Promise.all([...document.images].map(image => {
  image.loading = "eager";
  return image.decode().catch(() => {});
}))"""

# Elements that stick out of the screen and are not inside something that scrolls by itself.
TOO_WIDE = """() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  const contained = element => element && (
    getComputedStyle(element).overflowX !== "visible" || contained(element.parentElement));
  return [...document.querySelectorAll("main *")]
    .filter(element => element.getBoundingClientRect().right > wide + 1 && !contained(element.parentElement))
    .slice(0, 5).map(element => element.outerHTML.slice(0, 160)).concat("(the page scrolls sideways)");
}"""

UNTYPESET = """() => [...document.querySelectorAll(".math")]
  .filter(element => !element.querySelector("mjx-container")).map(element => element.textContent.slice(0, 80))"""


@dataclass
class Visit:
    """What a browser met on one page."""

    external: list = field(default_factory=list)
    missing: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    text: str = ""
    images: list = field(default_factory=list)
    images_on_phone: list = field(default_factory=list)
    untypeset: list = field(default_factory=list)
    math_errors: int = 0
    too_wide: list = field(default_factory=list)
    scheme: str = ""
    barriers: list = field(default_factory=list)


def barriers(page):
    """What axe-core calls serious or critical on a page."""
    page.evaluate(AXE)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{violation['id']}: {node['html'][:200]} ({node['failureSummary'][:300]})"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def site_pages():
    """The pages of the site, as paths; index.html only leads on to the first of them."""
    pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    return [page for page in pages if not page.startswith("_static/") and page != "index.html"]


def explorer_pages():
    """The pages with interactive figures."""
    return [page for page in site_pages() if 'class="lowdim-explorer' in (SITE / page).read_text("utf8")]


class Visitor:
    """Opens pages, and records each request to another server (which the browser is told not to find)."""

    def __init__(self, browser, address):
        self.address = address
        self.contexts = {scheme: browser.new_context(viewport=DESKTOP, color_scheme=scheme) for scheme in SCHEMES}
        for scheme, context in self.contexts.items():
            context.add_init_script(
                f"localStorage.setItem('mode', '{scheme}'); localStorage.setItem('theme', '{scheme}')"
            )
        self.visits = {}

    def open(self, path, visit, scheme="light"):
        page = self.contexts[scheme].new_page()
        page.on("request", lambda request: self.screen(request.url, visit))
        page.on("response", lambda answer: answer.status >= 400 and visit.missing.append(answer.url))
        page.on("console", lambda message: message.type == "error" and visit.errors.append(message.text))
        page.on("pageerror", lambda error: visit.errors.append(str(error)))
        page.goto(f"{self.address}/{path}", wait_until="load")
        page.wait_for_load_state("networkidle")
        page.evaluate("() => window.MathJax?.startup?.promise?.then(() => true)")
        return page

    def screen(self, url, visit):
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != self.address:
            visit.external.append(url)

    def visit(self, path, scheme="light"):
        """The visit to a page, made once: on a wide screen, and in light mode also on a phone."""
        if (path, scheme) not in self.visits:
            visit = Visit()
            page = self.open(path, visit, scheme)
            page.evaluate(LOAD_IMAGES)
            visit.scheme = page.locator("html").get_attribute("data-theme")
            visit.barriers = barriers(page)
            if scheme == "light":
                self.look_closely(page, visit)
            page.close()
            self.visits[path, scheme] = visit
        return self.visits[path, scheme]

    def look_closely(self, page, visit):
        visit.text = page.evaluate(TEXT)
        visit.images = page.evaluate(IMAGES)
        visit.untypeset = page.evaluate(UNTYPESET)
        visit.math_errors = page.locator("mjx-merror").count()
        page.set_viewport_size(PHONE)
        visit.images_on_phone = page.evaluate(IMAGES)
        visit.too_wide = page.evaluate(TOO_WIDE)
