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


def pytest_xdist_make_scheduler(config, log):
    """With --dist=loadgroup, tests with the same last parameter (a page, a chapter) go to one worker, so that what they
    share, a visit or an execution, is made once. The groups of xdist itself get lost: they need pytest < 9.2."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByLastParameter(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            name, _, parameters = nodeid.partition("[")
            return parameters.removesuffix("]").rsplit("-", 1)[-1] or name

    return ByLastParameter(config, log)
