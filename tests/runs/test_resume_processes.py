"""Two processes: paused, killed and resumed, they end as one process that was left alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fl_lightning.runs.storage import checkpoints, read_checkpoint
from stored_runs import arguments, content_of, make_run

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 15


def start(name, run_dir):
    command = [sys.executable, str(ROOT / "train.py"), *arguments(name, run_dir, ROUNDS), "--fabric.devices=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_a_checkpoint(process, run_dir):
    while process.poll() is None and not checkpoints(run_dir / "checkpoints"):
        time.sleep(0.01)


def children(process):
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(number) for number in listed.split()]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find the second process")
def test_a_dead_process_is_noticed_and_the_run_resumes(tmp_path, capsys):
    name = "digits_fedvarp"
    process = start(name, tmp_path / "b")
    wait_for_a_checkpoint(process, tmp_path / "b")
    os.kill(children(process)[-1], signal.SIGKILL)
    began = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert time.monotonic() - began < 60  # seconds on an idle machine
    assert errors.strip().splitlines()[-1].startswith("fl-lightning: error: another training process ended")
    for _, path in checkpoints(tmp_path / "b" / "checkpoints"):
        read_checkpoint(path)

    make_run(name, tmp_path / "b", ROUNDS).execute("auto")  # two that resume: tests/test_processes.py
    assert "continuing after round" in capsys.readouterr().err
    make_run(name, tmp_path / "a", ROUNDS).execute("never")
    assert content_of(tmp_path / "b") == content_of(tmp_path / "a")


@pytest.mark.slow
def test_a_paused_pair_resumes_as_one(tmp_path):
    name = "digits_fedacs"
    process = start(name, tmp_path / "b")
    wait_for_a_checkpoint(process, tmp_path / "b")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert errors.count("paused after round") == 1
    make_run(name, tmp_path / "b", ROUNDS).execute("auto")
    make_run(name, tmp_path / "a", ROUNDS).execute("never")
    assert content_of(tmp_path / "b") == content_of(tmp_path / "a")
