"""The browser that the tests of the site and of the interactive figures share."""

import os

import pytest


@pytest.fixture(scope="session")
def browser():
    """A real Chromium that reaches no server but this machine's own."""
    from playwright.sync_api import sync_playwright

    from tools import ensure_browser

    chromium = os.environ.get("LOWDIM_CHROMIUM") or ensure_browser.ensure()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ensure_browser.OFFLINE)
        yield browser
        browser.close()
