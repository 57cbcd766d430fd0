"""Runs that are killed at random moments, again and again, end as runs that were left alone.

``pytest -m slow tests/test_chaos.py`` kills each algorithm at least four times, over 100 times in all.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fl_lightning.callbacks.checkpoint import checkpoints
from fl_lightning.cli import configs
from fl_lightning.storage import read_checkpoint
from stored_runs import arguments, content_of

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 12


class Server:
    def __init__(self):
        command = [sys.executable, str(ROOT / "tests" / "chaos_server.py")]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def order(self, run_arguments, seconds=None):
        self.process.stdin.write(json.dumps({"arguments": run_arguments, "seconds": seconds}) + "\n")
        self.process.stdin.flush()
        code, took = json.loads(self.process.stdout.readline())
        return code, took


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.process.kill()
    server.process.communicate()


def survive(server, name, folder, num_kills):
    """Kill a run at random moments, look at its files after each, and return how many kills struck."""
    expected = arguments(name, folder / "a", ROUNDS)
    code, seconds = server.order(expected)
    assert code == 0
    rng = random.Random(name)
    struck = 0
    command = arguments(name, folder / "b", ROUNDS)
    for _ in range(4 * num_kills):
        code, _ = server.order(command, rng.uniform(0, seconds))
        assert code in (0, -9), code
        struck += code == -9
        for _, path in checkpoints(folder / "b" / "checkpoints"):
            read_checkpoint(path)  # never unreadable
        if struck == num_kills:
            break
        if code == 0:  # it finished between the kills: begin again, in the same folder
            assert content_of(folder / "b") == content_of(folder / "a")
            command = [*arguments(name, folder / "b", ROUNDS), "--resume", "never"]
        else:
            command = arguments(name, folder / "b", ROUNDS)
    assert server.order(arguments(name, folder / "b", ROUNDS))[0] == 0
    assert content_of(folder / "b") == content_of(folder / "a")
    assert struck == num_kills
    return struck


@pytest.mark.parametrize("name", ["digits_fedvarp", "toy_fedacs"])
def test_a_few_kills(name, server, tmp_path):
    survive(server, name, tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", configs.names("algorithms"))
def test_many_kills(algorithm, server, tmp_path):
    survive(server, f"digits_{algorithm}", tmp_path, 4)
