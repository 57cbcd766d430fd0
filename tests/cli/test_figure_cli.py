"""The command ``figure`` as a user runs it."""

import csv

import pytest

from fl_lightning.cli import figure
from fl_lightning.cli.main import main


@pytest.mark.parametrize("name", list(figure._SCENARIOS))
def test_each_figure_is_drawn_and_tabled(name, tmp_path, capsys):
    assert main(["figure", name, "--seeds", "0:2", "--rounds", "30", "--out", str(tmp_path / "f")]) == 0
    out = capsys.readouterr().out
    assert "FedAvg, momentum" in out
    assert (tmp_path / "f" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "f" / f"{name}.svg").read_text()
    rows = list(csv.DictReader((tmp_path / "f" / f"{name}.csv").open()))
    curves = {row["curve"] for row in rows}
    assert len(curves) == 5
    assert ("co-design" if name == "codesign" else "FedACS") in curves
    last = [row for row in rows if row["round"] == "30"]
    assert len(last) == 5
    assert all(float(row["distance_p10"]) <= float(row["distance_mean"]) <= float(row["distance_p90"]) for row in last)


def test_clients_that_are_alike_make_fedacs_fedavg(tmp_path):
    main(["figure", "toy-homogeneous", "--seeds", "0:2", "--rounds", "30", "--out", str(tmp_path)])
    rows = list(csv.DictReader((tmp_path / "toy-homogeneous.csv").open()))
    paths = {name: [row["distance_mean"] for row in rows if row["curve"] == name] for name in ("FedAvg, SGD", "FedACS")}
    assert paths["FedAvg, SGD"] == paths["FedACS"]


def test_mistakes_are_one_clear_line(capsys):
    for arguments, wanted in (
        (["toy-static", "--seeds", "a:b"], "--seeds 'a:b' is not understood: use 0:5"),
        (["toy-static", "--seeds", "3:3"], "--seeds '3:3' must name at least one seed"),
        (["toy-static", "--rounds", "1"], "--rounds=1 must be at least 10"),
    ):
        assert main(["figure", *arguments]) == 2
        error = capsys.readouterr().err
        assert wanted in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_the_papers_claim_in_the_static_setting(tmp_path):
    main(["figure", "toy-static", "--seeds", "0:10", "--out", str(tmp_path)])
    rows = list(csv.DictReader((tmp_path / "toy-static.csv").open()))
    last = {row["curve"]: float(row["average_mean"]) for row in rows if row["round"] == rows[-1]["round"]}
    assert last["FedACS"] < 0.02
    assert all(value > 0.2 for name, value in last.items() if name.startswith("FedAvg"))
