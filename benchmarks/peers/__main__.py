"""``python -m benchmarks.peers``: Flower's simulation, pfl-research, FedLab, FLGo, ours and the hand-written loop.

Each peer gets a virtualenv of its own with pinned versions, made on first use.
"""

import argparse
import json
import os
import subprocess
import time
import venv
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Side, interleave, worker
from benchmarks.peers.requirements import PEERS

GOALS = {
    "W1": {"pfl": 3, "fedlab": 3, "flower": 3},
    "W1q": {},
    "W2": {"pfl": 3, "fedlab": 3, "flower": 3},
    "W3": {"pfl": 80, "fedlab": 80, "flower": 80},
    "W4": {},
}
ONLY = {"W1q": ("flgo",), "W3": ("pfl", "fedlab", "flower")}  # who can: FLGo simulates drops, and classifies alone


def environment(folder: Path, peer: str) -> str:
    """Return the Python of a peer's virtualenv, which is made if it is not there."""
    place = folder / peer
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = "\n".join(PEERS[peer])
    stamp = place / "requirements.txt"
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(place, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True)
        stamp.write_text(wanted)
    return str(python.absolute())


def compare(case: str, pythons: dict[str, str], threads: int, repeats: int) -> dict[str, Any]:
    """Measure a workload on all sides that can play it and return the record."""
    pythons = {peer: python for peer, python in pythons.items() if peer in ONLY.get(case, PEERS)}
    # Flower's workers are processes that never quite sleep: nobody but ours, for the ratio, is measured beside them.
    groups = [[peer for peer in pythons if peer != "flower"], [peer for peer in pythons if peer == "flower"]]
    record: dict[str, Any] = {"case": case, "sides": {}}
    for peers in filter(None, groups):
        ours = Side("ours", worker("ours:auto:1", case, threads, False))
        sides = [Side(peer, worker(f"peers:{peer}", case, threads, False, pythons[peer])) for peer in peers]
        if "flower" not in peers:
            sides.append(Side("by hand", worker("by_hand", case, threads, False)))
        interleave([ours, *sides], repeats)
        for side in [*sides, ours]:
            times = {key: side.least(key) for key in ("wall", "cpu")}
            ratios = {f"{key}_ratio": times[key] / ours.least(key) for key in times}
            goal = GOALS[case].get(side.name)
            record["sides"].setdefault(side.name, {**times, **ratios, "goal": goal, "rounds": side.rounds})
    return record


def show(console: Console, record: dict[str, Any]) -> None:
    """Print the table of a workload."""
    table = Table(title=f"{record['case']}: seconds per round")
    for name in ("side", "wall", "CPU", "wall / ours", "CPU / ours", "goal"):
        table.add_column(name, justify="left" if name == "side" else "right")
    for name, side in record["sides"].items():
        goal = "" if side["goal"] is None else f">= {side['goal']}"
        figures = (f"{side[key]:.3f}" for key in ("wall", "cpu", "wall_ratio", "cpu_ratio"))
        table.add_row(name, *figures, goal)
    console.print(table)


def main() -> None:
    """Read the arguments, make the virtualenvs, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(GOALS), help=f"which of {', '.join(GOALS)}; all by default")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), help=f"which of {', '.join(PEERS)}; all by default")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side")
    parser.add_argument("--repeats", type=int, default=2, help="measured rounds of each side")
    parser.add_argument("--environments", type=Path, default=Path("runs/peers"), help="folder for the virtualenvs")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks"), help="folder for the JSON file")
    arguments = parser.parse_args()
    unknown = (set(arguments.cases) - set(GOALS)) | (set(arguments.peers) - set(PEERS))
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    console, began = Console(), time.time()
    pythons = {}
    for peer in arguments.peers:
        console.print(f"virtualenv of {peer} ...")
        pythons[peer] = environment(arguments.environments, peer)
    records = []
    for case in arguments.cases:
        records.append(compare(case, pythons, arguments.threads, arguments.repeats))
        show(console, records[-1])
    arguments.output.mkdir(parents=True, exist_ok=True)
    content = {"peers": {peer: PEERS[peer] for peer in arguments.peers}, "workloads": records}
    (arguments.output / "peers.json").write_text(json.dumps(content, indent=1))
    console.print(f"{time.time() - began:.0f} s; written to {arguments.output}")


if __name__ == "__main__":
    main()
