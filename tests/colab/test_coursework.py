"""A student opens a problem set in Colab: the set-up cell brings library, Otter and tests, and checks give hints."""

import json

import nbformat

from tools import colab_imitation
from tools.coursework import build, masters


def test_a_problem_set_is_checked_on_colab(machine, tmp_path):
    name = masters.names()[0]
    build.build(name, "colab", tmp_path, run=False)
    path = build.folder_of("colab", name, tmp_path) / "student" / f"{name}.ipynb"
    notebook = nbformat.read(path, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [code[0], *[cell for cell in code if build.is_check(cell)][:1]]
    before = machine.installed()
    machine.execute(notebook, timeout=600, LOWDIM_INSTALL_SOURCE=str(colab_imitation.wheel()))
    said = json.dumps([out.get("data", out.get("text", "")) for out in notebook.cells[1].outputs], ensure_ascii=False)
    assert "Test case failed" in said, said
    after = machine.installed()
    assert {key: after[key] for key in ("numpy", "torch", "pandas", "ipython")} == {
        key: before[key] for key in ("numpy", "torch", "pandas", "ipython")
    }
