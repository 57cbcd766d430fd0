"""Training on a device whose tensors do not mix with the CPU's: what stays behind raises, as on a GPU.

``pytest -m slow tests/device`` builds the device (g++ and ninja, about a minute, once per machine) and compares each
run of the matrix with the same run on the CPU.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from device.matrix import cases
from two_processes import played

ROOT = Path(__file__).resolve().parents[2]
FLOAT32, BFLOAT16 = 1e-5, 1e-2
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("g++") and shutil.which("ninja")), reason="needs g++ and ninja to build"),
]


def run(script: str, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, str(ROOT / "tests" / "device" / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def found():
    return json.loads(run("compared.py").splitlines()[-1])


@pytest.mark.parametrize("case", cases())
def test_a_run_on_a_device_is_the_one_on_the_cpu(case, found):
    apart = found[case]
    assert isinstance(apart, float), apart
    assert apart < (BFLOAT16 if "mixed precision" in case else FLOAT32)


def test_auto_stacks_and_keeps_the_data_there_where_both_fit(found):
    free, limited, full = (found["choices"][name] for name in ("auto", "limited", "no room"))
    assert free["mode"] == limited["mode"] == full["mode"] == "stacked"
    assert "pretend does not say what is free" in free["reason"]
    assert "loop.engine.memory" in limited["reason"]
    assert [each["kept"] for each in (free, limited, full)] == [True, True, False]
    assert free["block"] > limited["block"] > full["block"] == 2
    assert free["test_size"] == 1000 > full["test_size"]
    assert full["pinned"] > 3 * free["pinned"]  # each batch, and not the data as a whole and the test data alone
    for other in (limited, full):
        assert other["weights"] == pytest.approx(free["weights"], rel=1e-5, abs=1e-6)


def test_threads_are_refused_off_the_cpu(found):
    assert "threads are for CPUs" in found["choices"]["threads"]["refused"]


def test_two_devices_share_the_clients_of_a_round(tmp_path):
    run("two_devices.py", str(tmp_path))
    fabric = Fabric(accelerator="cpu", devices=1)
    for mode in ("stacked", "sequential", "local"):
        here = played(mode, fabric)
        for rank in range(2):
            there = torch.load(tmp_path / f"{mode}_{rank}.pt")
            for name, value in here.items():
                torch.testing.assert_close(there[name], value, rtol=FLOAT32, atol=1e-6, msg=f"{mode} {name}")
