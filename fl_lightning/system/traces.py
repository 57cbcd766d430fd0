"""Files with numbers of clients in rounds, read and checked in one place: traces, and what other machines answered."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fl_lightning.output import open_plain
from fl_lightning.types import Vector

KINDS = (".csv", ".txt", ".json", ".npy")  # of files with one number for each client
_MOST = 2**53  # above this, numbers of a JSON file need not be what was written
_FLAGS = {"1": 1.0, "true": 1.0, "0": 0.0, "false": 0.0}
# What a file that is no table of the wanted columns can raise while its rows are read.
_NOT_A_TABLE = (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, csv.Error)

Cell = str | float
Row = dict[str, Cell | None]
Table = dict[str, npt.NDArray[np.float64]]


def whole(name: str, value: Cell) -> int:
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


def real(name: str, value: Cell) -> float:
    """Return a cell as a number."""
    return float(value)


def flag(name: str, value: Cell) -> float:
    """Return 1 for ``1`` or ``true`` and 0 for ``0`` or ``false``."""
    return _FLAGS[str(value).strip().lower()]


@dataclass(frozen=True)
class Column:
    """A column of a trace file."""

    name: str
    read: Callable[[str, Cell], float] = real  # from a name, for errors, and a cell
    default: float | None = None  # of what is left open; None: nothing may be left open

    def value(self, row: Row) -> float:
        """Return what a row has in this column."""
        cell = row[self.name] if self.default is None else row.get(self.name)
        if cell is None or cell == "":
            if self.default is None:
                raise ValueError(f"{self.name} is left open")
            cell = self.default
        return self.read(self.name, cell)


def read_trace(path: str | Path, columns: Sequence[Column], wanted: str, every_round: bool = True) -> Table:
    """Return the columns of a CSV or JSON file with a row for each client in each round, each (rounds, M).

    Args:
        path: Of the file; its columns ``client`` count from 0 and ``round`` from 1.
        columns: What it must have besides.
        wanted: These columns in words, for errors.
        every_round: Whether the round must be named; otherwise a file without rounds has one.
    """
    spot = (Column("round", whole, None if every_round else 1), Column("client", whole))
    try:
        rows = _rows(Path(path))
        cells = {
            (int(spot[0].value(row)), int(spot[1].value(row))): [column.value(row) for column in columns]
            for row in rows
        }
    except _NOT_A_TABLE as error:
        raise ValueError(f"trace file {path} is not a table with columns {wanted}: {error!r}") from None
    last_round = max((index for index, _ in cells), default=0)
    num_clients = max((client for _, client in cells), default=0) + 1
    counted_from = all(index >= 1 and client >= 0 for index, client in cells)
    # Counted instead of listed: one row of round 30,000,000 must not take the memory of all the rounds before it.
    if not cells or not counted_from or not len(rows) == len(cells) == last_round * num_clients:
        raise ValueError(f"trace file {path} must have each client (from 0) once in each round (from 1), without holes")
    values = np.array([cells[key] for key in sorted(cells)], dtype=np.float64)
    return {
        column.name: values[:, place].reshape(last_round, num_clients).copy() for place, column in enumerate(columns)
    }


def read_flags(path: str | Path, name: str) -> npt.NDArray[np.bool_]:
    """Return a column of 1 or 0, true or false, of a trace file, (rounds, M)."""
    return read_trace(path, [Column(name, flag)], f"client, round and {name} (1 or 0)")[name] > 0


def _rows(path: Path) -> list[Row]:
    """Return the rows of a CSV or JSON file; a byte order mark, as some programs write it, has no meaning."""
    if not path.is_file():
        raise FileNotFoundError(f"trace file {path} does not exist")
    if path.suffix == ".json":
        return list(json.loads(path.read_text(encoding="utf-8-sig")))
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def read_numbers(path: str | Path) -> Vector:
    """Return the numbers of a file: CSV or text with one per line, a JSON list, or a one-dimensional ``.npy`` array."""
    path = Path(path)
    if path.suffix not in KINDS:
        raise ValueError(f"{path} must be a file of numbers: {', '.join(KINDS)}")
    if not path.is_file():
        raise FileNotFoundError(f"file of numbers {path} does not exist")
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            values = np.asarray(json.loads(path.read_text(encoding="utf-8-sig")))
        else:
            lines = path.read_text(encoding="utf-8-sig").split()
            values = np.array([float(line.rstrip(",;")) for line in lines])
    except (ValueError, TypeError, OSError, EOFError, RecursionError) as error:
        raise ValueError(f"{path} must hold one number for each client: {error}") from None
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise ValueError(
            f"{path} must hold a list of finite numbers, one for each client, but has shape {values.shape}"
        )
    return values.astype(np.float64)


DELIVERIES = "deliveries.csv"  # in the folder of a run
_LARGEST = 1_000_000_000  # bytes


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The answer of one client to one question."""

    round_index: int
    question: int  # of the round, counted from 0; training is the last
    client: int
    arrived: bool
    num_steps: int  # T as reported; 0 where the client was asked for something else or did not answer


@runtime_checkable
class Answers(Protocol):
    """An engine that asks other machines, and knows what they answered in the last round."""

    deliveries: list[Delivery]


_COLUMNS = ("round", *[field.name for field in fields(Delivery)][1:])


def as_table(deliveries: Iterable[Delivery], header: bool = True) -> str:
    """Return deliveries as CSV.

    >>> as_table([Delivery(round_index=1, question=0, client=3, arrived=True, num_steps=7)]).splitlines()
    ['round,question,client,arrived,num_steps', '1,0,3,1,7']
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(_COLUMNS)
    writer.writerows([int(value) for value in astuple(delivery)] for delivery in deliveries)
    return text.getvalue()


def read_deliveries(path: Path, last_round: int | None = None) -> list[Delivery]:
    """Return the deliveries in a file, up to a round."""
    try:
        with io.TextIOWrapper(open_plain(path, _LARGEST), newline="", encoding="utf-8") as file:
            rows = [[int(row[name]) for name in _COLUMNS] for row in csv.DictReader(file)]
        found = [_delivery(*row) for row in rows]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} is not a table with columns {', '.join(_COLUMNS)}: {error!r}") from None
    return [delivery for delivery in found if last_round is None or delivery.round_index <= last_round]


def _delivery(index: int, question: int, client: int, arrived: int, num_steps: int) -> Delivery:
    if index < 1 or min(question, client, num_steps) < 0 or arrived not in (0, 1):
        raise ValueError(f"a row {[index, question, client, arrived, num_steps]} is out of range")
    return Delivery(round_index=index, question=question, client=client, arrived=bool(arrived), num_steps=num_steps)
