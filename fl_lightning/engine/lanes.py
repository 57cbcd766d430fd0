"""Worker threads that train clients side by side in one process."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

_MAX_LANES = 8  # beyond that the interpreter lock is the bottleneck


class Lanes:
    """Runs tasks on several threads, each of which computes on cores of its own.

    An operator on a small batch gains little from a second core. Two clients side by side use both, and because a
    client is computed by one lane alone, the number of lanes and the order of the tasks change no result.

    Args:
        threads: Threads this process may use.
        num_lanes: How many lanes share them; as many as there are threads, up to 8, by default.
    """

    def __init__(self, threads: int, num_lanes: int | None = None) -> None:
        self.threads = threads
        self.num_lanes = max(1, min(threads, _MAX_LANES) if num_lanes is None else num_lanes)
        self._pool: ThreadPoolExecutor | None = None

    def run(self, tasks: Sequence[Callable[[int], None]]) -> None:
        """Call each task with the number of the lane that took it; a lane takes the next one when it is free."""
        if self.num_lanes == 1:
            for task in tasks:
                task(0)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.num_lanes, thread_name_prefix="lane")
        waiting, lock = iter(tasks), threading.Lock()

        def work(lane: int) -> None:
            torch.set_num_threads(max(1, self.threads // self.num_lanes))  # of this thread alone
            while True:
                with lock:
                    task = next(waiting, None)
                if task is None:
                    return
                task(lane)

        try:
            for future in [self._pool.submit(work, lane) for lane in range(min(self.num_lanes, len(tasks)))]:
                future.result()
        finally:
            torch.set_num_threads(self.threads)  # threads that start later inherit what was set last
