"""An imitation of Colab's machine, to run the generated notebooks as a reader there would.

    python -m tools.colab_imitation      build what tests/colab needs: the base image, the wheel and the notebooks

The base image is a virtual environment with the packages of tests/colab/base_image.txt and nothing of ours. It is built
once, in _build/colab-env/<hash of the pins>. Each notebook gets a `Machine` of its own, a fresh environment on top of
the base, so that installing into it touches nothing else, and with a package `google.colab`, by which notebooks know
Colab.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

from tools import execute, notebooks, sources

PINS = sources.ROOT / "tests" / "colab" / "base_image.txt"
NOTEBOOKS = sources.BUILD / "colab" / "notebooks"
WHEELS = sources.BUILD / "colab" / "wheel"
# Of two distributions with one name the first is the one that is imported, so it must win.
LIST_PACKAGES = """
import importlib.metadata, json
print(json.dumps({found.name: found.version for found in reversed(list(importlib.metadata.distributions()))}))
"""


def run(*command, **options):
    """Run a command that must succeed; return what it wrote."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def base():
    """The folder of the base image for the present pins and Python; it exists after `build_base`."""
    key = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return sources.BUILD / "colab-env" / key


def build_base():
    """Build the base image unless it is there. A half-built one has no stamp and is built again."""
    folder = base()
    if (folder / ".ready").exists():
        return
    print("Building the imitation of Colab's base image (two minutes, once)", flush=True)
    shutil.rmtree(folder.parent, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(*pip, "--no-deps", "-r", PINS)
    (folder / ".ready").touch()


def wheel():
    """The wheel that the notebooks install; it exists after `prepare`."""
    return WHEELS / Path(notebooks.wheel_path()).name


def prepare():
    """All that the tests need; fast when nothing has changed."""
    build_base()
    shutil.rmtree(WHEELS, ignore_errors=True)
    notebooks.build_wheel(WHEELS)
    notebooks.write(NOTEBOOKS)


def packages_of(environment):
    """Where an environment keeps its packages."""
    places = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("purelib", "venv", places))


@dataclass(frozen=True)
class Machine:
    """A fresh environment that sees the base image's packages."""

    folder: Path

    @classmethod
    def create(cls, folder, colab=True, without=()):
        """A new machine in `folder`. `colab`: with `google.colab`; `without`: names of packages that it lacks."""
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        machine = cls(folder)
        # The base stays outside the new environment: pip replaces nothing there, a newer package only hides it.
        seen = packages_of(base())
        if without:
            seen = folder.with_name(f"{folder.name}-base")
            seen.mkdir()
            for entry in packages_of(base()).iterdir():
                if not entry.name.startswith(without):
                    (seen / entry.name).symlink_to(entry)
        (machine.packages / "base_image.pth").write_text(f"{seen}\n", "utf8")
        if colab:
            package = machine.packages / "google" / "colab"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text('"""Present, as on Colab."""\n', "utf8")
        return machine

    @property
    def packages(self):
        return packages_of(self.folder)

    @property
    def python(self):
        return self.folder / "bin" / "python"

    def installed(self):
        """{distribution: version} as Python on this machine finds them."""
        return json.loads(run(self.python, "-c", LIST_PACKAGES, env=self.environment()))

    def environment(self, **settings):
        """Environment variables of a program on this machine: nothing of the book's own environment leaks in."""
        foreign = ("PYTHON", "VIRTUAL_ENV", "LOWDIM_", "BOOK_", "GITHUB_", "JUPYTER", "IPYTHON", "MPL")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        own = {"IPYTHONDIR": str(self.folder / "ipython"), "NUMBA_CACHE_DIR": str(self.folder / "numba")}
        return {**clean, **own, **settings}

    def execute(self, notebook, timeout=None, **settings):
        """Execute a notebook in place, in a kernel of this machine; raises as nbclient does."""
        specification = self.folder / "kernels" / "python3"
        specification.mkdir(parents=True, exist_ok=True)
        command = [str(self.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        text = json.dumps({"argv": command, "display_name": "Python 3", "language": "python"})
        (specification / "kernel.json").write_text(text, "utf8")
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(specification.parent)], ensure_native_kernel=False),
            config=execute.ENCRYPTED,
        )
        client = NotebookClient(notebook, km=manager, timeout=timeout, record_timing=True)
        client.resources = {"metadata": {"path": str(self.folder)}}
        client.execute(env=self.environment(**settings), cleanup_kc=True)
        return notebook

    def run_cells(self, *cells, **settings):
        """Execute a few lines of code as the cells of a new notebook; return the notebook."""
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        return self.execute(made, timeout=300, **settings)


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    prepare()
    print(f"{sources.shown(base())}\n{sources.shown(wheel())}\n{sources.shown(NOTEBOOKS)}")


if __name__ == "__main__":
    main()
