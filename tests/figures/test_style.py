"""What pictures and pages are made with is an extra: without it, commands show their tables and how to get the rest."""

import sys

import numpy as np
import pytest

from fl_lightning.cli.main import main
from fl_lightning.figures.clients import objective_figure
from fl_lightning.figures.style import NotInstalledError, blank, draw, require
from made_runs import make_comparison

HINT = "matplotlib is not installed: pip install -e '.[report]' in your clone"


@pytest.fixture
def without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_what_is_missing_says_how_to_install_it(without_matplotlib):
    require("numpy")
    with pytest.raises(NotInstalledError, match=r"matplotlib is not installed: pip install -e '\.\[report\]'"):
        objective_figure(np.ones(2) / 2, np.ones(2) / 2)


def test_a_picture_is_drawn_into_new_folders_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "one.png"
    assert draw(lambda: blank(1, 1), path) is None
    assert path.is_file()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw(lambda: blank(1, 1), tmp_path / "other" / "two.png") == f"no picture: {HINT}"
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["diagnose", "--config", "digits.yaml", "--algorithms", "fedacs,fedavg"], "fedavg"),
        (["data", "show", "--config", "digits.yaml"], "examples"),
        (["figure", "toy-homogeneous", "--rounds", "20", "--seeds", "0:2"], "toy-homogeneous.csv"),
        (["demo", "--rounds", "2"], "page: file:"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_commands_show_their_tables(command, shown, tmp_path, monkeypatch, capsys, without_matplotlib):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert shown in printed
    assert [line for line in printed.splitlines() if "pip install" in line] == [f"no picture: {HINT}"]
    assert list(tmp_path.rglob("*.png")) == []


@pytest.mark.parametrize(
    ("package", "missing", "made"),
    [("matplotlib", "figures", "index.html"), ("jinja2", "page", "figures/final.png")],
)
def test_a_report_has_what_can_be_made(package, missing, made, tmp_path, monkeypatch, caplog, capsys):
    make_comparison(tmp_path, 2, 2)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["report", str(tmp_path), "--logger", "none"]) == 0
    hint = f"{package} is not installed: pip install -e '.[report]' in your clone"
    assert [record.getMessage() for record in caplog.records] == [f"no {missing}: {hint}"]
    assert (tmp_path / "report" / made).is_file()
    assert (tmp_path / "report" / "tables" / "final.md").is_file()
    assert (tmp_path / "report" / "index.html").is_file() == (package != "jinja2")
    assert (tmp_path / "report" / "figures").exists() == (package != "matplotlib")
    assert "2 algorithms, 4 runs" in capsys.readouterr().out
