"""``--trust`` in every command that makes parts: nothing without it, and the stranger's part at work with it."""

import csv
import sys

import pytest

from fl_lightning.cli.main import main

PACKAGE = """\
import pathlib

pathlib.Path({marker!r}).touch()
import numpy as np

from fl_lightning.data import Digits
from fl_lightning.parts.bases import Partition, Schedule
from fl_lightning.samplers import Sampler
from fl_lightning.types import Conditions


class Reversed(Sampler):
    def probabilities(self, profiles, num_draws):
        reach = profiles.weights * profiles.failure_rates
        return reach / reach.sum()


class Even(Schedule):
    def configure_conditions(self, round_index, steps_per_epoch, seed):
        return Conditions(np.full(len(steps_per_epoch), 3), np.full(len(steps_per_epoch), 0.25))


class TwoClients(Partition):
    def split(self, labels, rng):
        return [np.flatnonzero(labels < 3), np.flatnonzero(labels >= 3)]
"""
SAMPLER = "loop: {sampling: {init_args: {sampler: {class_path: outsider.Reversed}}}}\n"
COMMANDS = {
    "diagnose": "diagnose --config toy.yaml --algorithms fedavg,backwards.yaml",
    "diagnose schedule": "diagnose --config toy.yaml --algorithms fedavg --loop.schedule outsider.Even",
    "data": "data show --data.partition=outsider.TwoClients",
    "figure": "figure toy-static --seeds 0:2 --rounds 20 --algorithm backwards.yaml",
    "compare": "compare --config toy.yaml --algorithms fedavg,backwards.yaml --seeds 0 --jobs 1 --no-report "
    "--logger none --loop.rounds 2",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a package that shows when it is imported, found only because it is the current folder."""
    (tmp_path / "outsider.py").write_text(PACKAGE.format(marker=str(tmp_path / "imported")))
    (tmp_path / "backwards.yaml").write_text(SAMPLER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("outsider", None)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_trust_nothing_is_imported(name, project, capsys):
    assert main(COMMANDS[name].split()) == 2
    said = capsys.readouterr()
    assert "--trust outsider" in said.err + said.out
    assert not (project / "imported").exists()


def test_diagnose_mixes_names_and_files(project, capsys):
    assert main([*COMMANDS["diagnose"].split(), "--trust", "outsider"]) == 0
    out = capsys.readouterr().out
    assert "│ backwards " in out
    assert "│ fedavg " in out
    assert (project / "imported").exists()


def test_diagnose_takes_a_schedule(project, capsys):
    assert main([*COMMANDS["diagnose schedule"].split(), "--trust=outsider"]) == 0
    assert "your clients are alike enough" in capsys.readouterr().out


def test_data_shows_a_partition(project, capsys):
    assert main([*COMMANDS["data"].split(), "--trust", "outsider"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit()] == ["0", "1"]


def test_figure_draws_an_algorithm(project, capsys):
    assert main([*COMMANDS["figure"].split(), "--trust", "outsider"]) == 0
    with (project / "figures" / "toy-static.csv").open() as file:
        assert {row["curve"] for row in csv.DictReader(file)} >= {"backwards", "FedAvg, SGD"}


def test_compare_runs_an_algorithm(project):
    assert main([*COMMANDS["compare"].split(), "--trust", "outsider"]) == 0
    (runs,) = (project / "runs").glob("compare_toy*")
    assert "outsider.Reversed" in (runs / "backwards" / "seed_0" / "config.yaml").read_text()
    assert (runs / "fedavg" / "seed_0" / "summary.json").is_file()


@pytest.mark.parametrize("command", ["train", "diagnose", "data show", "figure", "compare"])
def test_help_shows_it(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert "--trust PACKAGE" in capsys.readouterr().out


def refused(capsys, command):
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_an_algorithm_file_may_not_change_the_clients(project, capsys):
    (project / "more.yaml").write_text("data: {class_path: x.Y}\nloop: {lr: 0.1, rounds: 3}\n")
    error = refused(capsys, "diagnose --config toy.yaml --algorithms fedavg,more.yaml")
    assert "more.yaml sets data, loop.lr, which all algorithms share" in error
    (project / "flat.yaml").write_text("loop: 3\n")
    assert "loop=3 must be a table" in refused(capsys, "diagnose --config toy.yaml --algorithms flat.yaml")


def test_two_algorithms_may_not_share_a_label(project, capsys):
    (project / "fedavg.yaml").write_text("")
    error = refused(capsys, "diagnose --config toy.yaml --algorithms fedavg,fedavg.yaml")
    assert "--algorithms has fedavg more than once" in error


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("figure toy-static --trust outsider", "--trust goes with --algorithm FILE"),
        ("figure toy-static --algorithm fedavg,fedacs", "must be one name or one file"),
        ("figure toy-static --algorithm mifa", "mifa: MemorizedMean does more than weight what arrives"),
        ("figure toy-static --algorithm otafedacs", "OverTheAir changes updates on their way"),
        ("figure toy-static --algorithm hics", "hics: its sampler asks clients or learns from them"),
        ("figure toy-static --algorithm powerofchoice", "powerofchoice: its sampler asks clients or learns"),
        ("figure toy-static --algorithm nobody", "algorithm 'nobody' is unknown"),
    ],
)
def test_what_a_figure_cannot_simulate_is_refused(command, error, project, capsys):
    assert error in refused(capsys, command)
