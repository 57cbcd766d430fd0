"""Clients that send nonsense, disks that are full, and services that are down."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb

from fl_lightning.aggregators import (
    AnonymousMean,
    ControlVariates,
    CoordinateMedian,
    LastKnownUpdates,
    MemorizedMean,
    ServerMomentum,
)
from fl_lightning.callbacks import RoundCheckpoint, RunRecorder, WandbMetrics
from fl_lightning.callbacks import wandb as wandb_callback
from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.engine import Engine
from fl_lightning.output import write_durably
from fl_lightning.runs.records import read_rounds
from fl_lightning.runs.storage import checkpoints, read_checkpoint
from fl_lightning.samplers import Importance
from fl_lightning.server.faults import FaultPolicy, bad_rows, finite_rows
from fl_lightning.types import ModelState, Updates
from stored_runs import arguments, make_run
from systems import gaussian_federation, linear_module, small_loop

ROOT = Path(__file__).resolve().parents[2]


def poisoned(federation, clients):
    """Give some clients data that turn every gradient into NaN."""
    for client in clients:
        rows = federation.order[federation.offsets[client] : federation.offsets[client + 1]]
        federation.train[0][torch.from_numpy(rows)] = float("nan")
    return federation


class Memory:
    def __init__(self):
        self.results = []

    def on_round_end(self, loop, result):
        self.results.append(result)


def federation_with_a_clean_test(**settings):
    """The made-up federation, whose test data is a copy that poison does not reach."""
    federation = gaussian_federation(**settings)
    federation.test = tuple(tensor.clone() for tensor in federation.test)
    return federation


@pytest.mark.parametrize("engine", [Engine(mode="auto"), Engine(mode="sequential")], ids=["auto", "sequential"])
def test_a_fifth_of_the_clients_send_nan_and_training_goes_on(engine, tmp_path, caplog):
    federation = poisoned(federation_with_a_clean_test(num_clients=10), [2, 7])
    memory = Memory()
    loop = small_loop(Importance(), rounds=20, engine=engine, callbacks=[memory, RunRecorder(str(tmp_path))])
    with caplog.at_level(logging.WARNING, logger="fl_lightning"):
        state = loop.run(linear_module(), federation)
    assert torch.isfinite(state.weights).all()
    rejected = [fault for result in memory.results for fault in result.faults]
    assert {fault.client for fault in rejected} == {2, 7}
    assert all(result.delivered[[fault.client for fault in result.faults]].sum() == 0 for result in memory.results)
    rows = read_rounds(tmp_path / "metrics.csv")
    assert [row["num_rejected"] for row in rows] == [len(result.faults) for result in memory.results]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rejected_updates"] == len(rejected)
    assert sum(summary["rejected_updates_by_client"].values()) == len(rejected)
    assert set(summary["rejected_updates_by_client"]) == {"2", "7"}
    shown = [record.getMessage() for record in caplog.records]
    assert len(shown) == 2  # once for each client
    assert f"round {rejected[0].round_index}: the update of client {rejected[0].client} is not finite" in shown[0]


def test_rejected_is_as_good_as_lost():
    """The model moves exactly as if the channel had lost these uploads."""

    class Losing:
        def configure_delivery(self, plan, seed):
            return np.where(np.isin(np.arange(6), [1, 4]), 0, plan.cohort.counts)

    class Perfect:
        def configure_delivery(self, plan, seed):
            return plan.cohort.counts

    lost = small_loop(Importance(), channel=Losing()).run(linear_module(), federation_with_a_clean_test())
    rejected = small_loop(Importance(), channel=Perfect()).run(
        linear_module(), poisoned(federation_with_a_clean_test(), [1, 4])
    )
    assert torch.equal(lost.weights, rejected.weights)


def test_the_run_stops_if_that_is_the_policy():
    loop = small_loop(faults=FaultPolicy(on_bad_update="stop"), rounds=30)
    with pytest.raises(ValueError, match=r"round \d+: the update of client 3 is not finite \(training loss nan\)"):
        loop.run(linear_module(), poisoned(federation_with_a_clean_test(), [3]))


def test_a_round_in_which_all_are_lost_keeps_the_model():
    memory = Memory()
    loop = small_loop(callbacks=[memory])
    module = linear_module()
    before = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    state = loop.run(module, poisoned(federation_with_a_clean_test(), range(6)))
    assert torch.equal(state.weights, before)
    assert all(not result.delivered.any() for result in memory.results)


@pytest.mark.parametrize("algorithm", configs.names("algorithms"))
def test_every_algorithm_survives_nan_clients(algorithm, tmp_path):
    """A fifth of the clients is broken, also for samplers that ask clients before they draw."""
    run = make_run(f"digits_{algorithm}", tmp_path, 4)
    load = run.data.load

    def broken(seed):
        federation = load(seed)
        federation.test = tuple(tensor.clone() for tensor in federation.test)
        return poisoned(federation, [0, 5])

    run.data.load = broken
    run.execute("never")
    rows = read_rounds(tmp_path / "metrics.csv")
    assert len(rows) == 4
    assert torch.isfinite(run.loop.state.weights).all()
    rejected = json.loads((tmp_path / "summary.json").read_text()).get("rejected_updates_by_client", {})  # or private
    assert set(rejected) <= {"0", "5"}
    if algorithm in ("full", "fedpbc"):  # they draw everybody
        assert set(rejected) == {"0", "5"}


def test_an_exploding_loss_is_reported_with_round_and_client(caplog):
    federation = federation_with_a_clean_test()
    rows = federation.order[federation.offsets[2] : federation.offsets[3]]
    federation.train[0][torch.from_numpy(rows)] *= 1e9
    with caplog.at_level(logging.WARNING, logger="fl_lightning"):
        small_loop(rounds=8, lr=1e-12).run(linear_module(), federation)
    (shown,) = [record.getMessage() for record in caplog.records]
    assert "the loss of client 2 explodes" in shown
    assert shown.startswith("round ")


def test_a_model_that_overflows_in_the_aggregate_stops_the_run():
    updates = Updates(
        clients=np.array([4]),
        deltas=torch.full((1, 2), 3e38),
        buffers=torch.empty(1, 0),
        num_steps=np.array([1]),
        losses=np.array([1.0]),
    )
    broken = ModelState(torch.tensor([float("inf"), 0.0]), torch.empty(0))
    with pytest.raises(ValueError, match=r"round 9: .* client 4 sent the largest update: lower loop\.lr"):
        FaultPolicy().check_aggregate(9, updates, broken)


def test_wrong_shapes_are_rejected():
    state = ModelState(torch.zeros(3), torch.zeros(1))
    sound = Updates(
        clients=np.array([0, 1]),
        deltas=torch.zeros(2, 3),
        buffers=torch.zeros(2, 1),
        num_steps=np.array([1, 1]),
        losses=np.zeros(2),
    )
    assert bad_rows(sound, state) == {}
    narrow = replace(sound, deltas=torch.zeros(2, 2))
    assert bad_rows(narrow, state) == dict.fromkeys([0, 1], "has weights of shape (2,) instead of (3,)")
    assert "buffers" in bad_rows(replace(sound, buffers=torch.zeros(2, 4)), state)[1]


def test_finite_rows_against_numpy(rng):
    rows = rng.normal(size=(200, 5)).astype(np.float32) * 10.0 ** rng.integers(-30, 38, (200, 1))
    rows[rng.random(rows.shape) < 0.05] = np.nan
    rows[rng.random(rows.shape) < 0.05] = np.inf
    rows = rows.astype(np.float32)
    assert finite_rows(torch.from_numpy(rows)).numpy().tolist() == np.isfinite(rows).all(axis=1).tolist()


@pytest.mark.parametrize(
    "policy", [{"on_bad_update": "ignore"}, {"exploding_loss": 0.0}, {"exploding_loss": float("nan")}]
)
def test_unknown_policies_are_refused(policy):
    with pytest.raises(ValueError, match=r"unknown|positive"):
        FaultPolicy(**policy)


LIMITED = """
import resource, signal, sys
from fl_lightning.cli.main import main
import fl_lightning.config.building
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(["train", *sys.argv[2:]]))
"""


def test_a_full_disk_gives_one_line_and_no_damaged_file(tmp_path):
    """No file may grow beyond a limit, which fails in the middle of a write as a full disk does."""
    command = [sys.executable, "-c", LIMITED, "6000", *arguments("toy_fedavg", tmp_path / "run", 60)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("round ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("fl-lightning: error: ")
    assert "cannot write" in lines[0]
    assert not list((tmp_path / "run").rglob("*.tmp"))
    for _, path in checkpoints(tmp_path / "run" / "checkpoints"):
        read_checkpoint(path)
    rows = read_rounds(tmp_path / "run" / "metrics.csv")
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1))
    again = make_run("toy_fedavg", tmp_path / "run", 60)
    assert again.execute("auto") == "finished"


def test_an_unwritable_folder_gives_one_line(tmp_path, capsys):
    (tmp_path / "run").write_text("a file where the folder should be")
    assert main(["train", *arguments("toy_fedavg", tmp_path / "run", 2)]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert str(tmp_path / "run") in error


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_durably(tmp_path / "file", b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device; what was there before is intact"):
        write_durably(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_checkpoint_is_made_every_n_rounds_and_two_are_kept(tmp_path):
    callback = RoundCheckpoint(str(tmp_path), every_n_rounds=3, min_seconds=0)
    made = []
    original = callback._save
    callback._save = lambda loop, finished: (made.append((loop.round_index, finished)), original(loop, finished))
    small_loop(rounds=8, callbacks=[callback]).run(linear_module(), gaussian_federation())
    assert made == [(3, False), (6, False), (8, True)]
    assert [number for number, _ in checkpoints(tmp_path)] == [6, 8]


def test_saving_takes_a_small_share_of_the_time(tmp_path):
    """With the default pause, a run of seconds saves only at its end."""
    callback = RoundCheckpoint(str(tmp_path))
    small_loop(rounds=5, callbacks=[callback]).run(linear_module(), gaussian_federation())
    assert [number for number, _ in checkpoints(tmp_path)] == [5]


class Breaker:
    """Takes W&B's run away in the middle of training."""

    def __init__(self, metrics):
        self.metrics = metrics

    def on_round_start(self, loop, plan):
        if plan.index == 2:
            self.metrics._logger.experiment.finish()


