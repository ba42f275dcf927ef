"""Every generated notebook runs from top to bottom on a machine like Colab's, and leaves its packages as they were."""

from datetime import datetime

import nbformat
import pytest

from tools import colab_imitation, execute, notebooks, sources

SETUP_SECONDS = 60


@pytest.fixture(scope="module")
def visit(chapter, tmp_path_factory, seconds_left):
    """What a reader gets who opens a chapter in Colab and chooses Run all: notebook, packages before, machine after."""
    left = seconds_left()
    assert left > 0, "the time box of this job is used up (LOWDIM_COLAB_MINUTES)"
    machine = colab_imitation.Machine.create(tmp_path_factory.mktemp(chapter) / "machine")
    before = machine.installed()
    notebook = nbformat.read(colab_imitation.NOTEBOOKS / f"{chapter}.ipynb", as_version=4)
    # Colab sets no threads: those of this process, set by tools.run_tests, are this notebook's share of the cores.
    machine.execute(notebook, timeout=int(left), LOWDIM_INSTALL_SOURCE=str(colab_imitation.wheel()))
    return notebook, before, machine


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def seconds(cell):
    times = cell.metadata["execution"]
    start, end = (times[key].replace("Z", "+00:00") for key in ("iopub.execute_input", "shell.execute_reply"))
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def test_the_base_packages_stay_and_only_the_library_comes(visit):
    _, before, machine = visit
    assert "lowdim" not in before, "the machine must start without the library, or nothing is proved"
    assert machine.installed() == before | {"lowdim": notebooks.project()["version"]}


def test_the_library_is_the_one_from_the_wheel(visit):
    _, _, machine = visit
    assert (machine.packages / "lowdim" / "__init__.py").exists()


def test_the_first_cell_is_quick_and_names_the_device(visit):
    first = code_cells(visit[0])[0]
    text = "".join(execute.output_text(output) for output in first.outputs)
    assert f"lowdim {notebooks.project()['version']}, scale quick, device " in text
    assert "Runtime → Change runtime type" in text or "device cuda" in text
    assert seconds(first) < SETUP_SECONDS


def test_no_warning_meets_the_reader(visit):
    noisy = [execute.output_text(output) for output in outputs(visit[0])]
    assert not [text for text in noisy if execute.WARNING.search(text)]


def test_figures_claims_and_explorers_are_there(visit):
    shown = outputs(visit[0])
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert any("lowdim-explorer" in output.get("data", {}).get("text/html", "") for output in shown)
    rows = sources.claim_rows(visit[0])
    assert rows and {row["verdict"] for row in rows} == {"holds"}


def test_numbers_of_the_prose_are_printed(visit, chapter):
    glued = notebooks.glued(visit[0])
    printed = {output.get("data", {}).get("text/plain") for output in outputs(visit[0])}
    assert {f"{name} = {text}" for name, text in glued.items()} <= printed
