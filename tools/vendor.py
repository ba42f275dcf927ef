"""Recreate the third-party files that the site serves itself, from their npm packages.

    python -m tools.vendor

The result is committed under book/_static/vendor/, so neither a build nor a reader needs another server. Run this only
to change a version; it needs `npm`.
"""

import argparse
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tools import sources

VENDOR = sources.ROOT / "book" / "_static" / "vendor"
MATHJAX = "mathjax@3.2.2"
# MathJax looks for its fonts beside the script, so the layout of the package is kept.
MATHJAX_FILES = ("LICENSE", "es5/tex-chtml-full.js", "es5/output/chtml/fonts/woff-v2")


def unpack(package, folder):
    """Download an npm package and unpack it; return the folder with its files."""
    packed = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True, text=True
    )
    with tarfile.open(Path(folder) / packed.stdout.strip().splitlines()[-1]) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / "package"


def vendor_mathjax():
    """The one MathJax script that the pages load, its fonts and its licence."""
    target = VENDOR / "mathjax"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        package = unpack(MATHJAX, folder)
        for name in MATHJAX_FILES:
            origin, copy = package / name, target / name.removeprefix("es5/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(origin, copy) if origin.is_dir() else shutil.copyfile(origin, copy)
    print(f"{MATHJAX}: {sources.shown(target)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    vendor_mathjax()


if __name__ == "__main__":
    main()
