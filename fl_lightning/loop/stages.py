"""The stages of a round: plan, local training, what happens to updates, aggregation, evaluation."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from lightning.pytorch import LightningModule

from fl_lightning.aggregators.aggregator import mixed_buffers
from fl_lightning.engine.evaluation import ClientEvaluator, slow_half
from fl_lightning.engine.local_parts import EngineProbe, LocalParts
from fl_lightning.loop.results import RunRecord, averaged_name, with_all_metrics
from fl_lightning.parts.protocols import Engine, Federation, Handout
from fl_lightning.planning import Planner
from fl_lightning.server.faults import without_absent
from fl_lightning.system.pace import message_sizes
from fl_lightning.types import (
    Asked,
    IntVector,
    ModelState,
    Received,
    RoundCosts,
    RoundPlan,
    RoundResult,
    Updates,
    Vector,
)
from fl_lightning.uploads.hidden import check_hidden_updates, released

Columns: TypeAlias = Callable[..., dict[str, float]]  # a callback's configure_metrics
_NOBODY = Asked()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is known of the model after a round."""

    metrics: dict[str, float] = field(default_factory=dict)  # on the common test data
    class_accuracy: Vector = field(default_factory=lambda: np.empty(0))
    of_clients: dict[str, Vector] = field(default_factory=dict)  # each metric on each client's own data, (M,)
    columns: dict[str, float] = field(default_factory=dict)  # how these are spread over the clients


