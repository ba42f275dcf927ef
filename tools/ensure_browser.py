"""Make sure that Playwright has a Chromium to drive, and say which.

    python -m tools.ensure_browser

A Chromium on the PATH is used as it is. Otherwise it is installed: with apt where that works without a password, else
by Playwright itself.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tools import system

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")
OFFLINE = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",)  # the browser reaches this machine only


class NoBrowser(SystemExit):
    """There is no Chromium on this machine, and none could be installed; ends a program unless somebody objects."""


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


def is_debian():
    """Debian itself: Ubuntu's chromium package is only a pointer to a snap, which a container cannot run."""
    release = Path("/etc/os-release")
    return release.exists() and "ID=debian" in release.read_text().splitlines()


def installation():
    """The commands that install a Chromium on this machine."""
    if is_debian() and (apt := system.apt_commands(*PACKAGES)):
        return apt
    libraries = ["--with-deps"] if system.apt_commands() else []
    return [[sys.executable, "-m", "playwright", "install", *libraries, "chromium"]]


def install():
    if problem := system.run_all(installation()):
        raise NoBrowser(f"{problem}\nInstall Chromium by hand, then try again.")


def ensure():
    """The path of a Chromium, installing one if need be."""
    path = find()
    if path is None:
        install()
        path = find()
    if path is None:
        raise NoBrowser("No Chromium was found even after installing one.")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(f"Browser: {ensure()}")


if __name__ == "__main__":
    main()
