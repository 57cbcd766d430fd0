"""The files that a run leaves, and the one reader of each. Imports nothing heavier than numpy."""

import csv
import io
import json
import math
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from fl_lightning.output import open_flags, open_plain, read_plain, write_durably
from fl_lightning.runs import safe_yaml

CONFIG = "config.yaml"
METRICS = "metrics.csv"
CLIENTS = "clients.csv"
QUANTILES = "clients_quantiles.csv"  # beside CLIENTS where that has groups
EVERYBODY = "clients.parquet"  # likewise
MODEL = "model.ckpt"
LAST_MODEL = "model_last.ckpt"
SUMMARY = "summary.json"
FINAL_FILES = (CLIENTS, LAST_MODEL, MODEL, SUMMARY)  # in the order of writing: with the last, a run is finished
UNCOVERED = "not_covered.csv"  # of a private run: what its epsilon leaves out, where that is kept
UNCOVERED_CLIENTS = "not_covered_clients.csv"
NOISE_KEY = "noise.key"  # of a private run; only its owner can read it
CHECKPOINTS = "checkpoints"  # a folder
LOGS = ("wandb", "tensorboard")  # folders

LARGEST_TEXT = 50_000_000  # bytes of a marker or summary
_LARGEST_TABLE = 1_000_000_000
_LARGEST = 1e15
_FROM_ZERO = ("size", "weight", "expected_draws", "draws", "deliveries", "num_steps", "offered_steps", "failure_rate")
_KEY_BYTES = 32
_OF_METRIC = ("last", "best", "averaged", "target")  # in a summary file, the name of the metric follows

Vector = npt.NDArray[np.float64]
Table = dict[str, Vector]  # one column each, NaN for an empty cell


REPLACE = "give another --run_dir, or --resume never to replace it"  # as train says it


class RunError(ValueError):
    """Something in the folder of a run that the user can fix."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished run reached; None for what it did not measure."""

    rounds: int = 0
    seed: int | None = None
    algorithm: str = "unnamed"
    data: str = "unnamed"
    monitor: str | None = None  # the headline metric, of which the next six are
    mode: str | None = None  # max | min
    last: float | None = None  # mean over the last fifth of the rounds
    best: float | None = None
    averaged: float | None = None  # of the averaged model
    target: float | None = None
    rounds_to_target: int | None = None
    per_class_accuracy: tuple[float, ...] = ()
    epsilon: float | None = None  # of a private run
    epsilon_kind: str | None = None  # exact or an upper bound
    noise_key: str | None = None  # of a private run: "secret", or that the noise can be recomputed
    rejected_updates: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def metric(self) -> str:
        """The headline metric without a leading ``test_``."""
        return (self.monitor or "accuracy").removeprefix("test_")

    @classmethod
    def of(cls, content: Mapping[str, object]) -> Self:
        """Return what the content of a summary file says, or raise ValueError for what no run writes."""
        monitor = content.get("monitor") or "accuracy"
        metric = str(monitor).removeprefix("test_")
        found: dict[str, Any] = {}
        for each in fields(cls):
            name = f"{each.name}_{metric}" if each.name in _OF_METRIC else each.name
            value = content.get(name)
            if isinstance(value, bool) or not isinstance(value, _KINDS[each.type] | None):
                raise ValueError(f"{SUMMARY} holds a {name} of the wrong kind")
            if value not in (None, ""):
                found[each.name] = tuple(value) if isinstance(value, list) else value
        summary = cls(**found)
        if metric == "accuracy" and summary.target is not None and not 0 <= summary.target <= 1:
            raise ValueError(f"{SUMMARY} holds target_accuracy {summary.target}, which is not between 0 and 1")
        if summary.seconds is not None and not 0 <= summary.seconds < _LARGEST:
            raise ValueError(f"{SUMMARY} holds seconds that are no number from 0 up")
        classes = summary.per_class_accuracy
        if not all(type(each) in (int, float) and (math.isnan(each) or 0 <= each <= 1) for each in classes):
            raise ValueError(f"{SUMMARY} holds a per_class_accuracy that is not between 0 and 1")
        return summary


# What stands in a summary file for the type of a field.
_KINDS: dict[object, Any] = {
    int: int,
    int | None: int,
    float | None: int | float,
    str: str,
    str | None: str,
    tuple[float, ...]: list,
    Mapping[str, str]: dict,
}


def read_summary(folder: Path) -> Summary:
    """Return the summary of a finished run, or raise ValueError for a file that no run writes so."""
    try:
        content = json.loads(read_plain(folder / SUMMARY, LARGEST_TEXT))
    except (ValueError, RecursionError):
        raise ValueError(f"{SUMMARY} is half-written or no JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{SUMMARY} must hold a table")
    return Summary.of(content)


def sound_summary(folder: Path, seed: object) -> Summary | None:
    """Return the summary of a finished run, or nothing if it is missing, damaged or of another seed."""
    with suppress(OSError, ValueError):
        summary = read_summary(folder)
        if summary.seed == seed and summary.rounds > 0:
            return summary
    return None


