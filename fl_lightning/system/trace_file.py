"""Reading the rows of trace files."""

import csv
import json
from pathlib import Path
from typing import Any

_MOST = 2**53  # above this, numbers of a JSON file need not be what was written
# What a file that is no table of the wanted columns can raise while its rows are read.
NOT_A_TABLE = (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, csv.Error)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV or JSON file; a byte order mark, as some programs write it, has no meaning."""
    if not path.is_file():
        raise FileNotFoundError(f"trace file {path} does not exist")
    if path.suffix == ".json":
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8-sig"))
        return rows
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def whole(name: str, value: Any) -> int:
    """Return a cell as a whole number; refuse what would have to be cut.

    >>> whole("num_steps", "3"), whole("num_steps", 3.0)
    (3, 3)
    """
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{name}={value} is not a whole number")
    number = int(value)
    if abs(number) > _MOST:
        raise ValueError(f"{name}={number:.3g} is too large" if abs(number) < 10**300 else f"{name} is too large")
    return number
