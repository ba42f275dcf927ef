"""Problem sets built once for all tests of coursework."""

import pytest

from tools import sources
from tools.coursework import build, masters, session

KEY = "tests"


@pytest.fixture(scope="session")
def edition(tmp_path_factory):
    """A function that builds a set under the key of the tests (once) and returns its folder."""
    out = sources.BUILD / "coursework"
    session.warm_up()

    def built(name):
        folder = build.folder_of(KEY, name, out)
        stamp = folder / f"built-{state(name)}"
        if not stamp.exists():
            build.build(name, KEY, out)
            stamp.touch()
        return folder

    return built


def state(name):
    """Changes when the library or the master changes."""
    return sources._digest([sources.library_hash().encode(), (masters.FOLDER / f"{name}.md").read_bytes()])
