"""Print the chapters of the built site: <site>/downloads/<chapter>.pdf, by headless Chromium and a print stylesheet.

    python -m tools.pdf [CHAPTER ...]

A chapter is printed again only when its page or the frame around it has changed.
"""

import argparse
import hashlib
from pathlib import Path

from playwright.sync_api import sync_playwright

from tools import ensure_browser, serve, sources

SITE = sources.BUILD / "html"

# Paper has no sliders and nothing to unfold: solutions are printed open, and pictures below the screen must be there.
PREPARE = """async () => {
  await window.MathJax?.startup?.promise;
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  for (const fold of document.querySelectorAll(".toggle-hidden")) fold.classList.remove("toggle-hidden");
  for (const image of document.images) image.loading = "eager";
  await Promise.all([...document.images].map((image) => image.decode().catch(() => {})));
}"""

FOOTER = """<div style="width:100%;margin:0 18mm;font:8pt sans-serif;color:#555;display:flex;
justify-content:space-between"><span>Learning Low-Dimensional Functions · {title}</span>
<span><span class="pageNumber"></span> / <span class="totalPages"></span></span></div>"""

MARGINS = {"top": "18mm", "bottom": "20mm", "left": "18mm", "right": "18mm"}


def stamp_of(page):
    """Changes with the page as built and with the frame around it (styles, scripts)."""
    return hashlib.sha256(page.read_bytes() + sources.frame_hash().encode()).hexdigest()


def outdated(site, selected):
    """The chapters whose printed form is missing or older than their page, with the stamp of that page."""
    for source in selected:
        page = site / f"{source.docname}.html"
        target = site / "downloads" / f"{source.name}.pdf"
        stamp = stamp_of(page)
        kept = stamps(site) / source.name
        if not target.exists() or not kept.exists() or kept.read_text() != stamp:
            yield source, target, stamp


def stamps(site):
    """Beside the site, not in it: a reader has no use for them."""
    return Path(site).parent / "pdf-stamps"


def print_chapters(site, selected):
    """Print what is out of date; returns the paths of the new files."""
    waiting = list(outdated(site, selected))
    if not waiting:
        return []
    stamps(site).mkdir(parents=True, exist_ok=True)
    chromium = ensure_browser.ensure()
    with serve.serving(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ensure_browser.OFFLINE)
        for source, target, stamp in waiting:
            target.parent.mkdir(parents=True, exist_ok=True)
            page = browser.new_page(color_scheme="light")
            page.add_init_script("localStorage.setItem('mode', 'light'); localStorage.setItem('theme', 'light')")
            page.goto(f"{address}/{source.docname}.html", wait_until="networkidle")
            page.evaluate(PREPARE)
            page.pdf(
                path=target,
                format="A4",
                margin=MARGINS,
                display_header_footer=True,
                header_template="<span></span>",
                footer_template=FOOTER.format(title=sources.title(source.read())),
                tagged=True,
                outline=True,
            )
            page.close()
            (stamps(site) / source.name).write_text(stamp)
            print(f"  {source.name}: printed, {target.stat().st_size / 1e6:.1f} MB", flush=True)
        browser.close()
    return [target for _, target, _ in waiting]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CHAPTER", help="only these chapters (default: all)")
    options = parser.parse_args()
    if not print_chapters(SITE, sources.select(options.names)):
        print("Every printed chapter is up to date.")


if __name__ == "__main__":
    main()
