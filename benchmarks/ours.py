"""The same work done by fl_lightning."""

import time
from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from benchmarks.workloads import Workload
from fl_lightning.algorithms import Algorithm, System
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data.federation import TensorFederation
from fl_lightning.engine import Engine
from fl_lightning.loop import FederatedLoop
from fl_lightning.module import FederatedModule
from fl_lightning.samplers import Uniform
from fl_lightning.server.averaging import NoAverage


class Regression(LightningModule):
    """A network with a squared error."""

    def __init__(self, network: torch.nn.Module, workload: Workload) -> None:
        super().__init__()
        self.network, self.loss = network, workload.loss

    def training_step(self, batch, batch_idx):
        return self.loss(self.network(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(self.network(batch[0]), batch[1]))


class _TimedEngine(Engine):
    """Notes how long the evaluation takes."""

    evaluation = 0.0

    def evaluate(self, state):
        began = time.perf_counter()
        result = super().evaluate(state)
        self.evaluation = time.perf_counter() - began
        return result


class _Pace:
    """Tells after each round where its time went, and waits until the next one is wanted."""

    def __init__(self, pause: Callable[[dict[str, Any]], bool]) -> None:
        self.pause = pause

    def on_federation_start(self, loop) -> None:
        self.pause({})

    def on_round_end(self, loop, result) -> None:
        plan = result.plan
        parts = {
            "training": result.training_seconds,
            "evaluation": loop.engine.evaluation,
            "mode": loop.engine.choice.mode,
            "trained": len(result.updates),
            "expected": len(plan.cohort.clients) * float(plan.cohort.probabilities @ (1 - plan.profiles.failure_rates)),
        }
        loop.should_stop = not self.pause(parts)


def run(workload: Workload, pause: Callable[[dict[str, Any]], bool], mode: str = "auto", devices: int = 1) -> None:
    """Play rounds until ``pause`` returns False."""
    fabric = Fabric(accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto")
    fabric.launch()
    play(workload, _Pace(pause if fabric.global_rank == 0 else lambda parts: True), mode, fabric)


def play(
    workload: Workload,
    watcher: Any,
    mode: str = "auto",
    fabric: Fabric | None = None,
    clock: Any = None,
    **settings: Any,
) -> None:
    """Play rounds until a watcher stops the loop, with further arguments of the loop as given."""
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    loop = loop_of(workload, _TimedEngine(mode), fabric, clock, callbacks=[watcher], **settings)
    federation = federation_of(workload)
    loop.run(module_of(workload), federation)


def federation_of(workload: Workload) -> TensorFederation:
    """Return the clients' data."""
    inputs, targets, test_inputs, test_targets = workload.data()
    return TensorFederation((inputs, targets), (test_inputs, test_targets), workload.clients())


def module_of(workload: Workload) -> LightningModule:
    """Return the model, the same each time."""
    torch.manual_seed(0)
    network = workload.network()
    return FederatedModule(network, workload.num_classes) if workload.num_classes else Regression(network, workload)


def loop_of(
    workload: Workload,
    engine: Engine,
    fabric: Fabric,
    clock: Any = None,
    rounds: int = 1_000_000,
    **settings: Any,
) -> FederatedLoop:
    """Return the loop of a workload."""
    healthy = Group(0.5 if workload.lossy_half else 1.0, workload.num_steps, 0.0)
    groups = [Group(0.5, workload.num_steps, (0.4, 0.5)), healthy] if workload.lossy_half else [healthy]
    return FederatedLoop(
        # No average, as the loop by hand, which evaluates one model.
        Algorithm(sampling=SamplerSelection(Uniform(), workload.clients_per_round), averaging=NoAverage()),
        System(schedule=HeterogeneitySchedule(groups=groups), channel=ChannelFailures(), clock=clock),
        rounds=rounds,
        lr=workload.learning_rate,
        engine=engine,
        batch_size=workload.batch_size,
        fabric=fabric,
        **settings,
    )
