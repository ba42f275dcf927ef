"""The three descriptions of the environment (pyproject, requirements, conda) agree; a drift fails here."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
REQUIREMENTS = (ROOT / "requirements.txt").read_text("utf8")
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text("utf8"))


def ranges():
    """The version ranges of the library, the book, the tests and the coursework, by canonical name."""
    extras = PROJECT["optional-dependencies"]
    named = [entry for extra in ("book", "test", "coursework") for entry in extras[extra]]
    requirements = map(Requirement, PROJECT["dependencies"] + named)
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def pins(section):
    """The pins of section 1 (direct) or 2 (transitive) of requirements.txt, by canonical name."""
    part = re.split(r"^# --- \d.*$", REQUIREMENTS, flags=re.MULTILINE)[section]
    lines = [line for line in part.splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, lines)}


def version_of(pin):
    return next(iter(pin.specifier)).version


@pytest.mark.parametrize("section", [1, 2])
def test_every_requirement_is_an_exact_pin(section):
    for pin in pins(section).values():
        assert [specifier.operator for specifier in pin.specifier] == ["=="], f"{pin} is not an exact pin"


def test_torch_is_the_version_that_needs_no_cuda_download():
    assert version_of(pins(1)["torch"]) == "2.13.0"


@pytest.mark.parametrize("name", sorted(ranges()))
def test_every_dependency_of_pyproject_is_pinned_within_its_range(name):
    assert name in pins(1), f"{name} is in pyproject.toml but not pinned in section 1 of requirements.txt"
    version = version_of(pins(1)[name])
    assert version in ranges()[name].specifier, f"{name}=={version} violates {ranges()[name]}"


@pytest.mark.parametrize("name", sorted(pins(1)))
def test_every_direct_pin_is_declared_in_pyproject(name):
    assert name in ranges(), f"{name} is pinned as direct but pyproject.toml does not name it"


def test_no_package_is_pinned_twice():
    names = [line.split("==")[0] for line in REQUIREMENTS.splitlines() if "==" in line]
    assert len(names) == len(set(map(canonicalize_name, names)))


def test_conda_installs_the_same_pins_on_the_same_python():
    plain = [entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict)]
    assert "-r requirements.txt" in pip
    assert "-e ." in pip
    assert f"python{PROJECT['requires-python']}" in plain
    assert len(pip) == 2, "conda must install nothing that requirements.txt does not pin"
