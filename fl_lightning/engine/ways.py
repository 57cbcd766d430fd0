"""Ways of training the clients of a round: one after another, side by side in threads, shared among processes."""

import copy
import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Protocol

import numpy as np
import torch
from lightning.fabric import Fabric

from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.hooks import redirected_logs
from fl_lightning.engine.machine import kept_streams, tuned
from fl_lightning.engine.model import naming_client
from fl_lightning.parts.protocols import LocalWork, Step, Trains
from fl_lightning.solvers import LocalSteps, Solver
from fl_lightning.solvers.solver import StepsOfOptimizer
from fl_lightning.types import IntVector, ModelState, Updates, Vector

Task = Callable[[ClientTrainer, int], None]  # what is done for one row of a round, by whichever trainer is free
_MAX_THREADS = 8  # beyond that the interpreter lock is the bottleneck


def train_row(trainer: ClientTrainer, row: int, state: ModelState, work: LocalWork, out: Updates) -> None:
    """Train the client of a row and write its update there."""
    client = int(out.clients[row])
    with naming_client(trainer.model.module, client, work.round_index):
        out.losses[row] = trainer.train(client, state, work, out.deltas[row], out.buffers[row])


def empty_updates(state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
    """Return room for the updates of some clients."""
    return Updates(
        clients=clients,
        deltas=state.weights.new_empty((len(clients), len(state.weights))),
        buffers=state.buffers.new_empty((len(clients), len(state.buffers))),
        num_steps=work.num_steps[clients],
        losses=np.empty(len(clients)),
    )


class _Stepper(Protocol):
    solver: Solver


class _StepsAround:
    def __init__(self, inner: LocalSteps, make: Step, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        self.inner, self.make = inner, make
        self.weights, self.gradient = weights, gradient
        if isinstance(inner, StepsOfOptimizer):
            self.optimizer = inner.optimizer

    def step(self) -> None:
        self.make(self.inner.step, self.gradient, self.weights)

    def narrow(self, num_rows: int) -> None:
        self.inner.narrow(num_rows)
        self.weights, self.gradient = self.weights[:num_rows], self.gradient[:num_rows]


def _around(solver: Solver, make: Step) -> Solver:
    """Return a solver with the same settings, each of whose steps something else is made around."""

    def begin(
        weights: torch.Tensor, gradient: torch.Tensor, parameters: Sequence[torch.nn.Parameter], lr: float
    ) -> LocalSteps:
        return _StepsAround(solver.begin(weights, gradient, parameters, lr), make, weights, gradient)

    made = copy.copy(solver)
    made.begin = begin  # type: ignore[method-assign]
    return made


@contextmanager
def stepping(steppers: Sequence[_Stepper], make: Step | None) -> Iterator[None]:
    """Let something be made around each local step, where that is asked for."""
    solvers = [each.solver for each in steppers]
    for each, solver in zip(steppers, solvers, strict=True):
        each.solver = solver if make is None else _around(solver, make)
    try:
        yield
    finally:
        for each, solver in zip(steppers, solvers, strict=True):
            each.solver = solver


class OneByOne:
    """Trains clients one after another, by the first trainer; the other ways spread the same tasks differently."""

    def __init__(self, trainers: Sequence[ClientTrainer], cpu_tuning: bool) -> None:
        self.trainers, self.cpu_tuning = trainers, cpu_tuning

    def spread(self, task: Task, rows: Sequence[int]) -> None:
        """Do the task for all rows."""
        for row in rows:
            task(self.trainers[0], row)

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back, in the given order."""
        updates = empty_updates(state, clients, work)
        longest_first = np.argsort(-updates.num_steps, kind="stable").tolist()
        with self.at_work(state, work):
            self.spread(lambda trainer, row: train_row(trainer, row, state, work, updates), longest_first)
        return updates

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client, (n,)."""
        losses = np.empty(len(clients))

        def ask(trainer: ClientTrainer, row: int, client: int) -> None:
            losses[row] = trainer.loss(client, round_index)

        for trainer in self.trainers:
            trainer.model.load(state.weights, state.buffers)
        self._ask(ask, clients, round_index, training=False)
        return losses

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client at the global model, (n, d)."""
        gradients = state.weights.new_empty((len(clients), len(state.weights)))

        def ask(trainer: ClientTrainer, row: int, client: int) -> None:
            gradients[row], _ = trainer.gradient(client, state, round_index)

        self._ask(ask, clients, round_index, training=True)
        return gradients

    def _ask(
        self, ask: Callable[[ClientTrainer, int, int], None], clients: IntVector, round_index: int, training: bool
    ) -> None:
        def task(trainer: ClientTrainer, row: int) -> None:
            client = int(clients[row])
            with naming_client(trainer.model.module, client, round_index):
                ask(trainer, row, client)

        with self.prepared(training):
            self.spread(task, range(len(clients)))

    @contextmanager
    def at_work(self, state: ModelState, work: LocalWork) -> Iterator[None]:
        """Have all modules ready to train, with what is added to their losses and made around their steps."""
        with ExitStack() as stack:
            stack.enter_context(self.prepared(training=True))
            for trainer in self.trainers:
                if trainer.distilled is not None:
                    stack.enter_context(trainer.distilled.by(state))
            stack.enter_context(stepping(self.trainers, work.handout.step))
            yield

    @contextmanager
    def prepared(self, training: bool) -> Iterator[None]:
        """Have all modules in the wanted mode, arranged for the processor, and with their logs dropped.

        What is seeded for clients leaves no trace in the streams that others draw from.
        """
        with ExitStack() as stack:
            if any(trainer.seeded for trainer in self.trainers):
                stack.enter_context(kept_streams(self.trainers[0].model.weights.device))
            for trainer in self.trainers:
                module = trainer.model.module
                stack.enter_context(redirected_logs(module))
                if self.cpu_tuning:
                    stack.enter_context(tuned(module, trainer.seeded))
                if module.training != training:
                    module.train(training)
            yield


def num_side_by_side(threads: int) -> int:
    """Return how many clients are trained at the same time by a process that may use so many threads."""
    return max(1, min(threads, _MAX_THREADS))


class SideBySide(OneByOne):
    """Trains as many clients at once as there are trainers; a trainer takes the next client when it is free.

    An operator on a small batch gains little from a second core. Two clients side by side use both, and because a
    client is computed by one trainer alone, neither their number nor the order of the clients changes a result.
    The trainers, each with a model of its own, share the ``threads`` of the process.
    """

    def __init__(self, trainers: Sequence[ClientTrainer], cpu_tuning: bool, threads: int) -> None:
        super().__init__(trainers, cpu_tuning)
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def spread(self, task: Task, rows: Sequence[int]) -> None:
        """Do the task for all rows, each by the next trainer that is free."""
        if len(self.trainers) == 1:
            super().spread(task, rows)
            return
        waiting = iter(rows)
        lock = threading.Lock()
        try:
            if len(rows) == 1:  # handing it to a thread would take longer than a small step
                self._work(task, self.trainers[0], waiting, lock)
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(len(self.trainers), thread_name_prefix="client")
            busy = self.trainers[: len(rows)]
            started = [self._pool.submit(self._work, task, trainer, waiting, lock) for trainer in busy]
            wait(started)  # all of them, also when one fails: nobody may train on after this returns
            for future in started:
                future.result()
        finally:
            torch.set_num_threads(self.threads)  # threads that start later inherit what was set last

    def _work(self, task: Task, trainer: ClientTrainer, waiting: Iterator[int], lock: threading.Lock) -> None:
        torch.set_num_threads(max(1, self.threads // len(self.trainers)))  # of this thread alone; bits may depend on it
        while True:
            with lock:
                row = next(waiting, None)
            if row is None:
                return
            task(trainer, row)


def share(work: IntVector, world_size: int) -> list[IntVector]:
    """Return for each process the positions it takes, ascending: longest first, each to whoever has least so far.

    >>> [positions.tolist() for positions in share(np.array([5, 1, 1, 3]), 2)]
    [[0], [1, 2, 3]]
    """
    if world_size < 1:
        raise ValueError(f"world_size={world_size} must be at least 1")
    taken: list[list[int]] = [[] for _ in range(world_size)]
    loads = [(0, rank) for rank in range(world_size)]
    for position in np.argsort(-work, kind="stable").tolist():
        load, rank = heapq.heappop(loads)
        taken[rank].append(position)
        heapq.heappush(loads, (load + int(work[position]), rank))
    return [np.sort(np.array(positions, dtype=np.int64)) for positions in taken]


class AmongProcesses:
    """Shares the clients of a round among processes, each of which trains its share in the way it is given.

    Rows are only moved, never added up, so the result is bit for bit that of one process.
    """

    def __init__(self, fabric: Fabric, way: Trains) -> None:
        self.fabric, self.way = fabric, way

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back, in the given order."""
        num_steps = work.num_steps[clients]
        shares = share(num_steps, self.fabric.world_size)
        mine = self.way.train(state, clients[self._mine(shares)], work)
        losses = self._gathered(torch.from_numpy(mine.losses), shares)
        return Updates(
            clients=clients,
            deltas=self._gathered(mine.deltas, shares),
            buffers=self._gathered(mine.buffers, shares),
            num_steps=num_steps,
            losses=losses.numpy(),
        )

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client, (n,)."""
        shares = self._even_shares(clients)
        mine = self.way.losses(state, clients[self._mine(shares)], round_index)
        losses: Vector = self._gathered(torch.from_numpy(mine), shares).numpy()
        return losses

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client at the global model, (n, d)."""
        shares = self._even_shares(clients)
        return self._gathered(self.way.gradients(state, clients[self._mine(shares)], round_index), shares)

    def _even_shares(self, clients: IntVector) -> list[IntVector]:
        return share(np.ones(len(clients), dtype=np.int64), self.fabric.world_size)

    def _mine(self, shares: list[IntVector]) -> IntVector:
        return shares[self.fabric.global_rank]

    def _gathered(self, column: torch.Tensor, shares: list[IntVector]) -> torch.Tensor:
        """Return the whole column in every process, given this process's share of it."""
        whole = column.new_empty((sum(map(len, shares)), *column.shape[1:]))
        if not whole.numel():
            return whole
        padded = column.new_zeros((max(map(len, shares)), *column.shape[1:]))
        padded[: len(column)] = column
        everybody = self.fabric.all_gather(padded)
        for rank, positions in enumerate(shares):  # losses are of the CPU, messages of the device
            whole[torch.from_numpy(positions)] = everybody[rank][: len(positions)].to(column.device)
        return whole
