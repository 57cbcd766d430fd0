"""How runs end, in one CSV for a whole study: accuracies under privacy and under attack.

A study is a folder SYSTEM/SETTING/ALGORITHM/seed_N of ``fl-lightning compare --out SYSTEM/SETTING``; each run is a row.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduction import measures
from benchmarks.reproduction.measures import By
from benchmarks.reproduction.runs import read_run
from benchmarks.reproduction.tables import MISSING, markdown

NO_NOISE = "none"


@dataclass(frozen=True, kw_only=True)
class End:
    """How a run ends."""

    system: str
    setting: str  # such as epsilon_8 or sign_flip_10
    algorithm: str
    seed: int
    rounds: int
    accuracy: float  # of the model of the round, mean over the last fifth of the rounds
    averaged: float  # the same of the averaged model
    epsilon: float  # of the whole run; infinite without noise
    delta: float  # NaN without noise
    noise_multiplier: float  # 0 without noise
    clip_factor: float  # mean over all rounds of what clipping left of the uploads; NaN without clipping


def read_end(folder: Path) -> End:
    """Return how a finished run ends, from its folder."""
    run, summary = read_run(folder), json.loads((folder / "summary.json").read_text())
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    factors = [float(row["clip_factor"]) for row in rows if row.get("clip_factor") not in (None, "", "nan")]
    return End(
        system=folder.parents[2].name,
        setting=folder.parents[1].name,
        algorithm=run.algorithm,
        seed=run.seed,
        rounds=run.rounds,
        accuracy=round(measures.end(run, "accuracy"), 4),
        averaged=round(measures.end(run, "averaged"), 4),
        epsilon=round(summary.get("epsilon", float("inf")), 4),
        delta=float(f"{summary.get('delta', float('nan')):.4g}"),
        noise_multiplier=round(float(rows[-1].get("noise_multiplier") or 0.0), 4),
        clip_factor=round(float(np.mean(factors)), 4) if factors else float("nan"),
    )


def find(folders: Iterable[Path]) -> tuple[list[End], list[Path]]:
    """Return the ends of the finished runs below some folders, and the folders of those that are not finished."""
    configs = sorted(path.parent for folder in folders for path in folder.rglob("config.yaml"))
    finished = [folder for folder in configs if (folder / "summary.json").is_file()]
    return [read_end(folder) for folder in finished], [folder for folder in configs if folder not in finished]


def merge(stored: list[End], fresh: list[End]) -> list[End]:
    """Return stored and fresh ends together; of two of the same run the fresh one stays."""
    found = {(each.system, each.setting, each.algorithm, each.seed): each for each in [*stored, *fresh]}
    return [found[key] for key in sorted(found)]


def write(path: Path, ends: list[End]) -> None:
    """Store a study."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(End)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(each) for each in ends)


def read(path: Path) -> list[End]:
    """Return a stored study; nothing where none is stored."""
    if not path.is_file():
        return []
    kinds: dict[str, Any] = {each.name: each.type for each in fields(End)}
    with path.open(newline="") as file:
        return [End(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]


def private_table(ends: list[End], system: str) -> str:
    """Return accuracies of the averaged model and of the round's, without noise and with it.

    Bold: the best of a column, and who is not behind it by more than one standard error of the paired difference.
    """
    shown = [each for each in ends if each.system == system]
    if not shown:
        return MISSING
    settings = sorted({each.setting for each in shown}, key=lambda name: -_epsilon(name))
    algorithms = sorted({each.algorithm for each in shown}, key=lambda name: -_mean(shown, settings[-1], name))
    rows = [[f"`{name}`"] for name in algorithms]
    for curve in ("averaged", "accuracy"):
        for setting in settings:
            values = {name: _by_seed(shown, setting, name, curve) for name in algorithms}
            best = measures.leaders(values)
            for row, name in zip(rows, algorithms, strict=True):
                row.append(_cell(values[name], name in best))
    for row, name in zip(rows, algorithms, strict=True):
        noisy = [each for each in shown if each.algorithm == name and each.noise_multiplier > 0]
        strengths = {
            setting: [each.noise_multiplier for each in noisy if each.setting == setting] for setting in settings
        }
        row.append(", ".join(f"{np.mean(found):.2f}" for found in strengths.values() if found))
        row.append(f"{np.nanmean([each.clip_factor for each in shown if each.algorithm == name]):.2f}")
    titles = ["no noise" if np.isinf(_epsilon(name)) else f"epsilon {_epsilon(name):g}" for name in settings]
    header = ["algorithm", *(f"averaged, {title}" for title in titles), *(f"of the round, {title}" for title in titles)]
    return markdown([*header, "z", "factor of clipping"], rows)


def attack_table(ends: list[End], system: str) -> str:
    """Return the accuracy of the averaged model under each attack: one row for each, one column for each algorithm."""
    shown = [each for each in ends if each.system == system]
    if not shown:
        return MISSING
    order = ("fedacs", "median", "trimmedmean", "krum")
    algorithms = sorted({each.algorithm for each in shown}, key=lambda name: (order.index(name), name))
    rows = []
    for setting in sorted({each.setting for each in shown}, key=lambda name: (name != "none_0", name)):
        kind, _, share = setting.rpartition("_")
        values = {name: _by_seed(shown, setting, name, "averaged") for name in algorithms}
        best = measures.leaders(values)
        title = "no attackers" if kind == "none" else f"{kind.replace('_', ' ')}, {share} %"
        rows.append([title, *(_cell(values[name], name in best) for name in algorithms)])
    return markdown(["attack", *(f"`{name}`" for name in algorithms)], rows)


def _epsilon(setting: str) -> float:
    """Return the epsilon of a setting.

    >>> _epsilon("epsilon_8"), _epsilon("epsilon_none")
    (8.0, inf)
    """
    text = setting.rpartition("_")[2]
    return float("inf") if text == NO_NOISE else float(text)


def _by_seed(ends: list[End], setting: str, algorithm: str, curve: str) -> By:
    return {
        each.seed: float(getattr(each, curve))
        for each in ends
        if (each.setting, each.algorithm) == (setting, algorithm)
    }


def _mean(ends: list[End], setting: str, algorithm: str) -> float:
    values = list(_by_seed(ends, setting, algorithm, "averaged").values())
    return float(np.mean(values)) if values else float("-inf")


def _cell(values: By, bold: bool) -> str:
    if not values:
        return "-"
    known = list(values.values())
    text = f"{np.mean(known):.3f}" + (f" ± {np.std(known, ddof=1):.3f}" if len(known) > 1 else "")
    return f"**{text}**" if bold else text
