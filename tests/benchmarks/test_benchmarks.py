"""The benchmark itself: both sides do the same amount of work, and the program writes what it measured."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import by_hand, ours
from benchmarks.__main__ import _record
from benchmarks.measuring import Side, interleave, worker
from benchmarks.overhead import overheads
from benchmarks.workloads import W1, W2, W3, WORKLOADS, quick

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workload", [W1, W2, W3], ids=lambda workload: workload.name)
def test_workloads_are_those_of_the_table(workload):
    rows = {"W1": (20, 6, 15, 512), "W2": (1000, 100, 5, 10), "W3": (10_000, 1000, 5, 10)}
    assert rows[workload.name] == (
        workload.num_clients,
        workload.clients_per_round,
        workload.num_steps,
        workload.batch_size,
    )
    sizes = {len(client) for client in workload.clients()}
    assert sizes == {workload.examples}
    assert max(client.max() for client in workload.clients()) < 50_000


class Counted(torch.nn.Linear):
    """Counts the batches it sees in training and in evaluation."""

    seen: list[tuple[bool, int]] = []  # noqa: RUF012

    def forward(self, inputs):
        Counted.seen.append((torch.is_grad_enabled(), inputs.shape[-2]))
        return super().forward(inputs)


def test_both_sides_do_the_same_work():
    workload = replace(W3, num_clients=30, clients_per_round=7, network=lambda: Counted(10, 1), num_test=50)
    work = {}
    for name, side in (("by_hand", by_hand.run), ("ours", lambda w, pause: ours.run(w, pause, "reference"))):
        rounds = []

        def pause(parts, rounds=rounds):
            Counted.seen = [] if not rounds else Counted.seen
            rounds.append(parts)
            return len(rounds) < 2

        side(workload, pause)
        work[name] = sorted(Counted.seen)
    assert work["by_hand"] == work["ours"]
    assert work["ours"].count((True, 10)) == 35


def test_a_quick_workload_is_smaller():
    for workload in WORKLOADS.values():
        small = quick(workload)
        assert small.clients_per_round * small.num_steps <= workload.clients_per_round * workload.num_steps
        assert (small.batch_size, small.network) == (workload.batch_size, workload.network)


def test_sides_are_played_in_turns():
    program = (
        "import sys, time, json\n"
        "while True:\n"
        " print(json.dumps({'wall': time.time()}), flush=True)\n"
        " if not sys.stdin.readline().strip(): break\n"
    )
    sides = [Side(str(number), [sys.executable, "-c", program]) for number in range(2)]
    interleave(sides, repeats=3)
    times = np.array([[entry["wall"] for entry in side.rounds] for side in sides])
    assert times.shape == (2, 3)
    assert (np.diff(times.T.ravel()) > 0).all()
    assert sides[0].least("wall") == times[0, 0]


def test_a_side_that_dies_is_reported():
    with pytest.raises(RuntimeError, match="some reason"):
        interleave([Side("broken", [sys.executable, "-c", "raise SystemExit('some reason')"])], 1)


def test_the_command_of_a_worker():
    assert worker("by_hand", "W1", 2, quick=True)[1:] == ["-m", "benchmarks.worker", "by_hand", "W1", "2", "--quick"]


def test_luck_with_losses_counts_as_expected():
    yardstick = Side("by_hand", [], [{"wall": 10.0, "cpu": 20.0}])
    times = {"evaluation": 1.0, "mode": "sequential", "expected": 4.0}
    lucky = {"wall": 3.0, "cpu": 6.0, "training": 2.0, "trained": 2, **times}
    nobody = {"wall": 1.0, "cpu": 2.0, "training": 0.0, "trained": 0, **times}
    record = _record("W1q", 2, yardstick, Side("W1q", [], [lucky, nobody]))
    assert record["ours_wall"] == 5.0
    assert record["training"] == 4.0
    assert record["rest"] == 0.0
    assert record["rounds"]["W1q"][0]["wall"] == 3.0  # as it was measured


def test_overheads_are_shares_of_a_round():
    small = replace(W3, num_clients=30, clients_per_round=7, num_test=50)
    parts = {part["part"]: part for part in overheads(small)}
    off, each_tenth = (name for name in parts if name.startswith("clients' own evaluation"))
    assert parts[off]["seconds"] < parts[each_tenth]["seconds"]
    assert all(0 <= part["share"] < 5 for part in parts.values())  # what is off may not be called at all


@pytest.mark.slow
def test_the_program_writes_json_and_a_picture(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(tmp_path), "W3", "control"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "benchmarks.json").read_text())
    (record,) = content["workloads"]
    assert 0 < record["wall_ratio"] < 0.1
    assert [plane["clients"] for plane in content["control"]] == [100, 1000, 10_000, 100_000, 1_000_000]
    assert (tmp_path / "benchmarks.svg").stat().st_size > 1000


def test_the_device_at_hand_is_measured_in_each_mode(tmp_path, monkeypatch, capsys):
    from rich.console import Console

    from benchmarks import device, workloads

    small = replace(workloads.W3, num_clients=40, clients_per_round=20, num_test=20)
    monkeypatch.setitem(workloads.WORKLOADS, "W3", small)
    found = json.loads(device.run(Console(width=120), tmp_path, 1, False, ("W3",)).read_text())
    measured = found["workloads"]["W3"]["measured"]
    assert [(each["mode"], each["block"]) for each in measured[:4]] == [
        *(("sequential", 0), ("stacked", measured[1]["block"]), ("stacked", 4), ("stacked", 16)),
    ]
    assert all(each["seconds"] > 0 for each in measured)
    assert "times as fast as" in found["workloads"]["W3"]["proposed"]
    assert found["machine"]["device"] in capsys.readouterr().out