def read_config(folder: Path) -> dict[str, object]:
    """Return the configuration of a run, or raise ValueError if it is half-written or no table of keys."""
    try:
        config = safe_yaml.load(_config_text(folder), f"{folder / CONFIG}")
    except safe_yaml.UnsafeYamlError:
        raise ValueError(f"{CONFIG} is half-written or no YAML") from None
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG} must hold a table")
    return config


def _config_text(folder: Path) -> str:
    return read_plain(folder / CONFIG, safe_yaml.MAX_BYTES).decode()


def stored_config(folder: Path) -> str | None:
    """Return the text of the configuration that lies in a folder, or nothing if it cannot be read as one."""
    with suppress(OSError, ValueError):
        read_config(folder)
        return _config_text(folder)
    return None


def read_table(path: Path) -> Table:
    """Return the columns of a CSV file of numbers."""
    try:
        with io.TextIOWrapper(open_plain(path, _LARGEST_TABLE), newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except csv.Error as error:  # a cell of over 131,072 characters, for one
        raise ValueError(f"{path.name} is no table: {error}") from None
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(f"{path.name} is half-written: line {number} has {len(row)} of {len(header)} cells")
    try:
        cells = [[float(cell) if cell else math.nan for cell in row] for row in rows]
    except ValueError as error:
        raise ValueError(f"{path.name} holds something that is no number: {error}") from None
    return dict(zip(header, np.array(cells).reshape(len(rows), len(header)).T, strict=True))


def read_rounds(path: Path) -> list[dict[str, float]]:
    """Return the rows of a metrics file; empty cells are left out."""
    if not path.is_file():
        return []
    try:
        table = read_table(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a table of numbers with one row for each round: {error}") from None
    rows = zip(*(column.tolist() for column in table.values()), strict=True)
    return [
        {name: int(cell) if name == "round" else cell for name, cell in zip(table, row, strict=True) if cell == cell}
        for row in rows
    ]


def read_metrics(folder: Path) -> Table:
    """Return the metrics of a run, a row for each round; ValueError if they are out of order, or a cost shrinks."""
    metrics = _read(folder / METRICS, "round")
    rounds = metrics["round"]
    if not np.array_equal(rounds, np.arange(1, len(rounds) + 1)):
        raise ValueError(f"{METRICS} does not have each round once, in order")
    if not _is_share(metrics.get("test_accuracy", np.empty(0))).all():
        raise ValueError(f"{METRICS} holds a test_accuracy that is not between 0 and 1")
    for name in ("local_steps", "computation_time"):
        values = metrics.get(name)
        if values is not None and "epsilon" in metrics and np.isnan(values).all():
            continue  # a private run does not say who was drawn
        if values is None:
            raise ValueError(f"{METRICS} has no column {name}")
        if not ((values >= 0) & (values < _LARGEST)).all() or (np.diff(values) < 0).any():
            raise ValueError(f"{METRICS} holds a {name} that is no number or shrinks")
    return metrics


def read_clients(folder: Path) -> Table:
    """Return the clients of a run, a row for each or for each group; ValueError for numbers that none can have."""
    clients = _read(folder / CLIENTS, "weight")
    for name in _FROM_ZERO:
        values = clients.get(name)
        if values is not None and not ((values >= 0) & (values < _LARGEST)).all():
            raise ValueError(f"{CLIENTS} holds a {name} that is no number from 0 up")
    if not _is_share(clients.get("effective_weight", np.empty(0)), 1e-6).all():
        raise ValueError(f"{CLIENTS} holds an effective_weight that is not between 0 and 1")
    return clients


def _is_share(values: Vector, tolerance: float = 0.0) -> npt.NDArray[np.bool_]:
    return np.isnan(values) | ((values >= 0) & (values <= 1 + tolerance))


def _read(path: Path, wanted: str) -> Table:
    table = read_table(path)
    if not any(len(column) for column in table.values()):
        raise ValueError(f"{path.name} has no rows")
    if wanted not in table:
        raise ValueError(f"{path.name} has no column {wanted}")
    return table


def num_rounds(folder: Path) -> int:
    """Return how many rows the metrics of a run have below their header, whatever they hold."""
    try:
        with open_plain(folder / METRICS) as file:
            return max(0, sum(1 for _ in file) - 1)
    except OSError:
        return 0


def kept_key(path: Path, new: bytes, resumed: bool) -> bytes:
    """Return the key of a private run's noise, kept in a file that only its owner can read.

    A resumed run has it there, or RunError is raised. That of a run that starts is written in place of any other.
    """
    if not resumed:
        write_durably(path, f"{new.hex()}\n".encode(), mode=0o600)
        return new
    again = "bring the file back, or start anew with --resume never"
    try:
        handle = os.open(path, open_flags("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK"))
    except OSError as error:
        raise RunError(f"{path} has the key of the noise and cannot be read, {error.strerror}: {again}") from None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or (os.name != "nt" and status.st_mode & 0o077):
            raise RunError(f"{path} must be a file that only its owner can read (chmod 600): others may know the noise")
        text = file.read(4 * _KEY_BYTES).decode("ascii", "replace")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise RunError(f"{path} does not hold a key of {_KEY_BYTES} bytes: {again}")
    return key
