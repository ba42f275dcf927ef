"""The first cell and the interactive figures on a machine like Colab's, and on one that is not Colab."""

import pytest
from nbclient.exceptions import CellExecutionError

from tools import colab_imitation, execute, notebooks, sources

PROBE = "import sys; print(sorted(name for name in sys.modules if name == 'lowdim' or name == 'torch'))"

EXPLORER = """
import numpy as np
from matplotlib.figure import Figure
from lowdim import explore

def wave(f, law):
    picture = Figure(figsize=(4, 2))
    t = np.linspace(0, 1, 50)
    picture.subplots().plot(t, np.sin(f * t) if law == "sin" else np.cos(f * t))
    return picture

shown = explore.figure(wave, f=[1, 2, 3], law=["sin", "cos"], live=True)
shown
"""

MOVE = """
import ipywidgets
slider, menu, image = shown.controls.children[1], shown.controls.children[2], shown.controls.children[-1]
slider.value = 2
first = bytes(image.value)
menu.value = "cos"
print(ipywidgets.__version__, type(slider).__name__, first[:4] == b"\\x89PNG", first != bytes(image.value))
"""


def setup_cell():
    return notebooks.setup_cell()


def text_of(notebook, number=0):
    return "".join(execute.output_text(output) for output in notebook.cells[number].outputs)


def source():
    return str(colab_imitation.wheel())


def test_the_imitation_is_older_than_our_pins(machine):
    found = machine.installed()
    assert (found["ipywidgets"], found["ipython"], found["ipykernel"]) == ("7.7.1", "7.34.0", "6.17.1")
    pins = (sources.ROOT / "requirements.txt").read_text("utf8").splitlines()
    for name in ("numpy", "matplotlib", "scipy", "numba", "pillow", "tqdm"):
        assert any(pin.startswith(f"{name}==") for pin in pins)
        assert f"{name}=={found[name]}" not in pins


def test_off_colab_the_first_cell_does_nothing(tmp_path):
    machine = colab_imitation.Machine.create(tmp_path / "machine", colab=False)
    before = machine.installed()
    ran = machine.run_cells(setup_cell(), PROBE, LOWDIM_INSTALL_SOURCE=source())
    assert machine.installed() == before
    assert text_of(ran, 1) == "[]\n", "nothing is imported either"
    assert text_of(ran).startswith("lowdim is missing. Install it: pip install ")


def test_a_library_that_is_there_is_not_installed_again(machine):
    machine.run_cells(setup_cell(), LOWDIM_INSTALL_SOURCE=source())
    again = machine.run_cells(setup_cell(), LOWDIM_INSTALL_SOURCE="https://127.0.0.1:9/nowhere.whl")
    assert "device cpu" in text_of(again) or "device cuda" in text_of(again)


def test_a_missing_small_dependency_comes_along_and_nothing_else_changes(tmp_path):
    machine = colab_imitation.Machine.create(tmp_path / "machine", without=("tqdm",))
    before = machine.installed()
    assert "tqdm" not in before
    machine.run_cells(setup_cell(), LOWDIM_INSTALL_SOURCE=source())
    after = machine.installed()
    assert set(after) - set(before) == {"lowdim", "tqdm"}
    assert {name: after[name] for name in before} == before


def test_without_an_address_the_first_cell_says_what_to_do(machine, monkeypatch):
    for variable in ("BOOK_REPOSITORY", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(CellExecutionError, match=r"without the address of its repository.*pip wheel --no-deps"):
        machine.run_cells(setup_cell())


def test_an_address_that_does_not_answer_is_named(machine):
    with pytest.raises(CellExecutionError, match=r"pip install .*nowhere\.whl failed"):
        machine.run_cells(setup_cell(), LOWDIM_INSTALL_SOURCE=str(machine.folder / "nowhere.whl"))


def test_the_settings_of_the_first_cell_reach_the_library(machine):
    cell = setup_cell().replace('SCALE = "quick"', 'SCALE = "full"').replace("SEED = 0", "SEED = 3")
    ran = machine.run_cells(
        cell, "import lowdim; print(lowdim.scale(quick=1, full=2), lowdim.seed(5))", LOWDIM_INSTALL_SOURCE=source()
    )
    assert text_of(ran, 1) == "2 3005\n"


def test_a_setting_that_does_not_exist_is_refused_in_the_first_cell(machine):
    cell = setup_cell().replace('SCALE = "quick"', 'SCALE = "medium"')
    with pytest.raises(CellExecutionError, match="LOWDIM_SCALE is 'medium'; allowed: quick, full"):
        machine.run_cells(cell, LOWDIM_INSTALL_SOURCE=source())


def test_explorers_work_with_the_old_widgets(machine):
    ran = machine.run_cells(setup_cell(), EXPLORER, MOVE, LOWDIM_INSTALL_SOURCE=source())
    kinds = [set(output.get("data", {})) for output in ran.cells[1].outputs]
    assert any("text/html" in kind for kind in kinds)
    assert any("application/vnd.jupyter.widget-view+json" in kind for kind in kinds)
    assert text_of(ran, 2) == "7.7.1 IntSlider True True\n"
