"""Machines that imitate Colab, one for each notebook."""

import os
import time

import pytest

from tools import colab_imitation, sources

BOX_MINUTES = float(os.environ.get("LOWDIM_COLAB_MINUTES", "30"))


def pytest_generate_tests(metafunc):
    """LOWDIM_COLAB_NOTEBOOKS: how many notebooks to execute (default: all of them)."""
    if "chapter" in metafunc.fixturenames:
        count = os.environ.get("LOWDIM_COLAB_NOTEBOOKS", "all")
        chapters = sources.chapters()
        chosen = chapters if count == "all" else chapters[: int(count)]
        metafunc.parametrize("chapter", [source.name for source in chosen], scope="module")


@pytest.fixture(scope="session", autouse=True)
def prepared():
    """Base image, wheel and notebooks; tools.run_tests makes them before its workers start."""
    if os.environ.get("LOWDIM_COLAB_PREPARED") != "1":
        colab_imitation.prepare()


@pytest.fixture(scope="session")
def seconds_left():
    """How much of the time box is left: the job must not take longer on two cores."""
    began = float(os.environ.get("LOWDIM_COLAB_BEGAN") or time.time())
    return lambda: BOX_MINUTES * 60 - (time.time() - began)


@pytest.fixture
def machine(tmp_path):
    """A fresh Colab."""
    return colab_imitation.Machine.create(tmp_path / "machine")
