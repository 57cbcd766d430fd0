"""Aggregators with memory report the work that memory holds, also where T and q move together in time."""

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import LastKnownUpdates, MemorizedMean
from fl_lightning.callbacks import ChannelFailures, SamplerSelection
from fl_lightning.diagnosis.dry_run import GivenConditions
from fl_lightning.samplers import Importance
from fl_lightning.server.rates import Calibration
from fl_lightning.solvers import SGD
from fl_lightning.types import Conditions, Updates
from made import made_planner

M, ROUNDS = 4, 3000
BUSY = Conditions(
    np.array([20, 4, 4, 4]), np.array([0.8, 0.1, 0.1, 0.1])
)  # the first client is lost when it works much
IDLE = Conditions(np.array([2, 4, 4, 4]), np.array([0.0, 0.1, 0.1, 0.1]))


@pytest.mark.parametrize("make", [MemorizedMean, LastKnownUpdates, lambda: LastKnownUpdates("paper")])
def test_reported_and_applied_work_agree(make):
    """Clients send A times their unit vector, so the sum of the directions shows what was applied of each."""
    aggregator, channel = make(), ChannelFailures()
    planner = made_planner(
        schedule=GivenConditions([BUSY, IDLE]),
        sampling=SamplerSelection(Importance(), 4),
        aggregator=aggregator,
        solver=SGD(),
        calibration=Calibration("none"),
        weights=np.full(M, 1 / M),
        learning_rate=1.0,
        steps_per_epoch=np.ones(M, dtype=np.int64),
    )
    aggregator.setup(M, torch.zeros(M, dtype=torch.float64))
    applied, reported = torch.zeros(M, dtype=torch.float64), np.zeros(M)
    for index in range(1, ROUNDS + 1):
        plan = planner.plan(index)
        delivered = channel.configure_delivery(plan, 0)
        clients = np.flatnonzero(delivered)
        deltas = (
            torch.eye(M, dtype=torch.float64)[clients] * torch.from_numpy(plan.profiles.accumulation[clients])[:, None]
        )
        updates = Updates(
            clients=clients,
            deltas=deltas,
            buffers=deltas.new_empty((len(clients), 0)),
            num_steps=plan.profiles.num_steps[clients],
            losses=np.zeros(len(clients)),
        )
        if index > 100:
            reported += plan.expected.contribution
        direction = aggregator.direction(updates, delivered, plan)
        if index > 100:
            applied += direction
    found = applied.numpy() / applied.numpy().sum()
    assert np.abs(found - reported / reported.sum()).sum() < 0.02
