"""A local server over the built site, and one careful visit to each page that the tests look at."""

import functools
import http.server
import threading

import pytest

from tests.site.browsing import SITE, Visitor, site_pages


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

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def visitor(browser, address):
    return Visitor(browser, address)


@pytest.fixture
def visit(visitor, page_path):
    return visitor.visit(page_path)
