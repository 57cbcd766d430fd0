"""``python -m benchmarks``: W1, W2, W3 and the control plane beside the loop written by hand."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Round, Side, interleave, worker
from fl_lightning.figures.style import BLUE, INK, MUTED, ORANGE, bare, save

HAND = "by_hand"
CASES = ("W1", "W1q", "W2", "W3", "processes", "overhead", "control")
GOALS = {"W1": 0.33, "W1q": 0.30, "W2": 0.35, "W3": 0.006, "processes": 0.60}
TITLES = {
    "W1": "W1: CNN, 6 of 20 clients, 15 steps of 512",
    "W1q": "W1 with half the clients at q in [0.4, 0.5]",
    "W2": "W2: CNN, 100 of 1000 clients, 5 steps of 10",
    "W3": "W3: linear model, 1000 of 10,000 clients, 5 steps",
    "processes": "W1: 2 processes of 1 thread against 1",
}


SHARED = (("W1", "W1q"), ("W2",), ("W3",), ("processes",))  # cases that share a yardstick are measured together


def compare(cases: list[str], threads: int, repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Measure cases that share a yardstick and return their records."""
    if cases == ["processes"]:
        threads = 1
        yardstick = Side("one process", worker("ours:sequential:1", "W1", 1, quick))
        ours = {"processes": Side("two processes", worker("ours:sequential:2", "W1", 1, quick))}
    else:
        yardstick = Side(HAND, worker(HAND, cases[0], threads, quick))
        ours = {case: Side(case, worker("ours:auto:1", case, threads, quick)) for case in cases}
    interleave([yardstick, *ours.values()], repeats)
    return [_record(case, threads, yardstick, side) for case, side in ours.items()]


def _record(case: str, threads: int, yardstick: Side, ours: Side) -> dict[str, Any]:
    rounds = [_as_expected(entry) for entry in ours.rounds if entry["trained"]]
    best = min(rounds, key=lambda entry: entry["wall"])
    record: dict[str, Any] = {"case": case, "title": TITLES[case], "threads": threads, "goal": GOALS[case]}
    for key in ("wall", "cpu"):
        least = min(entry[key] for entry in rounds)
        record |= {f"yardstick_{key}": yardstick.least(key), f"ours_{key}": least}
        record[f"{key}_ratio"] = record[f"ours_{key}"] / record[f"yardstick_{key}"]
    rest = best["wall"] - best["training"] - best["evaluation"]
    record |= {"mode": best["mode"], "training": best["training"], "evaluation": best["evaluation"], "rest": rest}
    return record | {"rounds": {side.name: side.rounds for side in (yardstick, ours)}}


def _as_expected(entry: Round) -> Round:
    """Return the times of a round as if as many clients had been heard, hence trained, as are expected to be."""
    seconds = entry["training"] * (entry["expected"] / entry["trained"] - 1)
    cpu = entry["cpu"] * (1 + seconds / entry["wall"])
    return {**entry, "wall": entry["wall"] + seconds, "training": entry["training"] + seconds, "cpu": cpu}


def control(quick: bool) -> list[dict[str, float]]:
    """Measure the control plane against the number of clients."""
    from benchmarks.control import measure

    return [measure(10**power, 5 if quick else 20) for power in range(2, 7)]


