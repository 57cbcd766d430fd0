"""What an algorithm really does, by playing rounds with clients whose gradients are unit vectors.

Client m answers with Delta_m = A_m (e_m + s_m), s the shift of its gradients. The sum of all steps of the server is
then, up to its length, the objective that was optimised: nothing of the planning is repeated here. Real planner, clock,
channel, uploads and aggregator are driven.
"""

import copy
from dataclasses import replace

import numpy as np
import torch

from fl_lightning.algorithms import Algorithm, System
from fl_lightning.callbacks import ChannelFailures
from fl_lightning.diagnosis.dry_run import GivenConditions, planner_of
from fl_lightning.diagnosis.objective import Diagnosis
from fl_lightning.diagnosis.systems import diagnosed
from fl_lightning.parts.protocols import PLAIN
from fl_lightning.planning import Planner
from fl_lightning.system import Clock, Traffic
from fl_lightning.types import Conditions, Profiles, RoundResult, Updates


def played_planner(conditions: list[Conditions], weights: np.ndarray, clock: Clock | None = None, **system) -> Planner:
    """Return a planner of clients whose rounds are given, with a clock that is set up for them."""
    clock = clock or Clock()

    def forecast():
        for each in conditions:
            yield Profiles(conditions=each, weights=weights, accumulation=each.num_steps.astype(np.float64))

    clock.setup(len(weights), 0, forecast, Traffic(download=1.0, upload=1.0, model=4.0))
    channel = system.pop("channel", None) or ChannelFailures()
    made = System(schedule=GivenConditions(conditions), channel=channel, clock=clock)
    return planner_of(Algorithm(), made, weights, 0.01)


def predicted(algorithm: Algorithm, planner: Planner) -> Diagnosis:
    """Return what ``diagnose`` says of an algorithm."""
    found, unknown = diagnosed([("it", copy.deepcopy(algorithm))], planner)
    assert not unknown
    return found[0]


def measured(algorithm: Algorithm, planner: Planner, num_rounds: int, skip: int = 0, seed: int = 1) -> np.ndarray:
    """Return the objective that rounds of an algorithm descend, after the first ones, (M,)."""
    plans = replace(
        planner_of(copy.deepcopy(algorithm), planner.system, planner.weights, planner.learning_rate), seed=seed
    )
    plans.start()
    aggregator, uploads, size = plans.algorithm.aggregator, plans.algorithm.uploads, len(planner.weights)
    model = torch.zeros(size, dtype=torch.float64)
    aggregator.setup(size, model)
    uploads.setup(size, model)
    total = torch.zeros_like(model)
    for index in range(1, num_rounds + 1):
        plan = plans.plan(index)
        delivered = plans.system.clock.delivered(plan, plans.system.channel, seed)
        clients = aggregator.trains(plan, delivered)
        updates = uploads(_updates(plan, clients, aggregator.handout(plan)), plan, seed)
        step = aggregator.step(model, updates, delivered, plan)
        model = model - step
        result = RoundResult(plan=plan, delivered=delivered, updates=updates, metrics={}, training_seconds=0.0)
        plans.algorithm.sampling.on_round_end(loop=None, result=result)
        if index > skip:
            total += step
    return (total / total.sum()).numpy()


def _updates(plan, clients, handout) -> Updates:
    accumulation = torch.from_numpy(plan.profiles.accumulation[clients])[:, None]
    gradients = torch.eye(plan.profiles.num_clients, dtype=torch.float64)[torch.from_numpy(clients)]
    if handout.gradient_shift is not PLAIN.gradient_shift and len(clients):
        gradients = gradients + torch.stack([handout.gradient_shift(client) for client in clients.tolist()])
    return Updates(
        clients=clients,
        deltas=accumulation * gradients,
        buffers=gradients.new_empty((len(clients), 0)),
        num_steps=plan.profiles.num_steps[clients],
        losses=np.zeros(len(clients)),
    )


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """L1 distance."""
    return float(np.abs(first - second).sum())
