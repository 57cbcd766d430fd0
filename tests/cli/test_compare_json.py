"""compare --json: one document on standard output, whatever became of the runs; and what commands recommend."""

import json

import pytest
from here_pool import HerePool

from fl_lightning.cli.main import main
from fl_lightning.cli.train import next_command
from fl_lightning.config.compose import RECOMMENDED, names

QUICK = ["--seeds", "0:2", "--loop.rounds", "2", "--logger", "none", "--jobs", "1"]
TOY = ["compare", "--config", "toy.yaml", "--algorithms", "fedacs,fedavg", *QUICK, "--json"]


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr("fl_lightning.jobs.pool.Pool", HerePool)


def test_compare_prints_one_document(tmp_path, capfd, request):
    command = [*TOY, "--out", str(tmp_path / "all")]
    assert main(command) == 0
    first = json.loads(capfd.readouterr().out)
    request.getfixturevalue("here")
    assert main(command) == 0
    again = json.loads(capfd.readouterr().out)
    keys = {"folder", "metric", "reference", "tables", "runs", "trials"}
    assert first.keys() == again.keys() == keys
    assert {run["outcome"] for run in first["runs"]} == {"finished"}
    assert {run["outcome"] for run in again["runs"]} == {"kept"}
    assert {(run["algorithm"], run["seed"]) for run in first["runs"]} == {
        (name, seed) for name in ("fedacs", "fedavg") for seed in (0, 1)
    }
    assert first["metric"] == "distance"
    assert first["tables"] == again["tables"]
    assert main(["report", str(tmp_path / "all"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["tables"] == first["tables"]


@pytest.mark.usefixtures("here")
def test_compare_says_of_a_failed_run_why(tmp_path, capfd):
    command = ["compare", "--config", "toy.yaml", "--algorithms", "fedavg", *QUICK, "--json", "--out", str(tmp_path)]
    assert main([*command, "--target_accuracy", "nan"]) == 2
    found = json.loads(capfd.readouterr().out)
    assert {run["outcome"] for run in found["runs"]} == {"failed"}
    assert all("target_accuracy" in run["reason"] for run in found["runs"])
    assert found["tables"] == {}


@pytest.mark.usefixtures("here")
def test_trials_of_a_grid_that_fail_are_named_and_end_in_no_other_error(tmp_path, capfd):
    command = ["compare", "--config", "toy.yaml", "--algorithms", "fedavg", "--seeds", "0", "--loop.rounds", "2"]
    command += ["--logger", "none", "--jobs", "2", "--grid", "loop.lr=0.001,0.002", "--tuning-seeds", "7", "--json"]
    assert main([*command, "--out", str(tmp_path / "all")]) == 2
    found = capfd.readouterr()
    assert [trial["outcome"] for trial in json.loads(found.out)["trials"]] == ["failed", "failed"]
    assert "nothing can be held out of Quadratic" in found.err
    assert "KeyError" not in found.err


@pytest.mark.parametrize("data", names("data"))
def test_what_follows_a_run_names_what_is_recommended(data):
    for algorithm in ("fedavg", "scaffold", RECOMMENDED):
        command = next_command([f"{data}_{algorithm}.yaml"])
        assert command.partition("--algorithms ")[2].partition(" ")[0].split(",")[-1] == RECOMMENDED


def test_diagnose_recommends_it_on_toy_clients(capsys):  # on digits: test_diagnose_cli.py
    assert main(["diagnose", "--config", "toy.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"] == RECOMMENDED
