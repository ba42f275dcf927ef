"""Where this book lives: its repository, its site and its branch of notebooks. Nothing is hard-coded.

BOOK_REPOSITORY (owner/name, or a GitHub address) says it, else GITHUB_REPOSITORY, which GitHub Actions sets; so a fork
points at itself. BOOK_SITE overrides the address of the site. With neither known every function here returns None, and
whoever asks must do without: no dead links.
"""

import os
import re

BRANCH = "notebooks"
NAME = re.compile(r"(?:https://github\.com/|git@github\.com:)?([\w.-]+)/([\w.-]+?)(?:\.git)?/?")


def repository():
    """ "owner/name" of the repository on GitHub, or None if nobody said it."""
    for variable in ("BOOK_REPOSITORY", "GITHUB_REPOSITORY"):
        value = os.environ.get(variable, "").strip()
        if value:
            match = NAME.fullmatch(value)
            if not match:
                raise SystemExit(f"{variable} is {value!r}; it must be owner/name or https://github.com/owner/name")
            return "/".join(match.groups())
    return None


def site():
    """The address of the published site with a slash at its end, or None."""
    given = os.environ.get("BOOK_SITE", "").strip()
    if given:
        return given.rstrip("/") + "/"
    known = repository()
    if known is None:
        return None
    owner, name = known.split("/")
    host = f"https://{owner.lower()}.github.io/"
    return host if name.lower() == f"{owner.lower()}.github.io" else f"{host}{name}/"


def page(docname):
    """The address of one page of the site, or None."""
    return site() and f"{site()}{docname}.html"


def colab(path):
    """The address under which Colab opens a notebook of the branch, or None."""
    return repository() and f"https://colab.research.google.com/github/{repository()}/blob/{BRANCH}/{path}"


def binder(path):
    """The address under which Binder opens a notebook of the branch, or None."""
    return repository() and f"https://mybinder.org/v2/gh/{repository()}/{BRANCH}?labpath={path}"


def raw(path):
    """The address from which a file of the branch can be downloaded, or None."""
    return repository() and f"https://raw.githubusercontent.com/{repository()}/{BRANCH}/{path}"