@dataclass(kw_only=True)
class Stages:
    """Plays the stages of rounds. Each takes the global model and records made before it, and changes neither."""

    planner: Planner
    engine: Engine
    federation: Federation
    record: RunRecord  # knows the headline metric
    local_parts: LocalParts | None = None  # what stays at the clients
    clients: ClientEvaluator | None = None  # evaluates on data of single clients
    prefetch: Callable[..., None] | None = None  # loads the data that the next round needs

    def __post_init__(self) -> None:
        self.algorithm, self.system = self.planner.algorithm, self.planner.system
        self.between = self._stages_between()  # training and aggregation

    def start(self, module: LightningModule, state: ModelState) -> None:
        """Let each part get ready for a run, once before its first round."""
        algorithm, planner, num_clients = self.algorithm, self.planner, len(self.planner.weights)
        kept = (0, 0)
        if self.local_parts is not None:
            self.local_parts.setup(module, state)
            kept = self.local_parts.num_kept
        if algorithm.personal is not None:
            algorithm.personal.setup(num_clients, state, self.local_parts)
        for part in (algorithm.aggregator, algorithm.uploads):
            part.setup(num_clients, state.weights)
        sizes = message_sizes(state, kept, algorithm.aggregator, algorithm.uploads)
        self.system.clock.setup(num_clients, planner.seed, planner.raw_profiles, sizes)
        planner.start()
        num_buffers = len(state.buffers) - kept[1]
        check_hidden_updates(algorithm, num_buffers)
        algorithm.uploads.start(planner, num_buffers)

    def plan(self, index: int, state: ModelState) -> tuple[RoundPlan, EngineProbe | None]:
        """Plan a round, and return who answered the questions of the sampler, where it asks any."""
        planner = self.planner
        if planner.sampling_traits.asks == "nothing":
            return planner.plan(index), None
        conditions = planner.conditions(index)
        before = planner.unasked(index, conditions)
        probe = EngineProbe(self.engine, state, before, self._handout(before), self.local_parts)
        return planner.plan(index, conditions, probe), probe

    def receive(self, state: ModelState, plan: RoundPlan, probe: EngineProbe | None) -> tuple[Received, float]:
        """Return what the server has of a round before it aggregates, and the seconds of local training."""
        delivered = self.system.clock.delivered(plan, self.system.channel, self.planner.seed)
        began = time.perf_counter()
        updates = self._train(state, plan, probe, self.algorithm.aggregator.trains(plan, delivered))
        seconds = time.perf_counter() - began
        received = Received(plan=plan, delivered=delivered, updates=updates)
        for stage in self.between:
            received = stage(received, state)
        return received, seconds

    def _handout(self, plan: RoundPlan) -> Handout:
        handout = self.algorithm.aggregator.handout(plan)
        return handout if self.local_parts is None else self.local_parts.added_to(handout)

    def _train(self, state: ModelState, plan: RoundPlan, probe: EngineProbe | None, uploading: IntVector) -> Updates:
        handout, personal = self._handout(plan), self.algorithm.personal
        if personal is not None:
            handout = personal.before(self.engine, state, plan, handout)
        # Where something stays at the clients, those whose upload is lost keep what they trained.
        clients = uploading if self.local_parts is None else np.union1d(uploading, plan.cohort.clients)
        asked = probe if handout.step is None else None  # who was asked has made other steps
        updates = None if asked is None else asked.trained(clients, plan.learning_rate)
        if updates is None:
            if self.prefetch is not None:
                self.prefetch(clients, lambda: self._following(plan.index + 1))
            updates = self.engine.train(state, plan, clients, handout)
        if self.local_parts is not None:
            updates = self.local_parts.keep(updates, uploading, state, plan, handout)
        if personal is not None:
            personal.after(self.engine, state, plan)
        return updates

    def _following(self, index: int) -> list[int]:
        """Return who will train in a round, as far as that is known and there will be one."""
        last = self.planner.rounds
        return self.planner.next_clients(index).tolist() if last is None or index <= last else []

    def _stages_between(self) -> list[Callable[[Received, ModelState], Received]]:
        """Return what happens to the updates of a round before they are aggregated."""
        uploads, faults = self.algorithm.uploads, self.algorithm.faults
        stages: list[Callable[[Received, ModelState], Received]] = []
        if self.engine.is_elsewhere:
            stages.append(self._reported)
        private = uploads.noise is not None
        stages.append(lambda received, state: faults(received, state, private))
        if uploads.steps:
            seed = self.planner.seed
            stages.append(lambda each, _: replace(each, updates=uploads(each.updates, each.arrived_plan, seed)))
        return stages

    def _reported(self, received: Received, _: ModelState) -> Received:
        """What other machines did is known only after the training: who answered, and with how many steps."""
        plan, updates = received.plan, received.updates
        asked = self.algorithm.aggregator.trains(plan, received.delivered)
        delivered = without_absent(received.delivered, asked, updates)
        return replace(received, delivered=delivered, plan=self.planner.reported(plan, updates))

    def aggregate(self, state: ModelState, received: Received) -> ModelState:
        """Return the next global model."""
        plan, updates = received.plan, received.updates
        weights = self.algorithm.aggregator(state.weights, updates, received.delivered, plan)
        if self.local_parts is not None:
            weights = self.local_parts.restored(weights, state.weights)
        buffers = state.buffers
        if len(buffers):
            buffers = mixed_buffers(buffers, updates, received.delivered, plan)
        following = ModelState(weights, buffers)
        self.algorithm.faults.check_aggregate(plan.index, updates, following)
        return following

    def costs(self, received: Received, probe: EngineProbe | None) -> RoundCosts:
        """Return what the round has cost."""
        asks, asked = self.planner.sampling_traits.asks, _NOBODY if probe is None else probe.asked
        clock, personal = self.system.clock, self.algorithm.personal
        costs = clock.charged(received.plan, received.delivered, self.algorithm.aggregator, asks, asked)
        return costs if personal is None else personal.charged(costs, received.plan, clock)

    def personalised(self, client: int, state: ModelState) -> ModelState:
        """Return a client's own model: a second one, or the global one but for its local parameters."""
        personal = self.algorithm.personal
        own = None if personal is None else personal.of(client, state)
        if own is not None:
            return own
        return state if self.local_parts is None else self.local_parts.personalised(client, state)

    def evaluate(self, state: ModelState, plan: RoundPlan) -> Measured:
        """Evaluate the global model, and the averaged one where there is one, on the common test data."""
        metrics, class_accuracy = self.engine.evaluate(state)
        metrics |= self.federation.measure(state.weights, plan)
        averaged = self.algorithm.averaging.state
        if averaged is not None:
            found, _ = self.engine.evaluate(averaged)
            found |= self.federation.measure(averaged.weights, plan)
            metrics |= {averaged_name(name): value for name, value in found.items()}
        return Measured(metrics=metrics, class_accuracy=class_accuracy)

    def evaluate_clients(self, clients: ClientEvaluator, state: ModelState, index: int, measured: Measured) -> Measured:
        """Evaluate the model, or each client's own, on the data of each client."""
        shared = self.local_parts is None and self.algorithm.personal is None
        found = clients(self.engine, state, index, None if shared else partial(self.personalised, state=state))
        steps = np.mean([profiles.num_steps for profiles in self.planner.raw_profiles()], axis=0)
        slow = slow_half(self.system.clock.pace(1).seconds_per_step, steps)
        columns = clients.columns(found, self.record.monitor, self.record.mode == "max", slow)
        return replace(measured, of_clients=found, columns=columns)

    def result(
        self, received: Received, costs: RoundCosts, seconds: float, measured: Measured, columns: Iterable[Columns]
    ) -> RoundResult:
        """Return what became of a round, with the columns that callbacks add."""
        result = RoundResult(
            plan=received.plan,
            delivered=received.delivered,
            updates=received.updates,
            metrics=measured.metrics | measured.columns,
            training_seconds=seconds,
            class_accuracy=measured.class_accuracy,
            faults=received.faults,
            costs=costs,
            client_metrics=measured.of_clients,
        )
        result, uploads = with_all_metrics(result, columns), self.algorithm.uploads
        secret = uploads.secret if uploads.steps else None
        return result if secret is None else released(result, measured.metrics, secret.secret_draws)
