"""Reading run folders: what is whole is returned, what is not is named."""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.report.statistics import Vector
from fl_lightning.runs import safe_yaml
from fl_lightning.runs.checks import check_clients, check_metrics, check_summary

FILES = ("config.yaml", "metrics.csv", "clients.csv", "summary.json")
_WORDS = ("algorithm", "data", "config")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run."""

    folder: Path
    algorithm: str
    data: str
    seed: int
    config: dict[str, Any]
    metrics: dict[str, Vector]  # one column each, NaN for an empty cell
    clients: dict[str, Vector]
    summary: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """The config as dotted keys, without what tells runs of one algorithm apart."""
        return {
            key: value
            for key, value in flattened(self.config).items()
            if key not in ("seed", "run_dir") and not key.startswith("logger")
        }


@dataclass(frozen=True)
class Problem:
    """A folder that is left out, and why."""

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.folder}: left out: {self.reason}"


def flattened(table: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys; ``class_path`` and ``init_args`` add no words of their own.

    >>> flattened({"a": {"class_path": "x.B", "init_args": {"c": 1}}, "d": [1, 2]})
    {'a': 'x.B', 'a.c': 1, 'd': [1, 2]}
    """
    if not isinstance(table, dict):
        return {prefix: table}
    if "class_path" in table:
        return {prefix: table["class_path"]} | (
            flattened(table.get("init_args") or {}, prefix) if table.get("init_args") else {}
        )
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flattened(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def find(paths: Iterable[Path]) -> tuple[list[Path], list[Problem]]:
    """Return the run folders at and below the paths, and the paths that hold none."""
    folders: list[Path] = []
    problems: list[Problem] = []
    for path in paths:
        if not path.is_dir():
            problems.append(Problem(path, "there is no such folder"))
            continue
        files = [file for name in FILES for file in path.rglob(name)]
        found = sorted({file.parent for file in files if not _is_passed_over(file.relative_to(path).parent)})
        found = [folder for folder in found if _looks_like_a_run(folder)]
        if not found:
            problems.append(Problem(path, "it holds no run (no config.yaml with a metrics.csv or summary.json)"))
        folders += [folder for folder in found if folder not in folders]
    return folders, problems


def _is_passed_over(folder: Path) -> bool:
    """Whether a folder holds what W&B keeps, or something hidden, such as a run that is being replaced."""
    return any(part == "wandb" or part.startswith(".") for part in folder.parts)


def _looks_like_a_run(folder: Path) -> bool:
    return sum((folder / name).exists() for name in FILES) >= 2 or (folder / "metrics.csv").exists()


def read_table(path: Path) -> dict[str, Vector]:
    """Return the columns of a CSV file of numbers."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except csv.Error as error:  # a cell of over 131,072 characters, for one
        raise ValueError(f"{path.name} is no table: {error}") from None
    if len(rows) < 2:
        raise ValueError(f"{path.name} has no rows")
    width = len(rows[0])
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != width:
            raise ValueError(f"{path.name} is half-written: line {number} has {len(row)} of {width} cells")
    try:
        values = np.array([[float(cell) if cell else math.nan for cell in row] for row in rows[1:]])
    except ValueError as error:
        raise ValueError(f"{path.name} holds something that is no number: {error}") from None
    return {name: values[:, column] for column, name in enumerate(rows[0])}


def load(folder: Path) -> Run:
    """Read one run.

    Raises:
        ValueError: It is unfinished, half-written or no run; the message says which.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if "summary.json" in missing and (folder / "metrics.csv").is_file():
        rounds = max(0, sum(1 for _ in (folder / "metrics.csv").open(encoding="utf-8", errors="replace")) - 1)
        raise ValueError(f"the run is unfinished ({rounds} rounds, no summary.json): start it again")
    if missing:
        raise ValueError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    try:
        config = safe_yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), f"{folder / 'config.yaml'}")
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except safe_yaml.UnsafeYamlError:
        raise ValueError("config.yaml is half-written or no YAML") from None
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("summary.json is half-written or no JSON") from None
    if not isinstance(config, dict) or not isinstance(summary, dict):
        raise ValueError("config.yaml and summary.json must each hold a table")
    metrics, clients = read_table(folder / "metrics.csv"), read_table(folder / "clients.csv")
    return _checked(
        Run(
            folder=folder,
            algorithm="",
            data="",
            seed=-1,
            config=config,
            metrics=metrics,
            clients=clients,
            summary=summary,
        )
    )


def _checked(run: Run) -> Run:
    """Return the run with its labels, once its files are known to agree."""
    for name, table, wanted in (("metrics.csv", run.metrics, "round"), ("clients.csv", run.clients, "weight")):
        if wanted not in table:
            raise ValueError(f"{name} has no column {wanted}")
    check_metrics(run.metrics)
    check_clients(run.clients)
    check_summary(run.summary)
    rounds = run.metrics["round"]
    if run.summary.get("rounds") != len(rounds):
        raise ValueError(f"summary.json tells of {run.summary.get('rounds')} rounds, metrics.csv has {len(rounds)}")
    seed = run.summary.get("seed")
    if not isinstance(seed, int) or seed != run.config.get("seed"):
        raise ValueError(f"summary.json is of seed {seed}, config.yaml of seed {run.config.get('seed')}")
    words = {name: str(run.summary.get(name) or "unnamed") for name in _WORDS}
    return replace(run, algorithm=words["algorithm"], data=words["data"], seed=seed)


def load_all(paths: Iterable[Path]) -> tuple[list[Run], list[Problem]]:
    """Read all runs at and below the paths that belong together; say of each other folder why it is left out."""
    folders, problems = find(paths)
    runs: list[Run] = []
    for folder in folders:
        loaded = _attempt(folder)
        if isinstance(loaded, Run):
            runs.append(loaded)
        else:
            problems.append(loaded)
    together, foreign = _one_data_set(runs)
    kept, repeated = _once(together)
    return kept, problems + foreign + repeated


def _attempt(folder: Path) -> Run | Problem:
    try:
        return load(folder)
    except (ValueError, OSError) as error:
        return Problem(folder, " ".join(str(error).split()))


def _data_key(run: Run) -> str:
    return json.dumps([run.config.get("data"), run.config.get("model")], sort_keys=True, default=str)


def _one_data_set(runs: list[Run]) -> tuple[list[Run], list[Problem]]:
    """Keep the data set (with its partition and model) that most runs have: others cannot be compared with them."""
    if not runs:
        return [], []
    counts = Counter(map(_data_key, runs))
    common = max(counts, key=lambda key: counts[key])
    name = next(run.data for run in runs if _data_key(run) == common)
    problems = [
        Problem(run.folder, f"its data, partition or model ({run.data}) is not that of the other runs ({name})")
        for run in runs
        if _data_key(run) != common
    ]
    return [run for run in runs if _data_key(run) == common], problems


def _once(runs: list[Run]) -> tuple[list[Run], list[Problem]]:
    """Leave out a run that is there twice."""
    kept: dict[str, Run] = {}
    problems: list[Problem] = []
    for run in runs:
        key = json.dumps([run.algorithm, run.seed, run.settings], sort_keys=True, default=str)
        if key in kept:
            problems.append(Problem(run.folder, f"it is the same run as {kept[key].folder}"))
        else:
            kept[key] = run
    return list(kept.values()), problems
