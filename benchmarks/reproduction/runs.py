"""Runs in compact form: one CSV for each reading of the experiment, one row for each run.

A reading is a folder of runs as ``fl-lightning compare --out READING`` leaves it. A row has the algorithm, the seed,
the settings that may differ between readings, the final accuracy of each class, and the curve at each evaluation:
rounds as ``first:last:step``, local steps and seconds on the clock since the evaluation before, accuracies in units of
0.0001.
"""

import csv
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

Vector = npt.NDArray[np.float64]
COLUMNS = (
    *("algorithm", "seed", "lr", "batch_size", "rounds", "target", "classes", "averaged_classes"),
    *("evaluated", "steps", "accuracy", "averaged", "budget", "clock", "precision"),
)
_READING = re.compile(r"(digits|mnist|cifar|cinic|toy)\w*_")
_UNIT = 10_000  # accuracies are stored as whole numbers of these
_PRECISION = "32-true"  # Fabric's own


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the tables and pictures need of one run."""

    algorithm: str
    seed: int
    lr: float
    batch_size: int
    rounds: int
    target: float
    classes: Vector  # accuracy of each class at the end, model of the last round, (C,)
    averaged_classes: Vector  # the same of the averaged model; empty where it was not measured
    evaluated: Vector  # rounds at which the test set was measured, (n,)
    steps: Vector  # local steps up to then, (n,)
    accuracy: Vector  # of the model of the round, (n,)
    averaged: Vector  # of the model averaged over rounds; NaN where nothing is averaged, (n,)
    budget: float | None = None  # seconds on the clock after which the run ended, where they were limited
    clock: Vector = field(default_factory=lambda: np.empty(0))  # synchronous seconds up to then, (n,) or not stored
    precision: str = _PRECISION  # Fabric's name for that of the training


def read_run(folder: Path) -> Run:
    """Return a finished run from its folder."""
    summary = json.loads((folder / "summary.json").read_text())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    loop = config["loop"]
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["test_accuracy"]]
    if not rows:
        raise ValueError(f"{folder} has no evaluation with a test_accuracy: tables need one")
    return Run(
        algorithm=summary["algorithm"],
        seed=summary["seed"],
        lr=loop["lr"],
        batch_size=loop["batch_size"],
        rounds=summary["rounds"],
        target=summary["target_accuracy"],
        classes=np.array(summary.get("per_class_accuracy", []), dtype=np.float64),
        averaged_classes=np.empty(0),
        evaluated=_column(rows, "round"),
        steps=_column(rows, "local_steps"),
        accuracy=_column(rows, "test_accuracy"),
        averaged=_column(rows, "averaged_accuracy"),
        budget=(loop.get("budget") or {}).get("synchronous_time"),
        clock=_column(rows, "synchronous_time"),
        precision=(config.get("fabric") or {}).get("precision") or _PRECISION,
    )


def _column(rows: list[dict[str, str]], name: str) -> Vector:
    return np.array([float(row.get(name) or "nan") for row in rows])


def find(folders: Iterable[Path]) -> tuple[dict[str, list[tuple[Run, Path]]], list[str]]:
    """Return the finished runs of readings below some folders by their reading, and why others are left out."""
    found: dict[str, list[tuple[Run, Path]]] = {}
    left_out = []
    for config in sorted(path for folder in folders for path in folder.rglob("config.yaml")):
        reading = config.parent.resolve().parents[1].name  # reading / algorithm / seed_0
        if not _READING.match(reading):
            left_out.append(f"not in a folder named as a reading, DATA_CLASSES_CALIBRATION, left out: {config.parent}")
        elif not (config.parent / "summary.json").is_file():
            left_out.append(f"not finished, left out: {config.parent}")
        else:
            found.setdefault(reading, []).append((read_run(config.parent), config.parent))
    return found, left_out


def merge(stored: list[Run], fresh: list[Run], reading: str) -> list[Run]:
    """Return stored and fresh runs together; of two with the same algorithm and seed the fresh one stays.

    Raises:
        ValueError: If runs of one reading have different settings.
    """
    runs = {(run.algorithm, run.seed): run for run in [*stored, *fresh]}
    for name in ("lr", "batch_size", "target", "precision", "budget", "rounds"):
        values = {getattr(run, name) for run in runs.values()}
        budgeted = any(run.budget for run in runs.values())
        if len(values) > 1 and not (name == "rounds" and budgeted):
            shown = sorted(values, key=str)
            raise ValueError(f"{reading}: runs differ in {name} ({shown}): use a folder for each setting")
    return [runs[key] for key in sorted(runs)]


def write(path: Path, runs: list[Run]) -> None:
    """Store the runs of a reading."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for run in runs:
            writer.writerow(
                [
                    *(run.algorithm, run.seed, f"{run.lr:g}", run.batch_size, run.rounds, f"{run.target:g}"),
                    _numbers(run.classes * _UNIT),
                    _numbers(run.averaged_classes * _UNIT),
                    _range(run.evaluated),
                    _numbers(np.diff(run.steps, prepend=0)),
                    _numbers(run.accuracy * _UNIT),
                    _numbers(run.averaged * _UNIT),
                    "" if run.budget is None else f"{run.budget:g}",
                    _numbers(np.diff(run.clock, prepend=0)) if run.budget else "",
                    run.precision,
                ]
            )


def read(path: Path) -> list[Run]:
    """Return the stored runs of a reading; none where nothing is stored."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [_run(row) for row in csv.DictReader(file)]


def _run(row: dict[str, Any]) -> Run:
    return Run(
        algorithm=row["algorithm"],
        seed=int(row["seed"]),
        lr=float(row["lr"]),
        batch_size=int(row["batch_size"]),
        rounds=int(row["rounds"]),
        target=float(row["target"]),
        classes=_values(row["classes"]) / _UNIT,
        averaged_classes=_values(row["averaged_classes"]) / _UNIT,
        evaluated=_rounds(row["evaluated"]),
        steps=np.cumsum(_values(row["steps"])),
        accuracy=_values(row["accuracy"]) / _UNIT,
        averaged=_values(row["averaged"]) / _UNIT,
        budget=float(row["budget"]) if row.get("budget") else None,
        clock=np.cumsum(_values(row.get("clock") or "")),
        precision=row.get("precision") or _PRECISION,
    )


def _numbers(values: Vector) -> str:
    return " ".join("-" if np.isnan(value) else f"{value:.0f}" for value in values)


def _values(text: str) -> Vector:
    return np.array([np.nan if word == "-" else float(word) for word in text.split()])


def _range(rounds: Vector) -> str:
    """Return whole numbers as ``first:last:step`` where they are evenly spaced, else one by one.

    >>> _range(np.array([4.0, 8.0, 12.0])), _range(np.array([4.0, 8.0, 9.0]))
    ('4:12:4', '4 8 9')
    """
    gaps = np.unique(np.diff(rounds))
    if len(gaps) == 1:
        return f"{rounds[0]:.0f}:{rounds[-1]:.0f}:{gaps[0]:.0f}"
    return _numbers(rounds)


def _rounds(text: str) -> Vector:
    if ":" not in text:
        return _values(text)
    first, last, step = map(int, text.split(":"))
    return np.arange(first, last + 1, step, dtype=np.float64)
