"""The control plane: what a round decides before anybody trains, against the number of clients."""

import time
import tracemalloc

import numpy as np

from fl_lightning.aggregators import AnonymousMean
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.engine.machine import keep_freed_memory
from fl_lightning.planning import Planner
from fl_lightning.samplers import HeterogeneityAware

GROUPS = [Group(0.5, (1, 10), (0.4, 0.5)), Group(0.5, (20, 30), (0.0, 0.1))]


class ControlPlane:
    """Schedule, FedACS sampling, calibration, channel and the vectors of the theory for M clients, without training."""

    def __init__(self, num_clients: int, clients_per_round: int = 100) -> None:
        self.channel, self.aggregator = ChannelFailures(), AnonymousMean()
        sampling = SamplerSelection(HeterogeneityAware(), min(clients_per_round, num_clients))
        self.planner = Planner(
            algorithm=Algorithm(sampling=sampling, aggregator=self.aggregator),
            system=System(schedule=HeterogeneitySchedule(groups=GROUPS)),
            weights=np.full(num_clients, 1 / num_clients),
            learning_rate=0.01,
            steps_per_epoch=np.ones(num_clients, dtype=np.int64),
        )

    def round(self, index: int) -> float:
        """Plan one round and return its chi-square."""
        plan = self.planner.plan(index)
        delivered = self.channel.configure_delivery(plan, 0)
        self.aggregator.trains(plan, delivered)
        plan.step_length  # noqa: B018  computed once per round
        return plan.chi_square


def measure(num_clients: int, repeats: int) -> dict[str, float]:
    """Return the least wall and CPU seconds of a round, and the most memory it takes."""
    keep_freed_memory()  # as the engine does
    plane = ControlPlane(num_clients)
    plane.round(1)
    walls, cpus = [], []
    for index in range(2, 2 + repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        plane.round(index)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    tracemalloc.start()
    plane.round(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"clients": num_clients, "wall": min(walls), "cpu": min(cpus), "megabytes": peak / 1e6}
