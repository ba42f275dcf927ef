def prepare_checks(packed):
    """Write the public tests beside this notebook; return what checks them (Otter, installed on Colab if missing)."""
    import base64
    import importlib
    import importlib.metadata
    import importlib.util
    import json
    import pathlib
    import subprocess
    import sys
    import tempfile
    import zlib

    if importlib.util.find_spec("otter") is None:
        try:
            importlib.import_module("google.colab")
        except ImportError:
            raise ModuleNotFoundError("The checks need Otter: pip install otter-grader") from None
        kept = ("numpy", "torch", "pandas", "ipython", "ipykernel", "jupyter-client", "tornado", "traitlets")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as versions:
            versions.write("\n".join(f"{name}=={importlib.metadata.version(name)}" for name in kept))
            versions.flush()
            command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*command, "-c", versions.name, "otter-grader>=7,<8"], check=True)
        importlib.invalidate_caches()
    folder = pathlib.Path("checks")  # not "tests": that is where a grader puts its own
    folder.mkdir(exist_ok=True)
    for name, text in json.loads(zlib.decompress(base64.b64decode(packed))).items():
        (folder / name).write_text(text, "utf8")
    import otter

    return otter.Notebook(tests_dir=str(folder))


grader = prepare_checks("PACKED_TESTS")