def test_w_and_b_may_fail_in_the_middle(tmp_path, caplog):
    metrics = WandbMetrics(mode="offline", save_dir=str(tmp_path))
    memory = Memory()
    with caplog.at_level(logging.WARNING, logger="fl_lightning"):
        small_loop(callbacks=[metrics, Breaker(metrics), memory]).run(linear_module(), gaussian_federation())
    assert len(memory.results) == 4
    assert len([record for record in caplog.records if "W&B fails" in record.getMessage()]) == 1


def test_w_and_b_may_be_unreachable(tmp_path, monkeypatch, caplog):
    """Nobody listens at the address: the run is logged offline instead."""
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    wandb.teardown()  # it read the environment when it was first used
    monkeypatch.setattr(wandb_callback, "_SECONDS_TO_CONNECT", 2.0)
    metrics = WandbMetrics(mode="online", save_dir=str(tmp_path))
    memory = Memory()
    with caplog.at_level(logging.WARNING, logger="fl_lightning"):
        small_loop(callbacks=[metrics, memory]).run(linear_module(), gaussian_federation())
    assert len(memory.results) == 4
    assert any("W&B cannot be reached" in record.getMessage() for record in caplog.records)
    assert list(tmp_path.rglob("offline-run-*"))


@pytest.mark.parametrize("size", [3e38, 1e17, 1e8])
@pytest.mark.parametrize(
    "aggregator", [ControlVariates, MemorizedMean, LastKnownUpdates, AnonymousMean, CoordinateMedian, ServerMomentum]
)
def test_one_huge_update_is_rejected_counted_and_reaches_no_memory(aggregator, size, monkeypatch):
    made = ServerMomentum(AnonymousMean()) if aggregator is ServerMomentum else aggregator()
    loop = small_loop(Importance(), rounds=8, aggregator=made)
    train = loop.engine.train

    def with_a_huge_one(state, plan, clients, *rest):
        updates = train(state, plan, clients, *rest)
        if plan.index == 3:
            updates.deltas[0] = size
        return updates

    monkeypatch.setattr(loop.engine, "train", with_a_huge_one)
    results = list(loop.iterate(linear_module(), gaussian_federation(num_clients=12)))
    if len(results[2].updates) < 3 and size < 1e15:  # two updates have no median that says what is usual
        return
    assert results[2].metrics["num_rejected"] == 1
    assert "long" in results[2].faults[0].reason
    assert float(loop.state.weights.abs().max()) < 1e3
    assert all(torch.isfinite(value).all() for value in tensors_of(made.state_dict()))


def tensors_of(state):
    for value in state.values() if isinstance(state, dict) else []:
        yield from [value] if isinstance(value, torch.Tensor) else tensors_of(value)


def test_lengths_of_honest_updates_are_left_alone():
    state = ModelState(torch.zeros(4), torch.zeros(0))
    lengths = torch.tensor([1e-5, 1.0, 3.0, 2.0, 50.0])
    updates = Updates(
        clients=np.arange(5), deltas=lengths[:, None] * torch.ones(5, 4), buffers=torch.zeros(5, 0),
        num_steps=np.array([1, 1, 1, 1, 30]), losses=np.zeros(5),
    )  # fmt: skip
    assert bad_rows(updates, state, 1e6) == {}
    assert list(bad_rows(updates, state, 1.5)) == [2]
    assert bad_rows(updates, state) == {}
    with pytest.raises(ValueError, match=r"max_norm_ratio=1\.0 must be above 1"):
        FaultPolicy(max_norm_ratio=1.0)
