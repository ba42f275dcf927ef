"""Recreate the third-party files that the project carries, from their npm packages.

    python -m tools.vendor

MathJax, which the site serves itself, goes to book/_static/vendor/, and axe-core, with which the tests look for
barriers to readers, to tests/site/vendor/. Both are committed, so neither a build nor a reader needs another server.
Run this only to change a version; it needs `npm`.
"""

import argparse
import gzip
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tools import sources

# Package, where its files go, which of them, and what to drop from their paths. MathJax looks for its fonts beside its
# script, so the layout of the package is kept.
PACKAGES = (
    (
        "mathjax@3.2.2",
        sources.ROOT / "book" / "_static" / "vendor" / "mathjax",
        ("LICENSE", "es5/tex-chtml-full.js", "es5/output/chtml/fonts/woff-v2"),
        "es5/",
    ),
    ("axe-core@4.14.0", sources.ROOT / "tests" / "site" / "vendor" / "axe", ("LICENSE", "axe.min.js"), ""),
)
PACKED = "axe.min.js"


def unpack(package, folder):
    """Download an npm package and unpack it; return the folder with its files."""
    packed = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True, text=True
    )
    with tarfile.open(Path(folder) / packed.stdout.strip().splitlines()[-1]) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / "package"


def vendor(name, target, files, prefix):
    """Put the wanted files of one package into `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        package = unpack(name, folder)
        for file in files:
            origin, copy = package / file, target / file.removeprefix(prefix)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(origin, copy) if origin.is_dir() else shutil.copyfile(origin, copy)
    for script in target.rglob(PACKED):
        # One line of 650 000 characters would turn up in every search through the sources.
        script.with_name(f"{script.name}.gz").write_bytes(gzip.compress(script.read_bytes(), mtime=0))
        script.unlink()
    print(f"{name}: {sources.shown(target)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for package in PACKAGES:
        vendor(*package)


if __name__ == "__main__":
    main()
