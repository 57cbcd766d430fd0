"""One process and two give identical metrics and weights, for every algorithm, however they are started."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from every_algorithm import ARGUMENTS, run_all

from fl_lightning.cli.main import main
from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.runs.records import read_rounds

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = str(ROOT / "tests" / "every_algorithm.py")
MEASURED = {"wall_time", "training_seconds"}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process):
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-3000:]
    return output


def assert_equal(left, right):
    rows = [[{k: v for k, v in row.items() if k not in MEASURED} for row in read_rounds(run / "metrics.csv")]
            for run in (left, right)]  # fmt: skip
    assert rows[0] == rows[1]
    weights = [torch.load(run / "model.ckpt", weights_only=True)["state_dict"] for run in (left, right)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert (left / "clients.csv").read_bytes() == (right / "clients.csv").read_bytes()


# One of each kind: stateless, asking, learning, remembering, with models at the clients, private, asynchronous.
KINDS = (
    *("fedacs", "os", "fedvarp", "scaffold", "fedawe", "fedadam"),
    *("dpfedacs", "secaggfedacs", "consistentfedbuff"),
)
OTHERS = tuple(name for name in configs.names("algorithms") if name not in KINDS)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    assert run_all(str(folder), list(KINDS), []) == 0
    return folder


def with_two(names, folder, *options):
    return finished(torchrun("--nproc_per_node", "2", SCRIPT, str(folder), ",".join(names), *options))


def has_two(folder):
    return re.search("devices: '?2", (folder / "config.yaml").read_text())


class Pausing:
    """Pauses a run after its second round."""

    def on_round_end(self, loop, result):
        loop.interrupted = result.plan.index == 2


def paused(name, folder):
    settings = [*ARGUMENTS[: ARGUMENTS.index("--resume")], "--run_dir", str(folder)]
    run = building.build(building.parse(configs.compose([f"digits_{name}.yaml"]), settings), f"digits_{name}")
    run.loop.callbacks.insert(0, Pausing())
    assert run.execute("never") == "paused"


def test_an_algorithm_of_each_kind_with_as_many_processes_as_torchrun_starts(one_process, tmp_path):
    paused("fedvarp", tmp_path / "fedvarp")  # by one process, to be resumed by two
    output = with_two(KINDS, tmp_path, "--resume", "auto")
    assert output.count("continuing after round 2 of 4") == 1
    for name in KINDS:
        assert_equal(one_process / name, tmp_path / name)
        assert has_two(tmp_path / name)


FABRIC = (
    "import fl_lightning; from lightning.fabric.cli import _main; _main()"  # the command, where torchvision is apart
)


def fabric_run(*arguments):
    port = str(30_000 + os.getpid() % 1000)
    options = ("run", "--accelerator", "cpu", "--devices", "2", "--main-port", port)
    command = [sys.executable, "-c", FABRIC, *options, *arguments]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow  # the variables that it sets: the next test
def test_the_number_of_processes_is_that_of_fabric_run(one_process, tmp_path):
    finished(fabric_run(SCRIPT, str(tmp_path), "fedacs"))
    assert_equal(one_process / "fedacs", tmp_path / "fedacs")
    assert has_two(tmp_path / "fedacs")


def test_another_number_of_processes_than_the_launchers_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("LT_CLI_USED", "1")
    monkeypatch.setenv("LT_DEVICES", "2")
    monkeypatch.setenv("LT_PRECISION", "bf16-mixed")
    assert main(["train", "--fabric.devices", "1"]) == 2
    assert "--fabric.devices 1 does not fit the processes that were started, devices 2" in capsys.readouterr().err
    assert main(["train", "--fabric.precision", "64-true", "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert "precision: 64-true" in printed
    assert re.search("devices: '?2", printed)
    assert "LT_PRECISION" not in os.environ


@pytest.mark.slow
def test_all_other_algorithms_with_two_processes(tmp_path):
    assert run_all(str(tmp_path / "one"), list(OTHERS), []) == 0
    with_two(OTHERS, tmp_path / "two", "--fabric.devices", "2")
    for name in OTHERS:
        assert_equal(tmp_path / "one" / name, tmp_path / "two" / name)


@pytest.mark.slow
def test_two_nodes_started_by_separate_commands(one_process, tmp_path):
    port = str(29_000 + os.getpid() % 1000)
    options = ("--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", port)
    work = (SCRIPT, str(tmp_path), "fedacs,fedvarp", "--fabric.devices", "1", "--fabric.num_nodes", "2")
    nodes = [torchrun(*options, "--node_rank", rank, *work) for rank in ("0", "1")]
    for node in nodes:
        finished(node)
    for name in ("fedacs", "fedvarp"):
        assert_equal(one_process / name, tmp_path / name)


@pytest.mark.slow  # tests/runs/test_resume_processes.py starts the plain command too, and compares what it leaves
def test_the_plain_command_starts_its_own_processes(one_process, tmp_path):
    options = ["--config", "digits_scaffold.yaml", "--run_dir", str(tmp_path), *ARGUMENTS, "--fabric.devices", "2"]
    command = [sys.executable, str(ROOT / "train.py"), *options]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_equal(one_process / "scaffold", tmp_path)


@pytest.mark.slow
def test_successive_draws_with_two_processes(tmp_path):
    extra = ["--loop.sampling.drawing", "fl_lightning.samplers.Successive"]
    assert run_all(str(tmp_path / "one"), ["fedacs"], extra) == 0
    options = ("--fabric.devices", "2", *extra)
    finished(torchrun("--nproc_per_node", "2", SCRIPT, str(tmp_path / "two"), "fedacs", *options))
    assert_equal(tmp_path / "one" / "fedacs", tmp_path / "two" / "fedacs")
