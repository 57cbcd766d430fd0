"""The engine: trains the clients of a cohort, answers a sampler's questions, evaluates the global model."""

import copy
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import cast

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from fl_lightning.engine.allocator import keep_freed_memory
from fl_lightning.engine.batches import ClientBatches
from fl_lightning.engine.choice import MODES, choose, layout_is_harmless
from fl_lightning.engine.distributed import shared
from fl_lightning.engine.evaluation import evaluate, silent_logs
from fl_lightning.engine.flat import FlatModel
from fl_lightning.engine.lanes import Lanes
from fl_lightning.engine.layout import channels_last, plain_dropout
from fl_lightning.engine.reorder import pool_before_relu
from fl_lightning.engine.sequential import ClientTrainer
from fl_lightning.engine.stacked import StackTrainer
from fl_lightning.engine.work import LocalWork, training_loss
from fl_lightning.protocols import Federation
from fl_lightning.solvers import Solver
from fl_lightning.types import IntVector, ModelState, Updates, Vector

__all__ = ["Engine", "LocalWork", "training_loss"]


class Engine:
    """Trains clients on flat models, by the way that fits the module.

    Args:
        mode: ``auto`` chooses. ``stacked``: many small clients as rows of one matrix. ``threads``: clients side by
            side, one thread each. ``sequential``: one client after another on all threads. ``reference``: the same with
            plain memory layout and allocator, which the others are tested against.
        memory_layout: Give convolutions their images with the channels innermost, and pool before a rectifier instead
            of after it.
        keep_memory: Keep freed memory instead of returning it to the system at each step (glibc alone).
        threads: Threads of this process; by default what torch takes, or the process's part of the cores where several
            processes share them.
        compile: Compile the module by ``torch.compile``.
        test_batch_size: Examples in one batch of the evaluation.
    """

    def __init__(
        self,
        mode: str = "auto",
        memory_layout: bool = True,
        keep_memory: bool = True,
        threads: int | None = None,
        compile: bool = False,
        test_batch_size: int = 1000,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode={mode!r} is unknown: use one of {', '.join(MODES)}")
        for name, value in (("test_batch_size", test_batch_size), ("threads", threads)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.mode, self.threads, self.compile, self.test_batch_size = mode, threads, compile, test_batch_size
        self.memory_layout = memory_layout and mode != "reference"
        self.keep_memory = keep_memory and mode != "reference"

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
        if not module.automatic_optimization:
            raise ValueError(
                f"{type(module).__name__} sets automatic_optimization=False, but the federated loop makes the local "
                "steps itself: let training_step return the loss instead"
            )
        refuse_several_optimizers(module)
        self.fabric, self.solver = fabric, solver
        self._set_threads()
        if self.keep_memory:
            keep_freed_memory()
        self.module: LightningModule = cast(LightningModule, fabric.to_device(module))
        self.model = FlatModel(self.module)
        self.batches = ClientBatches(federation, batch_size, seed, fabric.to_device)
        if self.memory_layout and layout_is_harmless(self._trainer(self.model, seeded=True)):
            self.batches.layout = channels_last
        self.choice = choose(self.mode, self._trainer(self.model, seeded=True), self._stack, num_draws)
        if self.compile:
            self.module.compile()
        self._make_trainers()
        return self.model.state()

    def _set_threads(self) -> None:
        threads = self.threads
        if threads is None and self.fabric.world_size > 1 and self.fabric.device.type == "cpu":
            neighbours = max(1, self.fabric.world_size // max(1, int(getattr(self.fabric.strategy, "num_nodes", 1))))
            threads = max(1, _num_cores() // neighbours)
        if threads is not None:
            torch.set_num_threads(threads)

    def _trainer(self, model: FlatModel, seeded: bool) -> ClientTrainer:
        return ClientTrainer(model, self.solver, self.batches, self.fabric.autocast, seeded)

    def _stack(self, model: FlatModel) -> StackTrainer:
        return StackTrainer(model, self.solver, self.batches, self.fabric.autocast)

    def _make_trainers(self) -> None:
        """Give each lane a model of its own; the first is the one that is evaluated."""
        side_by_side = self.choice.mode in ("threads", "stacked") and self.model.weights.device.type == "cpu"
        threads = torch.get_num_threads()
        self._lanes = Lanes(threads, None if side_by_side else 1)
        models = [self.model, *(FlatModel(copy.deepcopy(self.module)) for _ in range(self._lanes.num_lanes - 1))]
        self._trainers = [self._trainer(model, self.choice.random) for model in models]
        self._stacks = [self._stack(model) for model in models] if self.choice.mode == "stacked" else []

    def _arranged(self, module: LightningModule) -> AbstractContextManager[None]:
        return pool_before_relu(module) if self.memory_layout else nullcontext()

    def _run(self, tasks: list[Callable[[int], None]], training: bool = True) -> None:
        """Run tasks on the lanes, with all models in the wanted mode and their logs dropped."""
        with ExitStack() as stack:
            for trainer in self._trainers:
                stack.enter_context(silent_logs(trainer.model.module))
                stack.enter_context(self._arranged(trainer.model.module))
                if self.choice.random:
                    stack.enter_context(plain_dropout(trainer.model.module))
                if trainer.model.module.training != training:
                    trainer.model.module.train(training)
            self._lanes.run(tasks)

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back."""
        num_steps = work.num_steps[clients]
        deltas, buffers, losses = shared(
            self.fabric, num_steps, lambda positions: self._train(state, clients[positions], work)
        )
        return Updates(clients, deltas, buffers, num_steps, losses.numpy())

    def _train(self, state: ModelState, clients: IntVector, work: LocalWork) -> tuple[torch.Tensor, ...]:
        deltas = state.weights.new_empty((len(clients), len(state.weights)))
        buffers = state.buffers.new_empty((len(clients), len(state.buffers)))
        losses = torch.empty(len(clients), dtype=torch.float64)

        def train_client(row: int, lane: int) -> None:
            trainer = self._trainers[lane]
            losses[row] = trainer.train(int(clients[row]), state, work, deltas[row], buffers[row])

        def train_stack(rows: IntVector, lane: int) -> None:
            places = torch.from_numpy(rows)
            deltas[places], column = self._stacks[lane].train(clients[rows], state, work)
            losses[places] = torch.from_numpy(column)

        if self._stacks:
            buffers[:] = state.buffers
            self._run([partial(train_stack, rows) for rows in self._stacks[0].stacks(clients, work)])
        else:
            longest_first = np.argsort(-work.num_steps[clients], kind="stable")
            self._run([partial(train_client, row) for row in longest_first.tolist()])
        return deltas, buffers, losses

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client."""

        def compute(positions: IntVector) -> tuple[torch.Tensor]:
            column = torch.empty(len(positions), dtype=torch.float64)

            def ask(row: int, lane: int) -> None:
                column[row] = self._trainers[lane].loss(int(clients[positions[row]]), round_index)

            for trainer in self._trainers:
                trainer.model.load(state.weights, state.buffers)
            self._run([partial(ask, row) for row in range(len(positions))], training=False)
            return (column,)

        (losses,) = shared(self.fabric, np.ones(len(clients), dtype=np.int64), compute)
        return losses.numpy()

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client at the global model, (n, d)."""

        def compute(positions: IntVector) -> tuple[torch.Tensor]:
            rows = state.weights.new_empty((len(positions), len(state.weights)))

            def ask(row: int, lane: int) -> None:
                gradient, _ = self._trainers[lane].gradient(int(clients[positions[row]]), state, round_index)
                rows[row] = gradient

            self._run([partial(ask, row) for row in range(len(positions))])
            return (rows,)

        (gradients,) = shared(self.fabric, np.ones(len(clients), dtype=np.int64), compute)
        return gradients

    def evaluate(self, state: ModelState) -> tuple[dict[str, float], Vector]:
        """Return the metrics of the global model on the test data, and its accuracy per class."""
        self.model.load(state.weights, state.buffers)
        with self.fabric.autocast(), self._arranged(self.module):
            return evaluate(self.module, self.batches.test(self.test_batch_size))


def _num_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def refuse_several_optimizers(module: LightningModule) -> None:
    """Refuse a module that trains its parts by turns, which one solver cannot do."""
    if type(module).configure_optimizers is LightningModule.configure_optimizers:
        return
    try:
        configured = module.configure_optimizers()
    except Exception:  # it may need a Trainer; the loop does not use what it returns
        return
    if isinstance(configured, tuple) and len(configured) == 2 and isinstance(configured[0], list):
        configured = configured[0]  # the form with schedulers
    if isinstance(configured, (list, tuple)) and len(configured) > 1:
        raise ValueError(
            f"{type(module).__name__}.configure_optimizers returns {len(configured)} optimizers, but a federation "
            "makes its local steps with one solver: return one optimizer, or train the parts in separate modules"
        )
