"""The lists in pyproject.toml name every folder and every kind of file that the installed package needs."""

import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = {"fl_lightning": "fl_lightning", "callbacks": "fl_lightning.callbacks", "configs": "fl_lightning.configs"}


def files():
    """Yield the package and the path within it of every file of the package."""
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                inner = [part for part in path.relative_to(ROOT / folder).parent.parts if part != "templates"]
                home = (ROOT / folder).joinpath(*inner)
                yield ".".join([package, *inner]), path.relative_to(home).as_posix()


def test_every_folder_is_listed():
    assert sorted({package for package, _ in files()}) == sorted(SETTINGS["packages"])


def test_every_folder_outside_the_package_is_mapped():
    wanted = {"fl_lightning": "fl_lightning"}
    for package in SETTINGS["packages"]:
        if package.startswith(("fl_lightning.callbacks", "fl_lightning.configs")):
            wanted[package] = package.removeprefix("fl_lightning.").replace(".", "/")
    assert SETTINGS["package-dir"] == wanted


def test_every_kind_of_file_is_listed():
    patterns = [*SETTINGS["package-data"]["*"], "*.py"]
    unknown = [name for _, name in files() if not any(fnmatch(name, pattern) for pattern in patterns)]
    assert unknown == []
