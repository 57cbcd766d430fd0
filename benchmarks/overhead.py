"""What the clock, the counted bytes and the clients' own evaluation take of a round of W1.

``python -m benchmarks.overhead THREADS [--quick]`` prints a line of JSON, which ``python -m benchmarks overhead`` shows
as a table. The methods are timed where they are called, in rounds that train and evaluate as usual.
"""

import argparse
import json
import time
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

GOAL = 0.10  # of a round, with everything at its defaults


class Timed:
    """Stands for an object and adds up the seconds that calls of it and of its methods take."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.seconds = inner, 0.0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._timed(self._inner, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return partial(self._timed, found) if isinstance(found, MethodType) else found

    def _timed(self, call: Any, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            self.seconds += time.perf_counter() - began

    def take(self) -> float:
        """Return the seconds since it was last asked."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Rounds:
    """Notes how long each round took, and what the parts took of it."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.noted: list[dict[str, float]] = []

    def on_federation_start(self, loop: Any) -> None:
        clock, stages = Timed(loop.system.clock), loop._stages
        evaluator = Timed(stages.evaluate_clients)
        system = replace(loop.system, clock=clock)
        vars(stages).update(system=system, evaluate_clients=evaluator, planner=replace(loop.planner, system=system))
        self.watches = {"clock": clock, "clients": evaluator}
        self._began = time.perf_counter()

    def on_round_end(self, loop: Any, result: Any) -> None:
        now = time.perf_counter()
        self.noted.append({"round": now - self._began} | {name: each.take() for name, each in self.watches.items()})
        self._began = now
        loop.should_stop = len(self.noted) > self.rounds


def measure(workload: Any, clock: Any, clients: int, rounds: int = 2) -> dict[str, float]:
    """Return the seconds of a round and of its parts: the least of a few rounds after the first."""
    from benchmarks.ours import play

    watch = Rounds(rounds)
    play(workload, watch, clock=clock, evaluate_clients=clients)
    counted = watch.noted[1:]
    return {name: min(entry[name] for entry in counted) for name in counted[0]}


def overheads(workload: Any) -> list[dict[str, Any]]:
    """Return name, seconds and share of a round of each part."""
    from fl_lightning.engine.evaluation import ClientEvaluation
    from fl_lightning.system import Between, Clock

    usual = measure(workload, None, 0)
    clock = Clock(Between(0.5, 5.0), upload_rate=1e6, download_rate=1e7, latency=0.1, jitter=0.2, deadline=1e3)
    on = measure(workload, clock, 1)
    every = ClientEvaluation().every_n_rounds
    bare = usual["round"] - usual["clock"] - usual["clients"]
    rows = (
        ("clock and bytes, nothing configured", usual["clock"]),
        ("clock with spread, rates, jitter, deadline", on["clock"]),
        ("clients' own evaluation, off", usual["clients"]),
        (f"clients' own evaluation, each {every}th round", on["clients"] / every),
    )
    return [{"part": name, "seconds": seconds, "share": seconds / bare, "goal": GOAL} for name, seconds in rows]


def main() -> None:
    """Read the arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("threads", type=int)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    import torch

    from benchmarks.workloads import W1, quick

    torch.set_num_threads(arguments.threads)
    print(json.dumps(overheads(quick(W1) if arguments.quick else W1)))


if __name__ == "__main__":
    main()
