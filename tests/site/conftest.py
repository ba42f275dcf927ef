"""A local server over the built site, and one careful visit to each page that the tests look at."""

import pytest

from tests.site.browsing import SITE, Visitor, site_pages
from tools import serve


def pytest_generate_tests(metafunc):
    if "page_path" in metafunc.fixturenames:
        metafunc.parametrize("page_path", site_pages())


@pytest.fixture(scope="session")
def site():
    assert (SITE / "index.html").exists(), "the site is not built: run `make book` first"
    return SITE


@pytest.fixture(scope="session")
def address(site):
    """Where the site is served."""
    with serve.serving(site) as address:
        yield address


@pytest.fixture(scope="session")
def visitor(browser, address):
    return Visitor(browser, address)


@pytest.fixture
def visit(visitor, page_path):
    return visitor.visit(page_path)
