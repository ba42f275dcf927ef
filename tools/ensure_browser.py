"""Make sure that Playwright has a Chromium to drive, and say which.

    python -m tools.ensure_browser

A Chromium on the PATH is used as it is. Otherwise it is installed: with apt where that works without a password, else
by Playwright itself.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")


def on_path():
    """A Chromium on the PATH, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def from_playwright():
    """The Chromium that Playwright installed for itself, or None."""
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def find():
    return on_path() or from_playwright()


def elevation():
    """What to put before a command that only root may run: [] as root, ["sudo", "-n"], or None if there is no way."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def is_debian():
    """Debian itself: Ubuntu's chromium package is only a pointer to a snap, which a container cannot run."""
    release = Path("/etc/os-release")
    return release.exists() and "ID=debian" in release.read_text().splitlines()


def installation():
    """The commands that install a Chromium on this machine."""
    prefix = elevation()
    if is_debian() and prefix is not None:
        apt = [*prefix, "apt-get"]
        return [[*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *PACKAGES]]
    libraries = ["--with-deps"] if shutil.which("apt-get") and prefix is not None else []
    return [[sys.executable, "-m", "playwright", "install", *libraries, "chromium"]]


def install():
    for command in installation():
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\nInstall Chromium by hand, then try again.")


def ensure():
    """The path of a Chromium, installing one if need be."""
    path = find()
    if path is None:
        install()
        path = find()
    if path is None:
        raise SystemExit("No Chromium was found even after installing one.")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(f"Browser: {ensure()}")


if __name__ == "__main__":
    main()
