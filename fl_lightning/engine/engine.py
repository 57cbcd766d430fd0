"""The engine: trains the clients of a cohort, answers a sampler's questions, evaluates the global model."""

import copy
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import get_args

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from fl_lightning.engine.batches import ClientBatches
from fl_lightning.engine.choice import Mode, choose, layout_is_harmless
from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.cpu import tuned
from fl_lightning.engine.cpu.allocator import keep_freed_memory
from fl_lightning.engine.cpu.layout import channels_last
from fl_lightning.engine.evaluation import evaluate
from fl_lightning.engine.flat import FlatModel
from fl_lightning.engine.one_by_one import OneByOne
from fl_lightning.engine.precision import TrainingPrecision
from fl_lightning.engine.processes import AmongProcesses
from fl_lightning.engine.stacked import Stacked, StackTrainer
from fl_lightning.engine.streams import kept_streams, positions, seed_streams
from fl_lightning.engine.threads import SideBySide, num_side_by_side
from fl_lightning.protocols import Federation, LocalWork, Trains
from fl_lightning.seeding import Purpose, client_seed
from fl_lightning.solvers import Solver
from fl_lightning.types import IntVector, ModelState, Updates, Vector

_LOG = logging.getLogger("fl_lightning")


class Engine:
    """Trains clients on flat models, by the way that fits the module.

    Args:
        mode: ``auto`` chooses. ``stacked``: many small clients as rows of one matrix. ``threads``: clients side by
            side, one thread each. ``sequential``: one client after another on all threads. ``reference``: the same
            without CPU tuning, which the others are tested against.
        cpu_tuning: Give convolutions their images with the channels innermost, pool before a rectifier instead of after
            it, and keep freed memory instead of returning it to the system at each step (glibc alone).
        threads: Threads of this process; by default what torch takes, or the process's part of the cores where several
            processes share them.
        compile: Compile the module by ``torch.compile``.
        test_batch_size: Examples in one batch of the evaluation.
    """

    def __init__(
        self,
        mode: Mode = "auto",
        cpu_tuning: bool = True,
        threads: int | None = None,
        compile: bool = False,
        test_batch_size: int = 1000,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode={mode!r} is unknown: use one of {', '.join(get_args(Mode))}")
        for name, value in (("test_batch_size", test_batch_size), ("threads", threads)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.mode, self.threads, self.compile, self.test_batch_size = mode, threads, compile, test_batch_size
        self.cpu_tuning = cpu_tuning and mode != "reference"

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
        if self.cpu_tuning:
            keep_freed_memory()
        self._precision = TrainingPrecision(fabric)
        self.module: LightningModule = self._precision.module(module)
        self.model = FlatModel(self.module)
        self.batches = ClientBatches(federation, batch_size, seed, self._precision.batch)
        with self._precision.of_round():
            if self.cpu_tuning and layout_is_harmless(self._trainer(self.model, seeded=True)):
                self.batches.layout = channels_last
            self.choice = choose(self.mode, self._trainer(self.model, seeded=True), self._stack_trainer, num_draws)
        if self.choice.warning and fabric.global_rank == 0:
            _LOG.warning(self.choice.warning)
        self._round, self._evaluation_draws = 0, True
        if self.compile:
            self.module.compile()
        way = self._way()
        self._way_of_training: Trains = way if fabric.world_size == 1 else AmongProcesses(fabric, way)
        return self.model.state()

    def _set_threads(self) -> None:
        threads = self.threads
        if threads is None and self.fabric.world_size > 1 and self.fabric.device.type == "cpu":
            neighbours = max(1, self.fabric.world_size // max(1, int(getattr(self.fabric.strategy, "num_nodes", 1))))
            threads = max(1, _num_cores() // neighbours)
        if threads is not None:
            torch.set_num_threads(threads)

    def _trainer(self, model: FlatModel, seeded: bool) -> ClientTrainer:
        return ClientTrainer(model, self.solver, self.batches, self._precision.of_step, seeded)

    def _stack_trainer(self, model: FlatModel) -> StackTrainer:
        return StackTrainer(model, self.solver, self.batches, self._precision.of_step)

    def _way(self) -> Trains:
        """Make the way of training that was chosen; each thread has a model of its own, the first is evaluated."""
        side_by_side = self.choice.mode in ("threads", "stacked") and self.model.weights.device.type == "cpu"
        threads = torch.get_num_threads()
        num_trainers = num_side_by_side(threads) if side_by_side else 1
        models = [self.model, *(FlatModel(copy.deepcopy(self.module)) for _ in range(num_trainers - 1))]
        trainers = [self._trainer(model, self.choice.random) for model in models]
        if self.choice.mode == "stacked":
            return Stacked(trainers, self.cpu_tuning, threads, [self._stack_trainer(model) for model in models])
        if side_by_side:
            return SideBySide(trainers, self.cpu_tuning, threads)
        return OneByOne(trainers, self.cpu_tuning)

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back."""
        self._round = work.round_index
        with self._precision.of_round():
            return self._way_of_training.train(state, clients, work)

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client."""
        with self._precision.of_round():
            return self._way_of_training.losses(state, clients, round_index)

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client at the global model, (n, d)."""
        with self._precision.of_round():
            return self._way_of_training.gradients(state, clients, round_index)

    def evaluate(self, state: ModelState) -> tuple[dict[str, float], Vector]:
        """Return the metrics of the global model on the test data, and its accuracy per class."""
        self.load(state)
        tuning = tuned(self.module, random=False) if self.cpu_tuning else nullcontext()
        with self._own_streams(), self._precision.of_round(), self._precision.of_step(), tuning:
            return evaluate(self.module, self.batches.test(self.test_batch_size))

    @contextmanager
    def _own_streams(self) -> Iterator[None]:
        """Let the evaluation of a round draw from streams of its own, unless the first one has drawn nothing."""
        if not self._evaluation_draws:
            yield
            return
        device, nobody = self.model.weights.device, len(self.batches.sizes)  # the number after the last client's
        with kept_streams(device):
            seed_streams(client_seed(self.batches.seed, Purpose.MODULE, self._round, nobody), device)
            before = positions(device)
            yield
            self._evaluation_draws = before != positions(device)

    def load(self, state: ModelState) -> None:
        """Put a state into the module."""
        self.model.load(state.weights, state.buffers)


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
