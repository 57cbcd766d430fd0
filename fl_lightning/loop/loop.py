"""FederatedLoop: the round, on Lightning Fabric."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from fl_lightning.algorithms import Algorithm, System, refuse_elsewhere
from fl_lightning.data.derived import ValidationSplit
from fl_lightning.data.given import as_federation
from fl_lightning.engine import Engine as LocalEngine
from fl_lightning.engine.batches import steps_per_epoch
from fl_lightning.engine.evaluation import ClientEvaluation, ClientEvaluator, as_evaluation
from fl_lightning.engine.local_parts import LocalParts
from fl_lightning.loop import results, watching
from fl_lightning.loop.results import MONITOR, Mode, RunRecord, RunResult
from fl_lightning.loop.stages import Measured, Stages
from fl_lightning.parts.bases import Partition, check_part
from fl_lightning.parts.protocols import Engine, Federation
from fl_lightning.parts.traits import layers, traits_of_federation
from fl_lightning.planning import Planner, target_weights
from fl_lightning.server import Budget, Spent
from fl_lightning.solvers import warn_of_difference
from fl_lightning.types import ModelState, RoundResult
from fl_lightning.uploads.hidden import check_covered

# What a run takes from the loop at its start, and what does the same during a run.
_TAKEN = ("algorithm", "system", "batch_size", "seed", "monitor", "mode", "evaluate_clients", "engine", "fabric")
_GIVEN = ("module", "federation", "client_weights")
_FIXED = dict.fromkeys((*_TAKEN, *_GIVEN), "resume_from in a second loop") | {
    "rounds": "should_stop, or resume_from in a second loop",
    "callbacks": "the hooks of those that are there",
}


class FederatedLoop:
    """Iterates rounds: schedule, sampling, calibration, channel, local training, aggregation, evaluation, hooks.

    Args:
        algorithm: What runs at the server and in the clients; FedAvg by default.
        system: What it meets: T and q of the clients, links, clock, the objective; equal clients by default.
        rounds: Number of rounds, R.
        lr: Base learning rate eta_1 of the local steps; None with ``solver="module"``, which has its own.
        batch_size: Examples in a local step; a client with fewer takes all it has.
        budget: Ends the run when it has cost this much; ``rounds`` is a limit as well.
        evaluate_every: Evaluate each n-th round, and the last one.
        evaluate_clients: Evaluate the model on each client's own data after each n-th round; 0: never.
        monitor: The headline metric: decides the best round, and is what progress, loggers and summaries show.
        mode: Whether more of the monitored metric is better (``max``) or less (``min``).
        callbacks: Watch the run; see ``docs/lightning.md``.
        engine: Trains the clients.
        fabric: Where to compute; one process on the best device there is by default.
        seed: Of every random stream of the run; the module's initial weights come before it, from ``seed_everything``.
    """

    def __init__(
        self,
        algorithm: Algorithm | None = None,
        system: System | None = None,
        *,
        rounds: int,
        lr: float | None,
        batch_size: int = 64,
        budget: Budget | None = None,
        evaluate_every: int = 1,
        evaluate_clients: ClientEvaluation | int = 0,
        monitor: str = MONITOR,
        mode: Mode = "max",
        callbacks: Sequence[Any] = (),
        engine: Engine | None = None,
        fabric: Fabric | None = None,
        seed: int = 0,
        **elsewhere: object,
    ) -> None:
        refuse_elsewhere("FederatedLoop", elsewhere)
        for name, value in (("rounds", rounds), ("batch_size", batch_size), ("evaluate_every", evaluate_every)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if seed < 0:
            raise ValueError(f"seed={seed} must not be negative")
        self._running = False
        self._lr: float | None = None
        self.algorithm, self.system = algorithm or Algorithm(), system or System()
        self.rounds, self.lr = rounds, lr
        self.batch_size, self.seed = batch_size, seed
        self.evaluate_every, self.evaluate_clients = evaluate_every, as_evaluation(evaluate_clients)
        self.monitor, self.mode = monitor, mode
        self.engine: Engine = engine or LocalEngine()
        self.fabric = fabric or Fabric(accelerator="auto", devices=1)
        self.budget, self.spent = budget or Budget(), Spent()
        self.record = RunRecord(monitor, mode)
        patterns = self.algorithm.local_parameters
        self.local_parts = LocalParts(patterns) if patterns else None  # what stays at the clients
        self.callbacks = [self.system.schedule, self.algorithm.sampling, self.system.channel, *callbacks]
        self._everybody = self._watching()
        self.round_index = 0  # rounds finished
        self.should_stop = False  # a callback sets this to end after the round
        self.interrupted = False  # set from outside, at any moment, to pause after the round
        self.state: ModelState
        self.base_rate: float
        self._stages: Stages

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change during a run what it has taken from here at its start."""
        if name in _FIXED and self._running:
            raise AttributeError(f"loop.{name} cannot change during a run: set it before, or use {_FIXED[name]}")
        super().__setattr__(name, value)

    @property
    def lr(self) -> float | None:
        """Base learning rate; if a callback sets it, from the next round on, until the end of the run."""
        return self._lr

    @lr.setter
    def lr(self, lr: float | None) -> None:
        if lr is not None and not 0 < lr < float("inf"):
            raise ValueError(f"lr={lr} must be a positive number")
        if not self._running:
            self._given_lr = lr
        elif lr is None or self.base_rate != self._lr:
            raise AttributeError(
                "loop.lr is not the rate of this run, which the module's optimizer has: schedule it there"
            )
        else:
            self.base_rate = lr
            self._stages.planner = replace(self.planner, learning_rate=lr)
        self._lr = lr

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
            resume_from: What :meth:`state_dict` returned of a run with the same arguments, which is resumed.
            partition: How clients share one data set or data module.
            test: The common test data, where ``data`` is a data set or a list of them.
        """
        for _ in self.iterate(module, data, resume_from, partition, test):
            pass
        return self.record.result(self.state, self.algorithm.averaging.state, module)

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
        check_covered(
            self.algorithm.uploads.secret, isinstance(data, ValidationSplit), self.evaluate_clients is not None
        )
        federation = as_federation(data, self.seed, partition, test)
        check_part("federation", federation, Federation)
        clients = None
        if self.evaluate_clients is not None:
            clients = ClientEvaluator(self.evaluate_clients, federation, self.seed)
            federation = clients.data.training()
        self._running = False  # an earlier run may have ended by an error
        self._setup(module, federation, clients)
        self._running = True
        if resume_from is not None:
            self.load_state_dict(resume_from)
        self.call("on_federation_start")
        try:
            while self._continues():
                yield self._play(self.round_index + 1)
        except GeneratorExit:
            self._close()
            raise
        finally:
            self._running = False
        self._close()

    def _play(self, index: int) -> RoundResult:
        """Play one round."""
        self._everybody.check_unchanged()
        stages = self._stages
        plan, probe = stages.plan(index, self.state)
        self.call("on_round_start", plan=plan)
        received, seconds = stages.receive(self.state, plan, probe)
        if self._everybody.hooks["on_client_end"]:
            for row in range(len(received.updates)):
                self.call("on_client_end", update=received.updates[row])
        self.state = stages.aggregate(self.state, received)
        self.algorithm.averaging.update(self.state, index)
        self.round_index = index
        costs = stages.costs(received, probe)
        self.spent.add(costs)
        evaluated = self.evaluates(index)
        measured = stages.evaluate(self.state, received.plan) if evaluated else Measured()
        if stages.clients is not None and stages.clients.due(index, self._is_last(index)):
            measured = stages.evaluate_clients(stages.clients, self.state, index, measured)
        result = stages.result(received, costs, seconds, measured, self._everybody.hooks["configure_metrics"])
        self.record.add(result.metrics, self.state, evaluated)
        self.call("on_round_end", result=result)
        return result

    def _close(self) -> None:
        self.engine.load(self.state)
        self.call("on_federation_end" if self.finished else "on_federation_pause")
        self.interrupted = False  # the wish was granted, and is not one of a later run
        self.engine.close()

    @property
    def finished(self) -> bool:
        """Whether there is no round left to do."""
        return self.round_index >= self.rounds or self.should_stop or self.spent.exceeds(self.budget)

    def _continues(self) -> bool:
        """Whether another round is played; an upload step may forbid one, as privacy does when it is used up."""
        if self.finished:
            return False
        if self.algorithm.uploads.steps:
            index = self.round_index + 1
            plan = self.planner.undrawn(self.planner.profiles(self.planner.conditions(index)), index)
            self.should_stop = not self.algorithm.uploads.allow(plan)
        if self.fabric.world_size > 1 and not self.should_stop:  # all processes must leave after the same round
            here = torch.tensor(float(self.interrupted), device=self.fabric.device)
            total: Any = self.fabric.all_reduce(here, reduce_op="sum")
            self.interrupted = float(total) > 0
        return not self.should_stop and not self.interrupted

    def _setup(self, module: LightningModule, federation: Federation, clients: ClientEvaluator | None = None) -> None:
        algorithm, num_clients = self.algorithm, len(federation.sizes)
        self.round_index, self.should_stop = 0, False
        self.lr = self._given_lr  # a callback may have changed it in an earlier run
        self._everybody = self._watching(module)
        for part in self._parts().values():
            watching.start_anew(part)
        self.module, self.federation = module, federation
        self.client_weights = target_weights(self.system.weights, federation.sizes)
        draws, solver = algorithm.sampling.num_draws(num_clients), algorithm.solver
        self.state = self.engine.setup(self.fabric, module, federation, solver, self.batch_size, self.seed, draws)
        # After the engine, because a module may make its layers in the hooks that the engine calls.
        self.base_rate = solver.setup(module, self.lr)
        if self.fabric.is_global_zero:
            warn_of_difference(module, solver, self.lr)
        traits = traits_of_federation(federation)
        self._has_test = traits.test is not None
        self._stages = Stages(
            planner=Planner(
                algorithm=algorithm,
                system=self.system,
                weights=self.client_weights,
                learning_rate=self.base_rate,
                steps_per_epoch=steps_per_epoch(federation.sizes, self.batch_size),
                seed=self.seed,
                rounds=self.rounds,
            ),
            engine=self.engine,
            federation=federation,
            record=self.record,
            local_parts=self.local_parts,
            clients=clients,
            # Data that is loaded when needed comes before the need; with several processes each loads its own.
            prefetch=traits.prefetch if self.fabric.world_size == 1 else None,
        )
        self._stages.start(module, self.state)
        self._everybody.bind(self, [*algorithm.uploads.steps, *layers(algorithm.aggregator)])

    @property
    def planner(self) -> Planner:
        """Plans the rounds of this run."""
        return self._stages.planner

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loop and all its parts, as tensors, numbers, strings and containers of them.

        Random streams need no state, because each is a function of (seed, purpose, round, client); only what a module
        draws outside of local training and evaluation depends on torch's own stream. What a module keeps outside its
        parameters and buffers is saved by its ``on_save_checkpoint``.
        """
        position: dict[str, Any] = {"round": self.round_index, "seed": self.seed, "stopped": self.should_stop}
        if self.lr != self._given_lr:
            position["lr"] = self.lr
        return position | results.saved(self.state, self.module, self.round_index, self._parts())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned; the loop must be set up with the same module and data.

        Raises:
            ValueError: If it is of another kind of run.
        """
        self.round_index, self.state = results.restored(state, self.state, self.module, self._parts())
        self.should_stop = bool(state.get("stopped", False))
        if "lr" in state:
            self.lr = state["lr"]
        self.engine.load(self.state)
        results.load_module_state(self.module, self.round_index, state.get("module"))

    def _parts(self) -> dict[str, Any]:
        """Return what may have memory, by names that do not depend on which loggers are used."""
        algorithm, system = self.algorithm, self.system
        return {
            "schedule": system.schedule,
            "sampling": algorithm.sampling,
            "channel": system.channel,
            "solver": algorithm.solver,
            "aggregator": algorithm.aggregator,
            "averaging": algorithm.averaging,
            "calibration": algorithm.calibration,
            "uploads": algorithm.uploads,
            "engine": self.engine,
            "record": self.record,
            "local_parts": self.local_parts,
            "personal": algorithm.personal,
            "spent": self.spent,
            **dict(watching.named(self._everybody.added)),
        }

    def _watching(self, module: LightningModule | None = None) -> watching.Everybody:
        own = (self.system.schedule, self.algorithm.sampling, self.system.channel)
        return watching.Everybody(own, self.callbacks, self.fabric, module)

    def personalised(self, client: int) -> ModelState:
        """Return a client's own model: a second one, or the global one but for its local parameters."""
        return self._stages.personalised(client, self.state)

    def load_client(self, client: int) -> ModelState:
        """Put a client's own model into the module and return it."""
        if not 0 <= client < len(self.client_weights):
            raise ValueError(f"client={client} must be in 0..{len(self.client_weights) - 1}")
        state = self.personalised(client)
        self.engine.load(state)
        return state

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of everybody who watches: the loop's callbacks, then Fabric's."""
        for method in self._everybody.hooks.get(hook, ()):
            method(loop=self, **arguments)

    def evaluates(self, index: int) -> bool:
        """Whether the model is evaluated after a round; never where there is no test data."""
        return self._has_test and (index % self.evaluate_every == 0 or self._is_last(index))

    def _is_last(self, index: int) -> bool:
        return index == self.rounds or (index == self.round_index and self.spent.exceeds(self.budget))
