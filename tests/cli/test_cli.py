"""The command line as a user types it: one line for each mistake, and the files that were promised."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from fl_lightning.callbacks.recorder import COLUMNS
from fl_lightning.cli.main import main
from fl_lightning.config import catalogue
from fl_lightning.config import compose as configs
from fl_lightning.module import FederatedModule
from fl_lightning.networks import DigitsNet
from fl_lightning.runs.records import read_rounds

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--logger", "none", "--loop.rounds", "2"]


def train(*arguments, run_dir):
    return main(["train", *arguments, *QUICK, "--run_dir", str(run_dir)])


def test_every_key_is_explained():
    assert {"seed", "logger", "loop.schedule", "loop.callbacks", "checkpoint.keep"} <= {
        key.name for key in catalogue.stored().keys
    }
    assert [key.name for key in catalogue.stored().keys if not key.help.strip(". ")] == []


def test_the_arguments_of_a_class_are_shown(capsys):
    assert main(["train", "--loop.aggregator.help", "fl_lightning.aggregators.ControlVariates"]) == 0
    assert "--loop.aggregator.commit {ack,always}" in capsys.readouterr().out


def test_help_answers_without_torch(tmp_path, monkeypatch):
    code = (
        "import sys; from fl_lightning.cli.main import main; main(['train', '--help']); main(['--help']);"
        "sys.exit(int(any(name in sys.modules for name in ('torch', 'lightning', 'numpy', 'wandb'))))"
    )
    command = [sys.executable, "-c", code]
    made = catalogue.stored()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(catalogue, "make_catalogue", lambda: made)
    catalogue.stored.__wrapped__()  # as the first command on a machine does
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout
    assert "fedacs" in done.stdout
    assert time.perf_counter() - began < 5  # generous: the machine may be busy; what counts is that torch is not there


def test_a_run_leaves_the_promised_files(tmp_path, capsys):
    assert train("--config", "digits_fedacs.yaml", run_dir=tmp_path) == 0
    objective, reached, following = capsys.readouterr().out.splitlines()[-3:]
    assert objective.startswith("objective: clients 0-9 should carry 50 %; FedAvg would have given them ")
    assert reached.startswith("reached: test accuracy 0.")
    assert f"files in {tmp_path}" in reached
    names = "fedavg,fedacs,limitedfedacs"
    assert following == f"next: fl-lightning compare --config digits.yaml --algorithms {names} --seeds 0:3"
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert set(COLUMNS) <= set(rows[0])
    assert [row["round"] for row in rows] == ["1", "2"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    wanted = "final_accuracy best_accuracy target_accuracy rounds_to_target local_steps_to_target versions seconds"
    assert {*wanted.split(), "computation_time_to_target", "per_class_accuracy"} <= set(summary)
    assert summary["final_accuracy"] == pytest.approx(float(rows[-1]["test_accuracy"]))
    assert len(summary["per_class_accuracy"]) == 10
    with (tmp_path / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert len(clients) == 20
    assert sum(float(row["weight"]) for row in clients) == pytest.approx(1)
    assert sum(float(row["draws"]) for row in clients) == 12  # K = 6 in each of two rounds


def test_the_weights_load_in_a_plain_lightning_project(tmp_path):
    train("--config", "digits_fedacs.yaml", run_dir=tmp_path)
    module = FederatedModule.load_from_checkpoint(tmp_path / "model.ckpt", network=DigitsNet(), weights_only=True)
    stored = torch.load(tmp_path / "model.ckpt", weights_only=True)["state_dict"]
    for name, value in module.network.state_dict().items():
        assert torch.equal(value, stored[f"network.{name}"])


def test_the_stored_config_reproduces_the_run(tmp_path):
    train("--config", "digits_fedavg.yaml", "--seed", "3", run_dir=tmp_path / "a")
    again = ["--config", str(tmp_path / "a" / "config.yaml"), "--run_dir", str(tmp_path / "b")]
    assert main(["train", *again]) == 0
    timed = {"wall_time", "training_seconds"}
    left, right = (read_rounds(tmp_path / run / "metrics.csv") for run in "ab")
    strip = [[{k: v for k, v in row.items() if k not in timed} for row in rows] for rows in (left, right)]
    assert strip[0] == strip[1]


@pytest.mark.slow  # tests/golden loads and runs each algorithm on digits and the toy, and prints the other data sets
@pytest.mark.parametrize("algorithm", configs.names("algorithms"))
def test_every_config_loads(algorithm):
    from fl_lightning.config import building

    for data in configs.names("data"):
        settings = building.parse(configs.compose([f"{data}_{algorithm}.yaml"]), [])
        assert settings.loop.rounds >= 1


def repeated(settings, below, path=""):
    """Yield the keys of a file whose values are those of what it is merged into, at every depth."""
    if settings.get("class_path", below.get("class_path")) != below.get("class_path"):
        return  # merging drops the arguments of the other class, so that none of them can be repeated
    for key, value in settings.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            yield from repeated(value, below[key], f"{path}{key}.")
        elif key in below and value == below[key]:
            yield f"{path}{key}"


def test_a_repetition_is_found_at_every_depth():
    base = {"part": {"class_path": "A", "init_args": {"apply": "server", "inner": {"class_path": "B"}}}, "lr": 1}
    assert list(repeated({"part": {"init_args": {"apply": "server"}}}, base)) == ["part.init_args.apply"]
    assert list(repeated({"part": {"class_path": "A", "init_args": {"apply": "local"}}}, base)) == ["part.class_path"]
    assert list(repeated({"part": {"class_path": "C", "init_args": {"apply": "server"}}, "lr": 2}, base)) == []


def test_no_setting_is_written_twice():
    """What an algorithm sets again because a data set changes it says so in its line."""
    base = configs.compose([])
    data = {name: configs.read(configs.FOLDER / f"data/{name}.yaml") for name in configs.names("data")}
    for name, settings in data.items():
        assert list(repeated(settings, base)) == [], f"data/{name}.yaml repeats base.yaml"
    for name in configs.names("algorithms"):
        file = configs.FOLDER / f"algorithms/{name}.yaml"
        settings = configs.read(file)
        twice = list(repeated(settings, base))
        idle = set(twice).intersection(*(repeated(settings, configs.merge(base, each)) for each in data.values()))
        assert not idle, f"{file.name} repeats base.yaml, and no data set changes it: {sorted(idle)}"
        reasons = file.read_text().count("  # also where the data set's config says ")
        assert reasons >= len(twice), f"{file.name} repeats base.yaml: say beside {twice} which data sets change it"


def test_several_configs_and_overrides_come_in_order(capsys):
    arguments = ["--config", "mnist.yaml", "--config", "fedavg.yaml", "--loop.lr", "0.5", "--print_config"]
    assert main(["train", *arguments]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["loop"]["lr"] == 0.5
    assert printed["loop"]["batch_size"] == 512
    assert printed["loop"]["sampling"]["init_args"]["sampler"]["class_path"].endswith("Importance")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nothing.yaml"], "neither a file nor a shipped config"),
        (["--config"], "--config needs"),
        (["--loop.round", "3"], "loop.round"),
        (["--loop.rounds", "three"], "three"),
        (["--loop.rounds", "-1"], "rounds=-1 must be at least 1"),
        (["--loop.lr", "nan"], "nan"),
        (["--loop.lr", ".nan"], "lr=nan"),
        (["--seed", "-1"], "seed=-1"),
        (["--loop.sampling.clients_per_round", "0"], "clients_per_round=0"),
        (["--loop.schedule.groups", "null", "--loop.schedule.num_steps", "0", "--loop.schedule.failure_rates", "0.1"],
         "num_steps=0"),
        (["--loop.schedule.groups", "null", "--loop.schedule.num_steps", "2", "--loop.schedule.failure_rates", "1.0"],
         "must be in [0, 1)"),
        (["--loop.schedule.groups", "null", "--loop.schedule.trace", "gone.csv"], "gone.csv does not exist"),
        (["--data.partition.num_clients", "2000"], "client"),
        (["--loop.sampling.sampler", "fl_lightning.samplers.Nothing"], "Nothing"),
        (["--loop.weights", "[1, 2]"], "2 entries, but there are 20 clients"),
        (["--target_accuracy", "7"], "target_accuracy=7"),
        (["--logger", "paper"], "logger"),
        (["frobnicate"], "frobnicate"),
    ],
)  # fmt: skip
def test_each_mistake_gets_one_line_and_exit_code_2(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FL_LIGHTNING_TRACEBACK", raising=False)
    assert main(["train", "--logger", "none", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.startswith("fl-lightning: error: ")
    assert len(error.splitlines()) == 1
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loop: {rounds: 3, rounds: 4}", "stands twice"),
        ("loop: [", "not valid YAML"),
        ("- 1", "must be a table of keys"),
        ("lop: {rounds: 3}", "lop"),
        ("model: {class_path: fl_lightning.networks.DigitsNet}", "DigitsNet"),
    ],
)
def test_bad_files_get_one_line(text, message, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(text)
    assert (
        main(["train", "--config", "digits_fedacs.yaml", "--config", str(tmp_path / "mine.yaml"), "--logger=none"]) == 2
    )
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_unknown_commands_are_named(capsys):
    assert main(["dance"]) == 2
    assert "dance" in capsys.readouterr().err


def test_from_another_folder_by_script(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "train.py"), "--config", "toy_fedavg.yaml", *QUICK]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "toy_fedavg" / "rounds=2" / "seed_0" / "summary.json").is_file()


def test_partition_can_be_looked_at(tmp_path, capsys):
    assert main(["data", "show", "--config", "digits_fedavg.yaml", "--picture", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").stat().st_size > 10_000
    assert "client" in capsys.readouterr().out
