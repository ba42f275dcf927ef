# @title Set-up: run this cell first { display-mode: "form" }
# In Colab this installs the book's library unless it is there, applies the two settings and names the device.
# Elsewhere it changes nothing: there the environment variables LOWDIM_SCALE and LOWDIM_SEED are the settings.
SCALE = "quick"  # @param ["quick", "full"]
SEED = 0  # @param {type: "integer"}


def set_up(version, source):
    """Install lowdim `version` from `source` (a wheel's address) on Colab only, leaving all other packages alone."""
    import os
    import re
    import subprocess
    import sys
    import tempfile
    from importlib import import_module, invalidate_caches, metadata

    def installed(name):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    def pip(*arguments):
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stdout}\nRun this cell again, or report it.")
        invalidate_caches()

    source = os.environ.get("LOWDIM_INSTALL_SOURCE") or source
    try:
        import_module("google.colab")
    except ImportError:
        if not installed("lowdim"):
            print(f"lowdim is missing. Install it: pip install {source or '.  (in a clone of the book)'}")
        return
    if installed("lowdim") != version:
        if not source:
            raise RuntimeError(
                f"This notebook was made without the address of its repository, so it cannot find lowdim {version}. "
                "In a clone of the book run `pip wheel --no-deps .`, upload the wheel here (folder icon, left), "
                f"then run `%pip install --no-deps lowdim-{version}-py3-none-any.whl` and this cell again."
            )
        pip("--no-deps", source)
        needs = [re.match(r"[\w.-]+", line)[0] for line in metadata.requires("lowdim") if "extra ==" not in line]
        missing = [name for name in needs if not installed(name)]
        if missing:
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as kept:
                kept.write("\n".join(f"{name}=={installed(name)}" for name in ("numpy", "torch")))
                kept.flush()
                pip("-c", kept.name, *missing)
    os.environ |= {"LOWDIM_SCALE": str(SCALE), "LOWDIM_SEED": str(SEED)}
    lowdim, device = import_module("lowdim"), import_module("lowdim.device").resolve()
    lowdim.scale(quick=SCALE, full=SCALE), lowdim.seed(0)  # a setting that is not allowed says so here
    print(f"lowdim {lowdim.__version__}, scale {SCALE}, device {device}.")
    if device.type == "cpu":
        print("For a GPU: menu Runtime → Change runtime type → a GPU, then Run all.")


set_up("VERSION", "SOURCE")
