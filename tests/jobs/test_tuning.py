"""Tuning each algorithm on held-out data before it is compared; sweeps of W&B by the same settings."""

import csv
import json
import math
import sys
from pathlib import Path

import pytest
import yaml
from here_pool import HerePool

from fl_lightning.cli.main import main
from fl_lightning.config.compose import ConfigError
from fl_lightning.jobs import tuning
from fl_lightning.jobs.jobs import Job
from fl_lightning.jobs.tuning import Axis, Score

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--data.partition.num_clients=10", "--loop.batch_size=8", "--loop.rounds=3", "--logger=none"]


@pytest.fixture
def tuned(tmp_path, monkeypatch, capsys):
    """A comparison that is tuned over a rate at which nothing moves and one at which something does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_lightning.jobs.pool.Pool", HerePool)
    command = ["compare", "--config", "digits.yaml", "--algorithms", "fedacs,fedavg", "--seeds", "0", "--no-report"]
    grid = ["--grid", "loop.lr=1e-9,0.05", "--tuning-seeds", "1000", "--out", "runs/mine"]
    assert main([*command, *grid, *SMALL]) == 0
    return tmp_path / "runs", capsys.readouterr().out


def test_each_algorithm_is_reported_at_its_own_best(tuned):
    runs, out = tuned
    with (runs / "mine" / "tuning.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["algorithm"], row["loop.lr"]) for row in rows] == [
        (name, rate) for name in ("fedacs", "fedavg") for rate in ("1e-9", "0.05")
    ]
    for name in ("fedacs", "fedavg"):
        own = [row for row in rows if row["algorithm"] == name]
        expected = max(own, key=lambda row: float(row["validation"]))  # an independent choice
        assert [row["loop.lr"] for row in own if row["chosen"] == "1"] == [expected["loop.lr"]]
        final = yaml.safe_load((runs / "mine" / name / "seed_0" / "config.yaml").read_text())
        assert final["loop"]["lr"] == float(expected["loop.lr"])
        assert final["validation"] is None  # the reported run trains on everything and is tested on the test data
        trial = runs / "mine_tuning" / name / f"lr={expected['loop.lr']}" / "seed_1000"
        assert yaml.safe_load((trial / "config.yaml").read_text())["validation"] == 0.1
        scored = json.loads((trial / "summary.json").read_text())["last_accuracy"]
        assert float(expected["validation"]) == pytest.approx(scored)
        sizes = [_examples(folder) for folder in (trial, runs / "mine" / name / "seed_0")]
        assert sizes[0] < sizes[1] == 1438
    assert "Each algorithm is at its own best of loop.lr=1e-9,0.05, tuned on 10%" in out
    rows = [line.split() for line in out.partition("test accuracy")[2].splitlines()]
    assert {"fedacs", "fedavg"} <= {row[0] for row in rows if row}  # the table comes last


def _examples(folder):
    with (folder / "clients.csv").open() as file:
        return sum(int(row["size"]) for row in csv.DictReader(file))


def test_grids_are_combined_and_may_be_for_one_algorithm():
    axes = tuning.parse_grid(["loop.lr=0.1,0.2", "fedprox:loop.solver.proximal=0.1,1"])
    assert len(list(tuning.points(axes, "fedavg"))) == 2
    assert len(list(tuning.points(axes, "fedprox"))) == 4


@pytest.mark.parametrize("text", ["loop.lr", "loop.lr=", "=1,2", ":loop.lr=1", "loop.lr=1,1"])
def test_a_grid_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="--grid"):
        tuning.parse_grid([text])


def planned(*names, seed=0):
    return [Job(algorithm=name, data="digits", seed=seed, configs=["digits.yaml"], run_dir="x") for name in names]


def test_tuning_never_sees_the_reported_seeds():
    axes = tuning.parse_grid(["loop.lr=1,2"])
    with pytest.raises(ConfigError, match="is one of the reported"):
        tuning.trials(planned("fedavg"), axes, [0, 1], 0.1, Path("t"))
    with pytest.raises(ConfigError, match="which is not compared"):
        tuning.trials(planned("fedavg"), tuning.parse_grid(["fedprox:loop.lr=1"]), [1], 0.1, Path("t"))
    made = tuning.trials(planned("fedavg"), axes, [7], 0.2, Path("t"))
    assert [job.run_dir for job in made] == ["t/fedavg/lr=1/seed_7", "t/fedavg/lr=2/seed_7"]
    assert made[0].overrides == ["--loop.lr", "1", "--validation", "0.2", "--logger", "none"]


def test_the_best_is_the_least_where_less_is_better_and_a_failed_run_is_never_best():
    scores = [
        Score(settings=(("a", str(n)),), mean=value, maximised=False) for n, value in enumerate((0.3, math.nan, 0.1))
    ]
    assert tuning.best(scores).settings == (("a", "2"),)
    assert tuning.at_an_edge(scores[2], [Axis(key="a", values=("0", "1", "2"))]) == ["a"]
    assert tuning.at_an_edge(scores[1], [Axis(key="a", values=("0", "1", "2"))]) == []


def test_a_sweep_of_wandb_makes_command_lines_that_train(tmp_path, monkeypatch, capsys):
    """The command is filled in by the agent's own functions; the server that hands out trials is replaced."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    sweep = yaml.safe_load((ROOT / "examples" / "sweep.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for rate in sweep["parameters"]["loop.lr"]["values"][:2]:
        trial = {"args": {"loop.lr": {"value": rate}, "seed": {"value": sweep["parameters"]["seed"]["values"][0]}}}
        macros = utils.create_sweep_command_args(trial)
        filled = {
            "${env}": [],
            "${interpreter}": [sys.executable],
            "${program}": [sweep["program"]],
            "${args}": macros["args"],
        }
        words = [word for part in utils.create_sweep_command(sweep["command"]) for word in filled.get(part, [part])]
        assert words[:2] == [sys.executable, "train.py"]
        assert main(["train", *words[2:], *SMALL]) == 0
    found = sorted(path.parent.parent.name for path in tmp_path.rglob("summary.json"))
    assert len(found) == len(set(found)) == 2
    assert all("lr=" in name and "validation=0.1" in name for name in found)
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        assert sweep["metric"]["name"] in next(csv.reader(file))
