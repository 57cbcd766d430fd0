"""The files around the package: workflows, templates, citation, and one place for the version."""

import re

import pytest
import yaml

import fl_lightning
from documented import ROOT

GITHUB = ROOT / ".github"


@pytest.mark.parametrize("path", sorted(GITHUB.rglob("*.yml")), ids=lambda path: path.name)
def test_github_files_are_sound(path):
    content = yaml.safe_load(path.read_text())
    if path.parent.name == "workflows":
        assert content[True]  # YAML reads the key `on` as a truth value
        for job in content["jobs"].values():
            assert all(("uses" in step) != ("run" in step) for step in job["steps"])
            assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in job["steps"] if "uses" in step)
    elif "body" in content:
        names = [field["id"] for field in content["body"]]
        assert len(names) == len(set(names))


def test_the_oldest_supported_python_is_tested():
    tests = yaml.safe_load((GITHUB / "workflows" / "tests.yml").read_text())
    versions = tests["jobs"]["tests"]["strategy"]["matrix"]["python"]
    (oldest,) = re.findall(r'requires-python = ">=(\d+\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert versions[0] == oldest
    assert max(int(version.split(".")[1]) for version in versions) >= 12


def test_the_version_stands_in_one_place():
    text = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.+)"$', text, re.MULTILINE)
    assert fl_lightning.__version__ == version
    package = [path for folder in ("fl_lightning", "callbacks") for path in (ROOT / folder).rglob("*.py")]
    others = [*package, ROOT / "CITATION.cff", ROOT / "README.md", ROOT / "mkdocs.yml"]
    assert [path.name for path in others if f'"{version}"' in path.read_text()] == []


def test_the_citation_agrees_with_readme_and_site():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = citation["preferred-citation"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    for document in (ROOT / "README.md", ROOT / "docs" / "citing.md"):
        text = document.read_text()
        assert f"title   = {{{paper['title']}}}" in text
        assert " and ".join(f"{one['family-names']}, {one['given-names']}" for one in paper["authors"]) in text
        assert f"year    = {{{paper['year']}}}" in text


def test_every_page_is_on_the_site_and_every_package_in_the_api():
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in menu and page != "results/README.md"] == []
    documented = "\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    packages = {path.parent.name for path in (ROOT / "fl_lightning").glob("*/__init__.py")}
    packages -= {"cli", "configs", "figures"}  # commands and pictures, not for import
    assert [name for name in sorted(packages) if f"::: fl_lightning.{name}" not in documented] == []


def test_the_page_of_the_package_index_has_no_link_into_the_repository():
    (name,) = re.findall(r'^readme = "(.+?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert re.findall(r"\]\((?!https://)[^)]*\)|<!--|\$\$", (ROOT / name).read_text()) == []


def test_classifiers_name_the_versions_that_are_tested():
    tests = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    tested = tests["jobs"]["tests"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert (named[0], named[-1]) == (tested[0], tested[-1])
