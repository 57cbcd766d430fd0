"""The engine: trains the clients of a cohort, answers a sampler's questions, evaluates the global model."""

import copy
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import get_args

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torchmetrics import Metric

from fl_lightning.engine.batches import ClientBatches
from fl_lightning.engine.choice import Mode, choose, layout_is_harmless
from fl_lightning.engine.client import ClientTrainer, HookedTrainer
from fl_lightning.engine.evaluation import evaluate
from fl_lightning.engine.hooks import (
    attached,
    end_run,
    redirected_logs,
    start_run,
    training_hooks,
    transfer,
    uncalled_hooks,
)
from fl_lightning.engine.machine import (
    TrainingPrecision,
    channels_last,
    keep_freed_memory,
    kept_streams,
    num_nodes,
    positions,
    seed_streams,
    tuned,
)
from fl_lightning.engine.memory import Room, give_back, is_out_of_memory, num_bytes
from fl_lightning.engine.model import FlatModel
from fl_lightning.engine.stacked import Stacked
from fl_lightning.engine.ways import AmongProcesses, OneByOne, SideBySide, num_side_by_side
from fl_lightning.parts.protocols import PLAIN, Batch, Federation, Handout, LocalWork, Trains
from fl_lightning.parts.traits import traits_of_federation
from fl_lightning.seeding import Purpose, client_seed
from fl_lightning.solvers import ModuleOptimizer, Solver
from fl_lightning.solvers.running import refuse_several_optimizers
from fl_lightning.types import IntVector, ModelState, RoundPlan, Updates, Vector

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
        test_batch_size: Examples in one batch of the evaluation, where the test data has no DataLoader of its own.
        memory: What stacks of clients, evaluation and training data may take of the device's memory, such as ``8GB``;
            by default what is free there.
    """

    is_elsewhere = False  # all who are asked answer

    def __init__(
        self,
        mode: Mode = "auto",
        cpu_tuning: bool = True,
        threads: int | None = None,
        compile: bool = False,
        test_batch_size: int = 1000,
        memory: str | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode={mode!r} is unknown: use one of {', '.join(get_args(Mode))}")
        for name, value in (("test_batch_size", test_batch_size), ("threads", threads)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.mode = mode
        self.threads = threads
        self.compile = compile
        self.test_batch_size = test_batch_size
        self.memory = memory
        self._memory = None if memory is None else num_bytes(str(memory))
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
        self.fabric = fabric
        self.solver = solver
        self.datamodule = traits_of_federation(federation).datamodule
        self.position = start_run(module, fabric, self.datamodule)
        refuse_several_optimizers(module)
        self._set_threads()
        if self.cpu_tuning:
            keep_freed_memory()
        self._precision = TrainingPrecision(fabric)
        self.module: LightningModule = self._precision.module(module)
        self.model = FlatModel(self.module)
        move = transfer(fabric, self.module, self.datamodule)
        self.hooks = training_hooks(self.module, self.datamodule)
        self.batches = ClientBatches(
            federation, batch_size, seed, lambda batch: self._precision.batch(move(batch)), hooked=bool(self.hooks)
        )
        uncalled = uncalled_hooks(self.module, self.datamodule, isinstance(solver, ModuleOptimizer))
        if uncalled and fabric.is_global_zero:
            _LOG.warning(
                f"{type(module).__name__} overrides hooks that a federation does not call: {', '.join(uncalled)}; "
                "docs/lightning.md says what to use instead"
            )
        room = self._room()
        trainer = self._trainer(self.model, seeded=True)
        with self._precision.of_round():
            if self.cpu_tuning and not self.hooks and layout_is_harmless(trainer):
                self.batches.layout = channels_last
            self.choice = choose(self.mode, trainer, self.hooks, num_draws, room)
        self._test_size = min(self.test_batch_size, self.choice.test_examples or self.test_batch_size)
        if self.choice.warning and fabric.global_rank == 0:
            _LOG.warning(self.choice.warning)
        self._round = 0
        self._evaluation_draws = True
        if self.compile:
            self.module.compile()
        way = self._way()
        self._way_of_training: Trains = way if fabric.world_size == 1 else AmongProcesses(fabric, way)
        with redirected_logs(self.module):
            self.module.on_fit_start()
        return self.model.state()

    def _room(self) -> Room | None:
        """Return the memory that is left for training; training data stays on a device where it fits."""
        room = Room.on(self.model.weights.device, self._memory)
        data = self.batches.keepable
        if room is None or self.model.weights.device.type == "cpu" or data is None or not room.holds(data):
            return room
        self.batches.keep_on_device()
        return room.without(data)

    def _set_threads(self) -> None:
        threads = self.threads
        if threads is None and self.fabric.world_size > 1 and self.fabric.device.type == "cpu":
            neighbours = max(1, self.fabric.world_size // num_nodes(self.fabric))
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            threads = max(1, cores // neighbours)
        if threads is not None:
            torch.set_num_threads(threads)

    def _trainer(self, model: FlatModel, seeded: bool) -> ClientTrainer:
        kind = HookedTrainer if self.hooks else ClientTrainer
        return kind(model, self.solver, self.batches, self._precision.of_step, seeded)

    def _way(self) -> Trains:
        """Make the way of training that was chosen; each thread has a model of its own, the first is evaluated."""
        side_by_side = self.choice.mode in ("threads", "stacked") and self.model.weights.device.type == "cpu"
        threads = torch.get_num_threads()
        num_trainers = num_side_by_side(threads) if side_by_side else 1
        models = [self.model, *(FlatModel(copy.deepcopy(self.module)) for _ in range(num_trainers - 1))]
        for model in models:
            attached(model.module, self.fabric.global_rank, self.fabric.world_size)
        trainers = [self._trainer(model, self.choice.random) for model in models]
        if self.choice.mode == "stacked":
            return Stacked(trainers, self.cpu_tuning, threads, self.choice.block)
        if side_by_side:
            return SideBySide(trainers, self.cpu_tuning, threads)
        return OneByOne(trainers, self.cpu_tuning)

    def train(self, state: ModelState, plan: RoundPlan, clients: IntVector, handout: Handout = PLAIN) -> Updates:
        """Train each client from the global state as planned and return what they send back."""
        return self.work(state, clients, LocalWork.planned(plan, handout))

    def work(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Let each client do its work and return what they send back."""
        self._attach()
        self._round = work.round_index
        self.position.begin(work.round_index)  # also where a copy of the module trains
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
        return self._evaluate_in_batches(state, self.batches.test)

    def evaluate_batch(self, state: ModelState, batch: Batch) -> dict[str, float]:
        """Return the metrics of a state on one batch of the federation."""
        return self._evaluate_in_batches(state, lambda size: self.batches.pieces(batch, size))[0]

    def evaluate_clients(self, state: ModelState, round_index: int, max_examples: int) -> list[dict[str, float]] | None:
        """Return None: the clients' data is here."""
        return None

    def _evaluate_in_batches(
        self, state: ModelState, batches: Callable[[int], Iterator[Batch]]
    ) -> tuple[dict[str, float], Vector]:
        """Evaluate; where a batch runs out of memory, begin again with batches of half the size."""
        while True:
            try:
                return self._evaluate(state, batches(self._test_size))
            except Exception as error:
                if self._test_size == 1 or not is_out_of_memory(error):
                    raise
            give_back(self.model.weights.device)
            self._test_size //= 2
            for part in self.module.modules():
                if isinstance(part, Metric):
                    part.reset()
            _LOG.warning(f"a batch of the evaluation does not fit into memory: {self._test_size} examples are tried")

    def _evaluate(self, state: ModelState, batches: Iterator[Batch]) -> tuple[dict[str, float], Vector]:
        self.load(state)
        self._attach()
        tuning = tuned(self.module, random=False) if self.cpu_tuning else nullcontext()
        with self._own_streams(), self._precision.of_round(), self._precision.of_step(), tuning:
            found = evaluate(self.module, batches)
        for parameter, gradient in zip(self.model.parameters, self.model.gradients, strict=True):
            parameter.grad = gradient  # a hook may have called zero_grad, which takes them away
        return found

    @contextmanager
    def _own_streams(self) -> Iterator[None]:
        """Let the evaluation of a round draw from streams of its own, unless the first one has drawn nothing."""
        if not self._evaluation_draws:
            yield
            return
        device = self.model.weights.device
        nobody = len(self.batches.sizes)  # the number after the last client's
        with kept_streams(device):
            seed_streams(client_seed(self.batches.seed, Purpose.MODULE, self._round, nobody), device)
            before = positions(device)
            yield
            self._evaluation_draws = before != positions(device)

    def load(self, state: ModelState) -> None:
        """Put a state into the module."""
        self.model.load(state.weights, state.buffers)

    def _attach(self) -> None:
        """Let module and data module know where the run stands, also when it has ended and more is asked."""
        trainer = self.position.as_trainer()
        if self.module._trainer is not trainer:
            self.module.trainer = trainer
        if self.datamodule is not None:
            self.datamodule.trainer = trainer

    def close(self) -> None:
        """Let the module end its run; it can be asked and evaluated further."""
        end_run(self.module, self.datamodule)
