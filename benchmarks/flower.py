"""``python -m benchmarks.flower``: how long a round of a deployment takes, with server and nodes on this machine."""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from benchmarks.real_nodes import RealNodes, num_rounds, wait_for
from fl_lightning.cli.main import main as command_line

WIDTHS = {"0.02": None, "0.3": 240, "45": 3316}  # megabytes of a model, and the width of its layers
_PATIENCE = 300.0  # seconds


class Wide(nn.Sequential):
    """Two hidden layers for the 8x8 digits, of a width that makes a model of the wanted size.

    >>> sum(parameter.numel() for parameter in Wide(240).parameters()) * 4 / 1e6
    0.30340
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            *(nn.Flatten(), nn.Linear(64, width), nn.ReLU()),
            *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)),
        )


def config(width: int | None, clients: int, rounds: int, steps: int) -> dict[str, Any]:
    """Everybody takes part in every round and makes a few local steps, so that what is measured is not training."""
    partition = {"class_path": "fl_lightning.data.Dirichlet", "init_args": {"num_clients": clients, "alpha": 10.0}}
    schedule = {"class_path": "fl_lightning.callbacks.ObservedConditions", "init_args": {"num_steps": steps}}
    made: dict[str, Any] = {
        "data": {"class_path": "fl_lightning.data.Digits", "init_args": {"partition": partition}},
        "loop": {"rounds": rounds, "schedule": schedule, "channel": {"class_path": "fl_lightning.callbacks.Observed"}},
        "logger": "none",
    }
    made["loop"]["sampling"] = {"init_args": {"clients_per_round": clients}}
    if width is not None:
        network = {"class_path": "benchmarks.flower.Wide", "init_args": {"width": width}}
        made["model"] = {"init_args": {"network": network}}
    return made


def measure(
    folder: Path, algorithm: str, made: dict[str, Any], clients: int, more: list[str]
) -> tuple[list[float], dict[str, float]]:
    """Deploy and return after how many seconds from ``flwr run`` each round ended, and the CPU time of a warm round."""
    file, rounds = folder / "config.yaml", int(made["loop"]["rounds"])
    file.write_text(yaml.safe_dump(made | {"run_dir": str(folder / "run")}))
    given = ["--config", f"digits_{algorithm}.yaml", "--config", str(file), "--trust", "benchmarks"]
    if command_line(["deploy", *given, "--out", str(folder / "app"), "--timeout", str(_PATIENCE)]):
        raise SystemExit(2)
    ends: list[float] = []
    with RealNodes(folder) as nodes:
        for client in range(clients):
            nodes.start(client, file, "--trust", "benchmarks", *more)
        ready = [folder / f"node_{client}.log" for client in range(clients)]
        wait_for(lambda: all("examples" in log.read_text() for log in ready), _PATIENCE, "the start of all nodes")
        began = time.monotonic()
        nodes.flwr("run", "app", "local")
        for number in range(1, rounds + 1):
            wait_for(lambda number=number: num_rounds(folder / "run") >= number, _PATIENCE, f"round {number}")
            ends.append(time.monotonic() - began)
            if number == 1:
                before = nodes.cpu_seconds()
        after = nodes.cpu_seconds()
    return ends, {role: (after[role] - before[role]) / (rounds - 1) for role in after}


def lines(name: str, ends: list[float], cpu: dict[str, float]) -> Iterator[str]:
    """Yield what was measured of one model."""
    warm = [after - before for before, after in pairwise(ends)]
    yield f"{name}: first round {ends[0]:.1f} s after flwr run"
    yield f"  {len(warm)} warm rounds: median {statistics.median(warm):.2f} s, {min(warm):.2f} to {max(warm):.2f} s"
    yield f"  CPU seconds of one: {', '.join(f'{role} {seconds:.2f}' for role, seconds in cpu.items())}"


def main() -> None:
    """Read the arguments, deploy for each size and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flower", description=__doc__)
    parser.add_argument("sizes", nargs="*", help=f"megabytes of the model: {', '.join(WIDTHS)}; all by default")
    parser.add_argument("--clients", type=int, default=4, help="nodes, all of which train in every round")
    parser.add_argument("--rounds", type=int, default=9, help="of which the first one is not warm")
    parser.add_argument("--steps", type=int, default=5, help="local steps of a client in a round")
    parser.add_argument("--algorithm", default="full", help="such as full or secaggfedacs")
    parser.add_argument("--node", default="", help="more arguments of each fl-lightning node, separated by spaces")
    options = parser.parse_args()
    unknown = set(options.sizes) - set(WIDTHS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(WIDTHS)}")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    for size in options.sizes or WIDTHS:
        made = config(WIDTHS[size], options.clients, options.rounds, options.steps)
        with tempfile.TemporaryDirectory() as folder:
            ends, cpu = measure(Path(folder), options.algorithm, made, options.clients, options.node.split())
        print(*lines(f"{options.algorithm}, {size} MB, {options.clients} nodes", ends, cpu), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
