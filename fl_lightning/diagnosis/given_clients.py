"""A table of clients in a CSV file: weight (optional), number of local steps, failure rate."""

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

_MAX_STEPS = 1_000_000  # of a client in a round
_NAMES = {
    "weight": ("weight", "weights", "w", "omega", "share", "size", "sizes", "num_examples", "examples", "num_samples"),
    "num_steps": ("num_steps", "t", "steps", "local_steps", "iterations", "work"),
    "failure_rate": ("failure_rate", "q", "failure_rates", "failure", "failure_probability", "loss_rate"),
}
_WANTED: dict[str, tuple[Callable[[float], bool], str]] = {
    "weight": (lambda value: 0 <= value < math.inf, "a finite number >= 0"),
    "num_steps": (
        lambda value: 1 <= value <= _MAX_STEPS and value == int(value),
        f"a whole number from 1 to {_MAX_STEPS:,}",
    ),
    "failure_rate": (
        lambda value: 0 <= value < 1,
        "in [0, 1): a client whose uploads never arrive cannot be compensated, leave it out",
    ),
}


@dataclass(frozen=True)
class ClientTable:
    """The columns of the file."""

    weights: npt.NDArray[np.float64]  # w, sums to 1, (M,)
    num_steps: npt.NDArray[np.int64]  # T, (M,)
    failure_rates: npt.NDArray[np.float64]  # q, (M,)


def read_clients(path: str | Path) -> ClientTable:
    """Read a CSV file with one row for each client; every error names the line and what is wanted."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"clients file {path} does not exist")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"clients file {path} is not a text file") from None
    separator = ";" if lines and lines[0].count(";") > lines[0].count(",") else ","
    rows = [(number, row) for number, row in enumerate(csv.reader(lines, delimiter=separator), start=1) if any(row)]
    if len(rows) < 2:
        raise ValueError(f"clients file {path} is empty: a header and one row for each client are wanted")
    places = _places(path, rows[0][1])
    columns = {
        name: np.array([_number(path, line, row, name, place) for line, row in rows[1:]])
        for name, place in places.items()
    }
    weights = columns.get("weight", np.ones(len(rows) - 1))
    if not weights.sum() > 0:
        raise ValueError(f"clients file {path}: at least one weight must be above 0")
    return ClientTable(weights / weights.sum(), columns["num_steps"].astype(np.int64), columns["failure_rate"])


def _places(path: Path, header: list[str]) -> dict[str, int]:
    given = [word.strip().lower().replace(" ", "_").replace("-", "_") for word in header]
    places = {}
    for name, spellings in _NAMES.items():
        found = [place for place, word in enumerate(given) if word in spellings]
        if len(found) > 1:
            raise ValueError(f"clients file {path} has {len(found)} columns for {name}: keep one of them")
        if found:
            places[name] = found[0]
        elif name != "weight":
            raise ValueError(
                f"clients file {path} has no column {name} (got {', '.join(given)}): wanted are num_steps, "
                "failure_rate and, if clients differ in it, weight"
            )
    return places


def _number(path: Path, line: int, row: list[str], name: str, place: int) -> float:
    text = row[place].strip() if place < len(row) else ""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"clients file {path}, line {line}: {name} must be a number, got {text!r}") from None
    is_valid, wanted = _WANTED[name]
    if not is_valid(value):
        raise ValueError(f"clients file {path}, line {line}: {name}={value:g} must be {wanted}")
    return value
