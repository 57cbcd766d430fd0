"""``python -m benchmarks.scaling``: seconds per round and peak memory against the number of clients, 10^3 to 10^6.

Clients' data is made when they are drawn, 100 are drawn per round, the model has 10^5 weights. Each case has a process
of its own, so that peak memory is its own; the least of the rounds after the first counts.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ALGORITHMS = ("fedacs", "fedavg", "fedvarp", "scaffold", "mifa")
CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
DRAWS, EXAMPLES, STEPS = 100, 10, 2


def make_aggregator(algorithm: str) -> Any:
    """Return the aggregator of an algorithm; FedVARP in its original form, which sums over all of its memory."""
    from fl_lightning import aggregators

    made = {
        "fedvarp": aggregators.LastKnownUpdates,
        "scaffold": aggregators.ControlVariates,
        "mifa": aggregators.MemorizedMean,
    }
    return made.get(algorithm, aggregators.AnonymousMean)()


def make_federation(num_clients: int, num_inputs: int, num_classes: int) -> Any:
    """Return clients whose examples are a function of their number."""
    import numpy as np
    import torch

    from fl_lightning.data import LazyFederation
    from fl_lightning.seeding import Purpose, client_seed

    def load(client: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(client_seed(0, Purpose.DATA, 0, client))
        labels = (client + np.arange(EXAMPLES) % 2) % num_classes  # two classes each
        inputs = rng.standard_normal((EXAMPLES, num_inputs), dtype=np.float32)
        inputs[np.arange(EXAMPLES), labels % num_inputs] += 3.0
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    parts = [load(number) for number in range(50)]
    test = tuple(torch.cat(columns) for columns in zip(*parts, strict=True))
    return LazyFederation(np.full(num_clients, EXAMPLES), load, test, cache_bytes=1 << 26)


class Clock:
    """Notes wall and CPU seconds of each round."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.cpus: list[float] = []
        self.accuracy = float("nan")

    def on_round_start(self, loop: Any, plan: Any) -> None:
        if not self.walls:
            self._wall, self._cpu = time.perf_counter(), time.process_time()

    def on_round_end(self, loop: Any, result: Any) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.walls.append(wall - self._wall)
        self.cpus.append(cpu - self._cpu)
        self._wall, self._cpu = wall, cpu
        self.accuracy = result.metrics.get("test_accuracy", self.accuracy)


def measure(
    algorithm: str, num_clients: int, rounds: int, num_inputs: int, num_classes: int, run_dir: Path | None = None
) -> dict[str, Any]:
    """Play rounds in this process and return what they cost; with a folder, record them as train does."""
    import torch
    from torch import nn

    from fl_lightning.algorithms import Algorithm, System
    from fl_lightning.callbacks import (
        ChannelFailures,
        Group,
        HeterogeneitySchedule,
        RoundCheckpoint,
        RunRecorder,
        SamplerSelection,
    )
    from fl_lightning.loop import FederatedLoop
    from fl_lightning.module import FederatedModule
    from fl_lightning.samplers import HeterogeneityAware, Importance
    from fl_lightning.server.averaging import NoAverage

    class TimedCheckpoint(RoundCheckpoint):
        """Notes how long each save takes."""

        def _save(self, loop: Any, finished: bool) -> None:
            began = time.perf_counter()
            super()._save(loop, finished)
            saves.append(time.perf_counter() - began)

    torch.manual_seed(0)
    clock, callbacks, saves = Clock(), [], []
    if run_dir is not None:
        callbacks = [RunRecorder(str(run_dir)), TimedCheckpoint(str(run_dir / "checkpoints"))]
    groups = [Group(0.5, STEPS, (0.4, 0.5)), Group(0.5, STEPS, (0.0, 0.1))]
    loop = FederatedLoop(
        Algorithm(
            sampling=SamplerSelection(HeterogeneityAware() if algorithm == "fedacs" else Importance(), DRAWS),
            aggregator=make_aggregator(algorithm),
            averaging=NoAverage(),
        ),
        System(schedule=HeterogeneitySchedule(groups=groups), channel=ChannelFailures()),
        rounds=rounds,
        lr=0.05,
        batch_size=EXAMPLES,
        evaluate_every=max(1, rounds // 10),
        callbacks=[clock, *callbacks],
    )
    began = time.perf_counter()
    module = FederatedModule(nn.Linear(num_inputs, num_classes), num_classes)
    loop.run(module, make_federation(num_clients, num_inputs, num_classes))
    return {
        "algorithm": algorithm,
        "clients": num_clients,
        "weights": len(loop.state.weights),
        "rounds": rounds,
        "mode": loop.engine.choice.mode,
        "wall": min(clock.walls[1:] or clock.walls),
        "cpu": min(clock.cpus[1:] or clock.cpus),
        "seconds": time.perf_counter() - began,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "accuracy": clock.accuracy,
        "saves": len(saves),
        "saving_seconds": sum(saves),
    }


def measured_alone(*arguments: str) -> dict[str, Any]:
    """Measure one case in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--case", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def draw(path: Path, cases: list[dict[str, Any]]) -> None:
    """Write a picture of seconds and memory against the number of clients."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axis, key, label in zip(axes, ("cpu", "megabytes"), ("CPU seconds per round", "peak memory, MB"), strict=True):
        for algorithm in dict.fromkeys(case["algorithm"] for case in cases):
            chosen = [case for case in cases if case["algorithm"] == algorithm]
            axis.plot([case["clients"] for case in chosen], [case[key] for case in chosen], "o-", label=algorithm)
        axis.set(xscale="log", xlabel="clients", ylabel=label)
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    """Read the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), help="names, separated by commas")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)), help="numbers, separated by commas")
    parser.add_argument("--rounds", type=int, default=7, help="of each case; the first is not counted")
    parser.add_argument("--inputs", type=int, default=1000, help="of the linear model")
    parser.add_argument("--classes", type=int, default=100, help="of the linear model: 1000 x 100 are 10^5 weights")
    parser.add_argument("--record", action="store_true", help="write the files and checkpoints of a run as well")
    parser.add_argument("--output", type=Path, default=Path("runs/scaling"), help="folder for JSON and picture")
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        run_dir = options.output / f"{options.algorithms}_{options.clients}" if options.record else None
        case = measure(
            options.algorithms, int(options.clients), options.rounds, options.inputs, options.classes, run_dir
        )
        print(json.dumps(case))
        return
    cases = []
    shared = ["--rounds", str(options.rounds), "--inputs", str(options.inputs), "--classes", str(options.classes)]
    shared += ["--output", str(options.output), *(["--record"] if options.record else [])]
    for algorithm in options.algorithms.split(","):
        for clients in options.clients.split(","):
            case = measured_alone("--algorithms", algorithm, "--clients", clients, *shared)
            cases.append(case)
            print(
                f"{algorithm:>9} {int(clients):>9,} clients: {case['wall']:.3f} s per round, {case['cpu']:.3f} s CPU, "
                f"{case['megabytes']:.0f} MB, {case['mode']}",
                flush=True,
            )
            if options.record:
                share = 100 * case["saving_seconds"] / case["seconds"]
                print(
                    f"{'':>9} {case['seconds']:.0f} s in all; {case['saves']} checkpoints took "
                    f"{case['saving_seconds']:.1f} s ({share:.1f} %)",
                    flush=True,
                )
    options.output.mkdir(parents=True, exist_ok=True)
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    content = {"machine": machine, "load_after": os.getloadavg()[0], "cases": cases}
    (options.output / "scaling.json").write_text(json.dumps(content, indent=1))
    draw(options.output / "scaling.png", cases)


if __name__ == "__main__":
    main()
