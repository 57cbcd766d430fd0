"""FederatedLoop: the round, on Lightning Fabric."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from fl_lightning.aggregators import Aggregator, AnonymousMean
from fl_lightning.aggregators.buffers import mixed_buffers
from fl_lightning.data.given import as_federation
from fl_lightning.engine import Engine as LocalEngine
from fl_lightning.engine.arrivals import without_absent
from fl_lightning.engine.batches import steps_per_epoch
from fl_lightning.engine.client_evaluation import ClientEvaluation, ClientEvaluator
from fl_lightning.engine.faults import FaultPolicy, SoundProbe
from fl_lightning.engine.local_parts import LocalParts
from fl_lightning.engine.probe import EngineProbe
from fl_lightning.loop import watching
from fl_lightning.loop.results import MONITOR, Mode, RunRecord, RunResult, averaged_name, with_all_metrics
from fl_lightning.loop.snapshot import restore
from fl_lightning.parts.bases import Partition, check_part
from fl_lightning.parts.protocols import (
    Channel,
    Engine,
    Federation,
    LocalWork,
    Sampling,
    Schedule,
    global_weights,
    no_shift,
)
from fl_lightning.planning import Planner, StepLimit, check_step_limit, target_weights
from fl_lightning.server.averaging import Averaging, ExponentialAverage
from fl_lightning.server.budget import Budget, Spent
from fl_lightning.server.calibration import Calibration
from fl_lightning.server.rates import RateSchedule
from fl_lightning.solvers import Solver, as_solver, warn_of_difference
from fl_lightning.system import Clock
from fl_lightning.system.costs import message_sizes
from fl_lightning.system.defaults import EqualWork, ScheduledLinks, fedavg_sampling
from fl_lightning.types import IntVector, ModelState, RoundPlan, RoundResult, Updates, Vector
from fl_lightning.uploads import Upload, Uploads
from fl_lightning.uploads.hidden import check_hidden_updates


class FederatedLoop:
    """Iterates rounds: schedule, sampling, calibration, channel, local training, aggregation, evaluation, hooks.

    Args:
        rounds: Number of rounds, R.
        lr: Base learning rate eta_1 of the local steps; None with ``solver="module"``, which has its own.
        schedule: Decides T and q of every client; by default all do the same work over links that never fail.
        sampling: Decides who is drawn; by default three tenths of the clients in proportion to their weights (FedAvg).
        channel: Decides whose upload arrives; by default each is lost with the schedule's probability q.
        solver: Makes the local steps; the name of an optimizer of ``torch.optim`` stands for it, and ``"module"`` for
            the module's own ``configure_optimizers``, :class:`fl_lightning.solvers.ModuleOptimizer`.
        aggregator: Turns what arrived into the next model.
        calibration: Gives all algorithms the same expected step length.
        averaging: Averages the global model over the rounds; the average is evaluated beside the model itself.
        uploads: What happens to an update between client and aggregator, one step after another.
        faults: What becomes of updates that are not finite.
        engine: Trains the clients.
        clock: Says how long clients take, who is in time and who can be drawn; one second per local step by default.
        budget: Ends the run when it has cost this much; ``rounds`` is a limit as well.
        batch_size: Examples in a local step; a client with fewer takes all it has.
        max_local_steps: No client is asked for more local steps in a round, though it could take them; None: no limit.
            ``auto``: the harmonic mean of T, see :meth:`fl_lightning.planning.Planner.step_limit`.
        weights: The objective: ``size`` (share of the data), ``uniform``, or one number for each client, as a list or
            as a file of them (.csv, .json, .npy).
        local_parameters: Patterns of the names of parameters and buffers that stay at the clients, such as
            ``["head.*", "*.bn*"]``, see :class:`fl_lightning.engine.local_parts.LocalParts`.
        evaluate_every: Evaluate each n-th round, and the last one.
        evaluate_clients: Evaluate the model on each client's own data after each n-th round; 0: never.
        lr_schedule: Multiplies the base learning rate in each round; constant by default.
        monitor: The headline metric: decides the best round, and is what progress, loggers and summaries show.
        mode: Whether more of the monitored metric is better (``max``) or less (``min``).
        callbacks: Watch the run; see ``docs/lightning.md``.
        fabric: Where to compute; one process on the best device there is by default.
        seed: Of every random stream.
    """

    def __init__(
        self,
        rounds: int,
        lr: float | None,
        schedule: Schedule | None = None,
        sampling: Sampling | None = None,
        channel: Channel | None = None,
        solver: Solver | str | None = None,
        aggregator: Aggregator | None = None,
        calibration: Calibration | None = None,
        averaging: Averaging | None = None,
        uploads: Sequence[Upload] = (),
        faults: FaultPolicy | None = None,
        engine: Engine | None = None,
        clock: Clock | None = None,
        budget: Budget | None = None,
        batch_size: int = 64,
        max_local_steps: StepLimit = None,
        weights: Literal["size", "uniform"] | list[float] | str = "size",
        local_parameters: Sequence[str] = (),
        evaluate_every: int = 1,
        evaluate_clients: ClientEvaluation | int = 0,
        lr_schedule: RateSchedule | None = None,
        monitor: str = MONITOR,
        mode: Mode = "max",
        callbacks: Sequence[Any] = (),
        fabric: Fabric | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in (("rounds", rounds), ("batch_size", batch_size), ("evaluate_every", evaluate_every)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        check_step_limit(max_local_steps)
        if lr is not None and not 0 < lr < float("inf"):
            raise ValueError(f"lr={lr} must be a positive number")
        if seed < 0:
            raise ValueError(f"seed={seed} must not be negative")
        self.rounds, self.lr, self.batch_size, self.seed = rounds, lr, batch_size, seed
        self.max_local_steps = max_local_steps
        self.schedule: Schedule = schedule or EqualWork()
        self.sampling: Sampling = sampling or fedavg_sampling()
        self.channel: Channel = channel or ScheduledLinks()
        check_part("schedule", self.schedule, Schedule)
        check_part("sampling", self.sampling, Sampling)
        check_part("channel", self.channel, Channel)
        self.solver, self.aggregator = as_solver(solver), aggregator or AnonymousMean()
        self.calibration, self.engine = calibration or Calibration(), engine or LocalEngine()
        self.faults, self.averaging = faults or FaultPolicy(), averaging or ExponentialAverage()
        self.weights, self.evaluate_every, self.uploads = weights, evaluate_every, Uploads(uploads)
        self.local_parts, self.client_evaluator = LocalParts(local_parameters), ClientEvaluator(evaluate_clients)
        self.clock, self.budget, self.spent = clock or Clock(), budget or Budget(), Spent()
        self.lr_schedule, self.monitor, self.mode = lr_schedule or RateSchedule(), monitor, mode
        self.record = RunRecord(monitor, mode)
        self.fabric = fabric or Fabric(accelerator="auto", devices=1)
        for callback in (*callbacks, *self.fabric._callbacks):
            watching.check_callback(callback)
        self.callbacks = [self.schedule, self.sampling, self.channel, *callbacks]
        self._watchers: list[Any] = []
        self.round_index = 0  # rounds finished
        self.should_stop = False  # a callback sets this to end after the round
        self.interrupted = False  # set from outside, at any moment, to pause after the round
        self.state: ModelState

    def run(
        self,
        module: LightningModule,
        data: Any,
        resume_from: dict[str, Any] | None = None,
        partition: Partition | None = None,
        test: Any = None,
    ) -> RunResult:
        """Train the module on the clients' data and return what came of it; the module holds the final model.

        A second call starts anew: parts that learned in the first have forgotten it.

        Args:
            module: The model, its loss and its metrics.
            data: A federation; a data source that is not loaded yet; a list with one data set per client; or one data
                set or LightningDataModule, which ``partition`` splits.
            resume_from: What :func:`fl_lightning.loop.snapshot.snapshot` made of a run with the same
                arguments, which is resumed.
            partition: How clients share one data set or data module.
            test: The common test data, where ``data`` is a data set or a list of them.
        """
        for _ in self.iterate(module, data, resume_from, partition, test):
            pass
        return self.record.result(self.state, self.averaging.state, module)

    def iterate(
        self,
        module: LightningModule,
        data: Any,
        resume_from: dict[str, Any] | None = None,
        partition: Partition | None = None,
        test: Any = None,
    ) -> Iterator[RoundResult]:
        """Train as :meth:`run` does and yield the result of each round.

        Leaving the ``for`` early pauses the run: the module holds the state of the last round, and whoever saves
        checkpoints saves one.
        """
        federation = as_federation(data, self.seed, partition, test)
        check_part("federation", federation, Federation)
        federation = self.client_evaluator.prepared(federation, self.seed)
        self._setup(module, federation)
        if resume_from is not None:
            restore(self, resume_from)
        self.call("on_federation_start")
        try:
            while not self.finished and not self._pauses():
                yield self._play(self.round_index + 1)
        except GeneratorExit:
            self._close()
            raise
        self._close()

    def _play(self, index: int) -> RoundResult:
        """Play one round."""
        plan, probe = self._plan(index)
        self.call("on_round_start", plan=plan)
        delivered = self.channel.configure_delivery(self.clock.linked(plan), self.seed)
        delivered = self.clock.in_time(plan, delivered)
        asked = self.aggregator.trains(plan, delivered)
        updates, seconds = self._train(plan, probe, asked)
        # What other machines did is known only now: who answered, and with how many steps.
        delivered, plan = without_absent(delivered, asked, updates), self.planner.reported(plan, updates)
        updates, delivered, faults = self.faults(index, updates, delivered, self.state)
        updates = self.uploads(updates, plan, self.seed)
        self._show_clients(updates)
        self.state = self._aggregate(updates, delivered, plan)
        self.averaging.update(self.state, index)
        self.round_index = index
        costs = self.clock.charged(plan, delivered, self.aggregator, self.sampling, probe.asked)
        self.spent.add(costs)
        metrics, class_accuracy = self._evaluate(plan)
        of_clients = self.client_evaluator(self) if self.client_evaluator.due(index, self._is_last(index)) else {}
        result = RoundResult(
            plan=plan,
            delivered=delivered,
            updates=updates,
            metrics=metrics | self.client_evaluator.columns(self, of_clients),
            training_seconds=seconds,
            class_accuracy=class_accuracy,
            faults=faults,
            costs=costs,
            client_metrics=of_clients,
        )
        result = with_all_metrics(result, self._watchers)
        self.record.add(result.metrics, self.state, self.evaluates(index))
        self.call("on_round_end", result=result)
        return result

    def _close(self) -> None:
        self.engine.load(self.state)
        self.call("on_federation_end" if self.finished else "on_federation_pause")
        self.interrupted = False  # the wish was granted; a later run is not told to pause
        self.engine.close()

    @property
    def finished(self) -> bool:
        """Whether there is no round left to do."""
        return self.round_index >= self.rounds or self.should_stop or self.spent.exceeds(self.budget)

    def _pauses(self) -> bool:
        """Whether any process was told to stop; all of them must leave after the same round."""
        if self.fabric.world_size > 1:
            told = torch.tensor(float(self.interrupted), device=self.fabric.device)
            total: Any = self.fabric.all_reduce(told, reduce_op="sum")
            self.interrupted = float(total) > 0
        return self.interrupted

    def _setup(self, module: LightningModule, federation: Federation) -> None:
        self.round_index, self.should_stop = 0, False
        watching.start_anew(self)
        self.module, self.federation = module, federation
        self.client_weights = target_weights(self.weights, federation.sizes)
        num_draws = self.sampling.num_draws(len(federation.sizes))
        self.state = self.engine.setup(
            self.fabric, module, federation, self.solver, self.batch_size, self.seed, num_draws
        )
        # After the engine, because a module may make its layers in the hooks that the engine calls.
        self.base_rate = self.solver.setup(module, self.lr)
        if self.fabric.is_global_zero:
            warn_of_difference(module, self.solver, self.lr)
        self.local_parts.setup(self.module, self.state)
        self.aggregator.setup(len(federation.sizes), self.state.weights)
        self.averaging.setup()
        self.uploads.setup(len(federation.sizes), self.state.weights)
        self.planner = Planner(
            schedule=self.schedule,
            sampling=self.sampling,
            aggregator=self.aggregator,
            solver=self.solver,
            calibration=self.calibration,
            uploads=self.uploads,
            clock=self.clock,
            weights=self.client_weights,
            learning_rate=self.base_rate,
            steps_per_epoch=steps_per_epoch(federation.sizes, self.batch_size),
            seed=self.seed,
            rate_factor=lambda index: self.lr_schedule.factor(index, self.rounds),
            max_local_steps=self.max_local_steps,
        )
        sizes = message_sizes(self.state, self.local_parts.num_kept, self.aggregator, self.uploads)
        self.clock.setup(len(federation.sizes), self.seed, self.planner.raw_profiles, sizes)
        self.planner.start()
        check_hidden_updates(self)
        self._watchers = [*watching.watchers(self), *self.uploads.steps, self.aggregator]

    def load_client(self, client: int) -> ModelState:
        """Put a client's own model into the module and return it: the global one but for its local parameters."""
        if not 0 <= client < len(self.client_weights):
            raise ValueError(f"client={client} must be in 0..{len(self.client_weights) - 1}")
        state = self.local_parts.personalised(client, self.state)
        self.engine.load(state)
        return state

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of everybody who watches: the loop's callbacks, then Fabric's."""
        for watcher in self._watchers:
            method = getattr(watcher, hook, None)
            if method is not None:
                method(loop=self, **arguments)

    def _show_clients(self, updates: Updates) -> None:
        if any(hasattr(watcher, "on_client_end") for watcher in self._watchers):
            for row in range(len(updates)):
                self.call("on_client_end", update=updates[row])

    def _plan(self, index: int) -> tuple[RoundPlan, EngineProbe]:
        conditions = self.planner.conditions(index)
        work = self._work(index, conditions.num_steps, self.planner.base_rate(index))
        probe = EngineProbe(self.engine, self.state, work)
        asked = SoundProbe(self.local_parts.probe(probe, self.state))
        return self.planner.plan(index, conditions, asked), probe

    def _work(self, index: int, num_steps: IntVector, lr: float) -> LocalWork:
        # Most algorithms change neither: the engine then need not ask for each client.
        own_start = type(self.aggregator).start is not Aggregator.start
        shifts = type(self.aggregator).gradient_shift is not Aggregator.gradient_shift
        return LocalWork(
            round_index=index,
            num_steps=num_steps,
            learning_rate=lr,
            start=self._start if self.local_parts else self.aggregator.start if own_start else global_weights,
            gradient_shift=self.aggregator.gradient_shift if shifts else no_shift,
            start_buffers=self.local_parts.start_buffers,
        )

    def _start(self, client: int, weights: torch.Tensor) -> torch.Tensor:
        return self.local_parts.start(client, self.aggregator.start(client, weights))

    def _train(self, plan: RoundPlan, probe: EngineProbe, uploading: IntVector) -> tuple[Updates, float]:
        began, drawn = time.perf_counter(), plan.cohort.clients
        clients = self.local_parts.trains(uploading, drawn)
        work = self._work(plan.index, plan.profiles.num_steps, plan.learning_rate)
        updates = probe.trained(clients, plan.learning_rate)
        if updates is None:
            self._prefetch(plan.index, clients)
            updates = self.engine.train(self.state, clients, work)
        return self.local_parts.keep(updates, uploading, drawn, self.state, work), time.perf_counter() - began

    def _prefetch(self, index: int, clients: IntVector) -> None:
        """Let data that is loaded when needed come before the need; with several processes each loads its own."""
        prefetch = getattr(self.federation, "prefetch", None)
        if prefetch is not None and self.fabric.world_size == 1:
            prefetch(clients, lambda: self.planner.next_clients(index + 1).tolist() if index < self.rounds else [])

    def _aggregate(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> ModelState:
        weights = self.aggregator(self.state.weights, updates, delivered, plan)
        weights = self.local_parts.restored(weights, self.state.weights)
        state = ModelState(weights, mixed_buffers(self.state.buffers, updates, delivered, plan))
        self.faults.check_aggregate(plan.index, updates, state)
        return state

    def evaluates(self, index: int) -> bool:
        """Whether the model is evaluated after a round; never where there is no test data."""
        due = index % self.evaluate_every == 0 or self._is_last(index)
        return due and getattr(self.federation, "test", True) is not None

    def _is_last(self, index: int) -> bool:
        return index == self.rounds or (index == self.round_index and self.spent.exceeds(self.budget))

    def _evaluate(self, plan: RoundPlan) -> tuple[dict[str, float], Vector]:
        if not self.evaluates(plan.index):
            return {}, np.empty(0)
        metrics, class_accuracy = self.engine.evaluate(self.state)
        metrics |= self.federation.measure(self.state.weights, plan)
        averaged = self.averaging.state
        if averaged is not None:
            found, _ = self.engine.evaluate(averaged)
            found |= self.federation.measure(averaged.weights, plan)
            metrics |= {averaged_name(name): value for name, value in found.items()}
        return metrics, class_accuracy
