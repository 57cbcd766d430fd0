"""A table of clients in a CSV file: weight (optional), number of local steps, failure rate."""

import csv
import math
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
        name: [_number(path, line, row, name, place) for line, row in rows[1:]] for name, place in places.items()
    }
    lines_of = [line for line, _ in rows[1:]]
    steps = np.array(_checked(path, lines_of, "num_steps", columns["num_steps"]))
    rates = np.array(_checked(path, lines_of, "failure_rate", columns["failure_rate"]))
    weights = np.array(_checked(path, lines_of, "weight", columns.get("weight", [1.0] * len(lines_of))))
    if not weights.sum() > 0:
        raise ValueError(f"clients file {path}: at least one weight must be above 0")
    return ClientTable(weights / weights.sum(), steps.astype(np.int64), rates)


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
        return float(text)
    except ValueError:
        raise ValueError(f"clients file {path}, line {line}: {name} must be a number, got {text!r}") from None


def _checked(path: Path, lines: list[int], name: str, values: list[float]) -> list[float]:
    for line, value in zip(lines, values, strict=True):
        if name == "num_steps" and not (math.isfinite(value) and 1 <= value <= _MAX_STEPS and value == int(value)):
            wanted = f"a whole number from 1 to {_MAX_STEPS:,}"
        elif name == "failure_rate" and not 0 <= value < 1:
            wanted = "in [0, 1): a client that is never heard cannot be compensated, leave it out"
        elif name == "weight" and not (math.isfinite(value) and value >= 0):
            wanted = "a finite number >= 0"
        else:
            continue
        raise ValueError(f"clients file {path}, line {line}: {name}={value:g} must be {wanted}")
    return values