def overhead(threads: int, quick: bool) -> list[dict[str, Any]]:
    """Measure, in a process of its own, what the clock and the clients' evaluation add to a round of W1."""
    command = [sys.executable, "-m", "benchmarks.overhead", str(threads), *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the overhead could not be measured:\n{done.stderr[-3000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(
    console: Console,
    records: list[dict[str, Any]],
    planes: list[dict[str, float]],
    parts: list[dict[str, Any]] | None = None,
) -> None:
    """Print the tables."""
    table = Table(title="Seconds per round and ratio to the yardstick (lower is better)")
    for name in ("", "threads", "yardstick", "ours", "ratio", "goal", "CPU ratio", "engine", "eval", "rest"):
        table.add_column(name, justify="left" if name in ("", "engine") else "right")
    for record in records:
        total = record["training"] + record["evaluation"] + record["rest"]
        shares = [f"{100 * record[part] / total:.1f} %" for part in ("evaluation", "rest")]
        table.add_row(
            record["case"],
            str(record["threads"]),
            f"{record['yardstick_wall']:.3f}",
            f"{record['ours_wall']:.4f}",
            f"{record['wall_ratio']:.4f}",
            f"{record['goal']:.3g}",
            f"{record['cpu_ratio']:.4f}",
            record["mode"],
            *shares,
        )
    if records:
        console.print(table)
    if parts:
        table = Table(title="What parts take of a round of W1")
        for name in ("part", "ms per round", "share", "goal"):
            table.add_column(name, justify="left" if name == "part" else "right")
        for part in parts:
            cells = (f"{1e3 * part['seconds']:.3f}", f"{100 * part['share']:.3f} %", f"{100 * part['goal']:.0f} %")
            table.add_row(part["part"], *cells)
        console.print(table)
    if planes:
        table = Table(title="Control plane: schedule, sampling, calibration, channel, theory")
        for name in ("clients", "ms per round", "CPU ms", "MB"):
            table.add_column(name, justify="right")
        for plane in planes:
            cells = (f"{1e3 * plane['wall']:.2f}", f"{1e3 * plane['cpu']:.2f}", f"{plane['megabytes']:.1f}")
            table.add_row(f"{plane['clients']:,}", *cells)
        console.print(table)


def draw(path: Path, records: list[dict[str, Any]], planes: list[dict[str, float]]) -> None:
    """Write a picture of ratios and of the control plane."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [record["case"] for record in records]
    bars = left.barh(names, [record["wall_ratio"] for record in records], color=BLUE, label="measured")
    left.bar_label(bars, [f"{record['wall_ratio']:.2g}" for record in records], padding=4, color=INK)
    left.plot([record["goal"] for record in records], names, "|", color=ORANGE, markersize=18, label="goal")
    left.set(xscale="log", xlim=(1e-3, 1))
    left.set_title("time relative to a loop written by hand (lower is better)", loc="left", fontsize=9.5, color=INK)
    left.invert_yaxis()
    figure.legend(loc="outside lower left", ncols=2, frameon=False, labelcolor=INK)  # inside, it would cover a bar
    right.loglog([plane["clients"] for plane in planes], [1e3 * plane["wall"] for plane in planes], "o-", color=BLUE)
    right.set_title("planning: ms per round", loc="left", fontsize=9.5, color=INK)
    right.set_xlabel("clients", color=MUTED)
    for axes in (left, right):
        bare(axes)
    save(figure, path)


def main() -> None:
    """Read the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"which of {', '.join(CASES)}; all by default; or device")
    parser.add_argument("--quick", action="store_true", help="smaller cohorts, fewer repeats: under 3 minutes")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side")
    parser.add_argument("--repeats", type=int, help="measured rounds of each side, after one that is not counted")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks"), help="folder for JSON and picture")
    arguments = parser.parse_args()
    if arguments.cases == ["device"]:
        from benchmarks import device

        device.run(Console(), arguments.output, arguments.repeats or 3, arguments.quick)
        return
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}")
    console, began = Console(width=None if sys.stdout.isatty() else 110), time.time()
    repeats = arguments.repeats or (2 if arguments.quick else 5)
    cases = [case for case in CASES if not arguments.cases or case in arguments.cases]
    records = []
    for shared in SHARED:
        wanted = [case for case in shared if case in cases]
        if wanted:
            console.print(" and ".join(TITLES[case] for case in wanted), "...")
            records += compare(wanted, arguments.threads, repeats, arguments.quick)
    parts = overhead(arguments.threads, arguments.quick) if "overhead" in cases else []
    planes = control(arguments.quick) if "control" in cases else []
    show(console, records, planes, parts)
    arguments.output.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load_after": load}
    content = {"machine": machine, "quick": arguments.quick, "workloads": records, "overhead": parts, "control": planes}
    (arguments.output / "benchmarks.json").write_text(json.dumps(content, indent=1))
    draw(arguments.output / "benchmarks.svg", records, planes)
    console.print(f"{time.time() - began:.0f} s; written to {arguments.output}")


if __name__ == "__main__":
    main()
