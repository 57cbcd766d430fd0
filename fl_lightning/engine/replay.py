"""Engines that let others train, and Replayed, which trains here what other machines trained before, bit for bit."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from fl_lightning.engine.engine import Engine
from fl_lightning.parts.protocols import PLAIN, Batch, Federation, Handout, LocalWork
from fl_lightning.parts.protocols import Engine as AnyEngine
from fl_lightning.solvers import Solver
from fl_lightning.system.traces import Delivery, read_deliveries
from fl_lightning.types import BoolVector, IntVector, ModelState, RoundPlan, Updates, Vector


class TrainsElsewhere:
    """Leaves everything but training and questions to an engine of this process."""

    is_elsewhere = True

    def __init__(self, local: AnyEngine) -> None:
        self.local = local

    def evaluate(self, state: ModelState) -> tuple[dict[str, float], Vector]:
        """Return the metrics of the global model on the test data, and its accuracy per class."""
        return self.local.evaluate(state)

    def evaluate_batch(self, state: ModelState, batch: Batch) -> dict[str, float]:
        """Return the metrics of a state on one batch of the federation."""
        return self.local.evaluate_batch(state, batch)

    def evaluate_clients(self, state: ModelState, round_index: int, max_examples: int) -> list[dict[str, float]] | None:
        """Return nothing where the clients' data is here."""
        return self.local.evaluate_clients(state, round_index, max_examples)

    def label_counts(self) -> IntVector:
        """Refuse: nobody's data is here, and nodes are not asked for their labels."""
        raise ValueError(
            "the sampler asks clients for the labels of their data, which clients on other machines are not asked for: "
            "use a sampler that does not, such as HeterogeneityAware"
        )

    def load(self, state: ModelState) -> None:
        """Put a state into the module."""
        self.local.load(state)

    def close(self) -> None:
        """End the run."""
        self.local.close()


class Replayed(TrainsElsewhere):
    """Trains clients as another engine does, but answers only for those who answered in a recorded deployment.

    Every random stream is a function of (seed, purpose, round, client), so who answered, and with how many steps, is
    all that a simulation needs to know of a deployment. Take the deployment's own config and change the engine alone.

    Args:
        path: ``deliveries.csv`` in the folder of the deployed run.
        engine: Trains.
    """

    def __init__(self, path: str, engine: Engine | None = None) -> None:
        self.path = path
        self.engine = engine or Engine()
        super().__init__(self.engine)
        self._recorded: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
        for delivery in read_deliveries(Path(path)):
            self._recorded[delivery.round_index, delivery.question].append(delivery)
        self._round, self._question = 0, 0

    def setup(
        self,
        fabric: Fabric,
        module: LightningModule,
        federation: Federation,
        solver: Solver,
        batch_size: int,
        seed: int,
        num_draws: int | None = None,
    ) -> ModelState:
        """Bind the engine to a module and its data and return the initial state."""
        self._round, self._question = 0, 0
        return self.engine.setup(fabric, module, federation, solver, batch_size, seed, num_draws)

    def train(self, state: ModelState, plan: RoundPlan, clients: IntVector, handout: Handout = PLAIN) -> Updates:
        """Train those of the clients that answered, with the steps that they reported."""
        work = LocalWork.planned(plan, handout)
        answers = self._answers(work.round_index, clients)
        answered = np.array([each.client for each in answers if each.arrived], dtype=np.int64)
        num_steps = work.num_steps.copy()
        num_steps[answered] = [each.num_steps for each in answers if each.arrived]
        return self.engine.work(state, answered, replace(work, num_steps=num_steps))

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client; NaN of those that did not answer."""
        losses = self.engine.losses(state, clients, round_index)
        return np.where(self._arrived(round_index, clients), losses, np.nan)

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client; zeros of those that did not answer, (n, d)."""
        gradients = self.engine.gradients(state, clients, round_index)
        gradients[torch.from_numpy(~self._arrived(round_index, clients))] = 0
        return gradients

    def _arrived(self, round_index: int, clients: IntVector) -> BoolVector:
        return np.array([each.arrived for each in self._answers(round_index, clients)], dtype=bool)

    def _answers(self, round_index: int, clients: IntVector) -> list[Delivery]:
        """Return what was recorded of the next question of a round, in the order of the clients."""
        self._question = self._question + 1 if round_index == self._round else 0
        self._round = round_index
        recorded = self._recorded.get((round_index, self._question), [])
        if [each.client for each in recorded] != clients.tolist():
            raise ValueError(
                f"{self.path} does not fit this run: in round {round_index} clients {_listed(clients.tolist())} are "
                f"asked, but {_listed([each.client for each in recorded])} are recorded: replay with the config and "
                "the seed of the deployed run, and not beyond its last round"
            )
        return recorded


def _listed(clients: list[int]) -> str:
    return ", ".join(map(str, clients[:10])) + (", ..." if len(clients) > 10 else "") if clients else "none"
