"""FederatedLoop: the round, on Lightning Fabric."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from fl_lightning.aggregators import Aggregator, AnonymousMean
from fl_lightning.aggregators.buffers import mixed_buffers
from fl_lightning.calibration import Calibration
from fl_lightning.checkpointing.snapshot import restore
from fl_lightning.engine import Engine as LocalEngine
from fl_lightning.engine.batches import steps_per_epoch
from fl_lightning.engine.probe import EngineProbe
from fl_lightning.faults import FaultPolicy, SoundProbe
from fl_lightning.local_parts import LocalParts
from fl_lightning.planning import Planner
from fl_lightning.protocols import Channel, Engine, Federation, LocalWork, Sampling, Schedule
from fl_lightning.solvers import SGD, ModuleOptimizer, Solver, tell_difference
from fl_lightning.types import IntVector, ModelState, RoundPlan, RoundResult, Updates, Vector


class FederatedLoop:
    """Iterates rounds: schedule, sampling, calibration, channel, local training, aggregation, evaluation, hooks.

    Args:
        rounds: Number of rounds, R.
        lr: Base learning rate eta_1 of the local steps; None with ``solver="module"``, which has its own.
        schedule: Decides T and q of every client.
        sampling: Decides who is drawn.
        channel: Decides whose upload arrives.
        solver: Makes the local steps; ``"module"`` stands for :class:`fl_lightning.solvers.ModuleOptimizer`, the
            module's own ``configure_optimizers``.
        aggregator: Turns what arrived into the next model.
        calibration: Gives all algorithms the same expected step length.
        faults: What becomes of updates that are not finite.
        engine: Trains the clients.
        batch_size: Examples in a local step; a client with fewer takes all it has.
        weights: The objective: ``size`` (share of the data), ``uniform``, or one number for each client.
        local_parameters: Patterns of the names of parameters and buffers that stay at the clients, such as
            ``["head.*", "*.bn*"]``, see :class:`fl_lightning.local_parts.LocalParts`.
        evaluate_every: Evaluate each n-th round, and the last one.
        callbacks: Watch the run; see ``docs/lightning.md``.
        fabric: Where to compute; one CPU process by default.
        seed: Of every random stream.
    """

    def __init__(
        self,
        rounds: int,
        lr: float | None,
        schedule: Schedule,
        sampling: Sampling,
        channel: Channel,
        solver: Solver | Literal["module"] | None = None,
        aggregator: Aggregator | None = None,
        calibration: Calibration | None = None,
        faults: FaultPolicy | None = None,
        engine: Engine | None = None,
        batch_size: int = 64,
        weights: Literal["size", "uniform"] | list[float] = "size",
        local_parameters: Sequence[str] = (),
        evaluate_every: int = 1,
        callbacks: Sequence[Any] = (),
        fabric: Fabric | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in (("rounds", rounds), ("batch_size", batch_size), ("evaluate_every", evaluate_every)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if lr is not None and not 0 < lr < float("inf"):
            raise ValueError(f"lr={lr} must be a positive number")
        if seed < 0:
            raise ValueError(f"seed={seed} must not be negative")
        self.rounds, self.lr, self.batch_size, self.seed = rounds, lr, batch_size, seed
        self.schedule, self.sampling, self.channel = schedule, sampling, channel
        self.solver = ModuleOptimizer() if solver == "module" else solver or SGD()
        self.aggregator = aggregator or AnonymousMean()
        self.calibration, self.engine = calibration or Calibration(), engine or LocalEngine()
        self.faults = faults or FaultPolicy()
        self.weights, self.evaluate_every = weights, evaluate_every
        self.local_parts = LocalParts(local_parameters)
        self.fabric = fabric or Fabric(accelerator="cpu", devices=1)
        self.callbacks = [schedule, sampling, channel, *callbacks]
        self.round_index = 0  # rounds finished
        self.should_stop = False  # a callback sets this to end after the round
        self.interrupted = False  # set from outside, at any moment, to pause after the round
        self.state: ModelState

    def run(
        self, module: LightningModule, federation: Federation, resume_from: dict[str, Any] | None = None
    ) -> ModelState:
        """Train the module on the federation and return the final state, which the module holds as well.

        Args:
            module: The model, its loss and its metrics.
            federation: The clients' data.
            resume_from: What :func:`fl_lightning.checkpointing.snapshot.snapshot` made of a run with the same
                arguments, which is resumed.
        """
        for _ in self.iterate(module, federation, resume_from):
            pass
        return self.state

    def iterate(
        self, module: LightningModule, federation: Federation, resume_from: dict[str, Any] | None = None
    ) -> Iterator[RoundResult]:
        """Train as :meth:`run` does and yield the result of each round.

        Leaving the ``for`` early pauses the run: the module holds the state of the last round, and whoever saves
        checkpoints saves one.
        """
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
        delivered = self.channel.configure_delivery(plan, self.seed)
        updates, seconds = self._train(plan, probe, self.aggregator.trains(plan, delivered))
        updates, delivered, faults = self.faults(index, updates, delivered, self.state)
        self._show_clients(updates)
        self.state = self._aggregate(updates, delivered, plan)
        self.round_index = index
        metrics, class_accuracy = self._evaluate(plan)
        result = self._measured(
            RoundResult(
                plan=plan,
                delivered=delivered,
                updates=updates,
                metrics=metrics,
                training_seconds=seconds,
                class_accuracy=class_accuracy,
                faults=faults,
            )
        )
        self.call("on_round_end", result=result)
        return result

    def _close(self) -> None:
        self.engine.load(self.state)
        self.call("on_federation_end" if self.finished else "on_federation_pause")
        self.engine.close()

    @property
    def finished(self) -> bool:
        """Whether there is no round left to do."""
        return self.round_index >= self.rounds or self.should_stop

    def _pauses(self) -> bool:
        """Whether any process was told to stop; all of them must leave after the same round."""
        if self.fabric.world_size > 1:
            told = torch.tensor(float(self.interrupted), device=self.fabric.device)
            total: Any = self.fabric.all_reduce(told, reduce_op="sum")
            self.interrupted = float(total) > 0
        return self.interrupted

    def _setup(self, module: LightningModule, federation: Federation) -> None:
        self.module, self.federation = module, federation
        self.client_weights = target_weights(self.weights, federation.sizes)
        num_draws = self.sampling.num_draws(len(federation.sizes))
        self.state = self.engine.setup(
            self.fabric, module, federation, self.solver, self.batch_size, self.seed, num_draws
        )
        # After the engine, because a module may make its layers in the hooks that the engine calls.
        self.base_rate = self.solver.setup(module, self.lr)
        if self.fabric.is_global_zero:
            tell_difference(module, self.solver, self.lr)
        self.local_parts.setup(self.module, self.state)
        self.aggregator.setup(len(federation.sizes), self.state.weights)
        self.planner = Planner(
            schedule=self.schedule,
            sampling=self.sampling,
            aggregator=self.aggregator,
            solver=self.solver,
            calibration=self.calibration,
            weights=self.client_weights,
            learning_rate=self.base_rate,
            steps_per_epoch=steps_per_epoch(federation.sizes, self.batch_size),
            seed=self.seed,
        )
        self.planner.start()

    def load_client(self, client: int) -> ModelState:
        """Put a client's own model into the module and return it: the global one but for its local parameters."""
        if not 0 <= client < len(self.client_weights):
            raise ValueError(f"client={client} must be in 0..{len(self.client_weights) - 1}")
        state = self.local_parts.personalised(client, self.state)
        self.engine.load(state)
        return state

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of everybody who watches: the loop's callbacks, then Fabric's."""
        for callback in self.callbacks:
            method = getattr(callback, hook, None)
            if method is not None:
                method(loop=self, **arguments)
        self.fabric.call(hook, loop=self, **arguments)

    def _show_clients(self, updates: Updates) -> None:
        if any(hasattr(callback, "on_client_end") for callback in self.callbacks):
            for row in range(len(updates)):
                self.call("on_client_end", update=updates[row])

    def _plan(self, index: int) -> tuple[RoundPlan, EngineProbe]:
        rate = self.base_rate * self.solver.round_factor(index)
        planner = replace(self.planner, learning_rate=rate)
        conditions = planner.conditions(index)
        probe = EngineProbe(self.engine, self.state, self._work(index, conditions.num_steps, rate))
        return planner.plan(index, conditions, SoundProbe(self.local_parts.probe(probe, self.state))), probe

    def _work(self, index: int, num_steps: IntVector, lr: float) -> LocalWork:
        return LocalWork(
            round_index=index,
            num_steps=num_steps,
            learning_rate=lr,
            start=self._start if self.local_parts else self.aggregator.start,
            gradient_shift=self.aggregator.gradient_shift,
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
            updates = self.engine.train(self.state, clients, work)
        return self.local_parts.keep(updates, uploading, drawn, self.state, work), time.perf_counter() - began

    def _aggregate(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> ModelState:
        weights = self.aggregator(self.state.weights, updates, delivered, plan)
        weights = self.local_parts.restored(weights, self.state.weights)
        state = ModelState(weights, mixed_buffers(self.state.buffers, updates, delivered, plan))
        self.faults.check_aggregate(plan.index, updates, state)
        return state

    def _evaluate(self, plan: RoundPlan) -> tuple[dict[str, float], Vector]:
        if plan.index % self.evaluate_every and plan.index != self.rounds:
            return {}, np.empty(0)
        metrics, class_accuracy = self.engine.evaluate(self.state)
        return metrics | self.federation.measure(self.state.weights, plan), class_accuracy

    def _measured(self, result: RoundResult) -> RoundResult:
        """Complete the metrics of a round with what the plan knows and with the columns that callbacks add."""
        plan = result.plan
        metrics: dict[str, float] = {
            "round": plan.index,
            **result.metrics,
            "train_loss": result.updates.mean_loss,
            "num_sampled": int(plan.cohort.counts.sum()),
            "num_delivered": int(result.delivered.sum()),
            "num_rejected": len(result.faults),
            "learning_rate": plan.learning_rate,
            "step_length": plan.step_length,
            "chi2": plan.chi_square,
        }
        for callback in self.callbacks:
            if hasattr(callback, "configure_metrics"):
                metrics |= callback.configure_metrics(result=result)
        return replace(result, metrics=metrics)


def target_weights(weights: Literal["size", "uniform"] | list[float], sizes: IntVector) -> Vector:
    """Return w, summing to 1.

    >>> target_weights("size", np.array([1, 3])).tolist(), target_weights("uniform", np.array([1, 3])).tolist()
    ([0.25, 0.75], [0.5, 0.5])
    """
    if isinstance(weights, str):
        if weights not in ("size", "uniform"):
            raise ValueError(f"weights={weights!r} is unknown: use 'size', 'uniform' or a list of numbers")
        values = sizes.astype(np.float64) if weights == "size" else np.ones(len(sizes))
    else:
        values = np.asarray(weights, dtype=np.float64)
        if values.shape != sizes.shape:
            raise ValueError(f"weights has {len(values)} entries, but there are {len(sizes)} clients")
        if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
            raise ValueError("weights must be finite numbers >= 0 with a positive sum")
    return values / values.sum()
