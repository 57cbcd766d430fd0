"""A long run with many clients neither grows nor leaks."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_lightning.callbacks import (
    ComputationTime,
    HeterogeneitySchedule,
    RoundCheckpoint,
    RunRecorder,
    SamplerSelection,
)
from fl_lightning.data import TensorFederation
from fl_lightning.samplers import HeterogeneityAware
from systems import PAPER_GROUPS, linear_module, small_loop


class Gauge:
    """Measures the process after each round."""

    def __init__(self):
        self.resident, self.handles = [], []

    def on_round_end(self, loop, result):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.resident.append(pages * os.sysconf("SC_PAGE_SIZE"))
        self.handles.append(len(os.listdir("/proc/self/fd")))


def many_clients(num_clients):
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(0, 3, num_clients))
    inputs = torch.from_numpy(rng.normal(size=(num_clients, 5))).float()
    data = (inputs, labels)
    return TensorFederation(data, (inputs[:100], labels[:100]), list(np.arange(num_clients)[:, None]))


def run(num_clients, rounds, folder):
    gauge = Gauge()
    recorder, checkpoint = RunRecorder(str(folder)), RoundCheckpoint(str(folder / "checkpoints"), 50, min_seconds=0)
    loop = small_loop(
        rounds=rounds,
        schedule=HeterogeneitySchedule(groups=PAPER_GROUPS),
        sampling=SamplerSelection(HeterogeneityAware(), 100),
        callbacks=[ComputationTime(), recorder, gauge, checkpoint],
    )
    loop.run(linear_module(), many_clients(num_clients))
    return np.array(gauge.resident, dtype=float), gauge.handles


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs /proc to measure")
@pytest.mark.parametrize(
    ("num_clients", "rounds"), [(1000, 60), pytest.param(10_000, 1000, marks=pytest.mark.slow)], ids=["short", "whole"]
)
def test_memory_is_flat_and_no_handle_leaks(num_clients, rounds, tmp_path, capsys):
    resident, handles = run(num_clients, rounds, tmp_path)
    half = resident[rounds // 2 :]
    growth = half[-10:].mean() / half[:10].mean() - 1
    with capsys.disabled():
        print(f"\n{rounds} rounds of {num_clients} clients: {resident[-1] / 1e6:.1f} MB, growth {growth:+.3%}")
    assert growth < 0.01
    assert max(handles[rounds // 2 :]) <= max(handles[: rounds // 2])
