"""Clients trained side by side, one thread each, in one process."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.one_by_one import OneByOne, Task

_MAX_THREADS = 8  # beyond that the interpreter lock is the bottleneck


def num_side_by_side(threads: int) -> int:
    """Return how many clients are trained at the same time by a process that may use so many threads."""
    return max(1, min(threads, _MAX_THREADS))


class SideBySide(OneByOne):
    """Trains as many clients at once as there are trainers; a trainer takes the next client when it is free.

    An operator on a small batch gains little from a second core. Two clients side by side use both, and because a
    client is computed by one trainer alone, neither their number nor the order of the clients changes a result.

    Args:
        trainers: One for each thread, each with a model of its own.
        cpu_tuning: Whether modules are arranged for a processor while they train.
        threads: Threads this process may use, shared among the trainers.
    """

    def __init__(self, trainers: Sequence[ClientTrainer], cpu_tuning: bool, threads: int) -> None:
        super().__init__(trainers, cpu_tuning)
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def spread(self, task: Task, rows: Sequence[int]) -> None:
        """Do the task for all rows, each by the next trainer that is free."""
        if len(rows) == 1 and len(self.trainers) > 1:
            self._alone(task, rows[0])  # handing it to a thread would take longer than a small step
            return
        if len(self.trainers) == 1:
            super().spread(task, rows)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.trainers), thread_name_prefix="client")
        waiting, lock = iter(rows), threading.Lock()
        try:
            busy = self.trainers[: len(rows)]
            started = [self._pool.submit(self._work, task, trainer, waiting, lock) for trainer in busy]
            wait(started)  # all of them, also when one fails: nobody may train on after this returns
            for future in started:
                future.result()
        finally:
            torch.set_num_threads(self.threads)  # threads that start later inherit what was set last

    def _alone(self, task: Task, row: int) -> None:
        try:
            torch.set_num_threads(
                max(1, self.threads // len(self.trainers))
            )  # as in a thread: the bits may depend on it
            task(self.trainers[0], row)
        finally:
            torch.set_num_threads(self.threads)

    def _work(self, task: Task, trainer: ClientTrainer, waiting: Iterator[int], lock: threading.Lock) -> None:
        torch.set_num_threads(max(1, self.threads // len(self.trainers)))  # of this thread alone
        while True:
            with lock:
                row = next(waiting, None)
            if row is None:
                return
            task(trainer, row)
