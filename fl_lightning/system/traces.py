"""Files with numbers of clients in rounds, read and checked in one place: traces, and what other machines answered."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from fl_lightning.output import open_plain, read_plain
from fl_lightning.types import Vector

KINDS = (".csv", ".txt", ".json", ".npy")  # of files with one number for each client
_MOST = 2**53  # above this, numbers of a JSON file need not be what was written
_FLAGS = {"1": 1.0, "true": 1.0, "0": 0.0, "false": 0.0}
# What a file that is no table of the wanted columns can raise while its rows are read.
_NOT_A_TABLE = (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, csv.Error)

Cell = str | float
Found = TypeVar("Found")
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


def has_column(path: str | Path, name: str) -> bool:
    """Return whether a trace file has a column; False where it cannot be read, which reading it will say."""
    with suppress(OSError, *_NOT_A_TABLE):
        return any(name in row for row in _rows(Path(path))[:1])
    return False


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


_LARGEST = 1_000_000_000  # bytes
_MOST_SECONDS = 1e9  # 30 years


@dataclass(frozen=True)
class PhoneStates:
    """When a phone was ready to train, in seconds."""

    start: float
    end: float
    ready: npt.NDArray[np.float64]  # beginning and end of each stay, ascending, (n, 2)


def read_states(path: str | Path) -> list[PhoneStates]:
    """Return the phones of a file of user states as FLASH has them; those marked as failed are left out.

    Each phone has ``isSuccess``, ``trace_start``, ``trace_end`` and ``ready_time``, a list of [begin, end].
    """
    wanted = "phones, each with isSuccess, trace_start, trace_end and ready_time"
    return [each for each in _each(path, wanted, _states) if each is not None]


def _states(phone: dict[str, Any]) -> PhoneStates | None:
    if not isinstance(phone["isSuccess"], bool):
        raise TypeError(f"isSuccess={str(phone['isSuccess'])[:40]!r} is not true or false")
    if not phone["isSuccess"]:
        return None
    start, end = (_number(phone[name], name) for name in ("trace_start", "trace_end"))
    rows = [[_number(each, "ready_time") for each in pair] for pair in phone["ready_time"]]
    if any(len(row) != 2 for row in rows):
        raise ValueError("ready_time must be a list of [begin, end]")
    ready = np.array(rows, dtype=np.float64).reshape(-1, 2)
    times = np.array([start, *ready.ravel(), end])
    if not end > start or (np.diff(times) < 0).any():
        raise ValueError("ready_time must be intervals from trace_start to trace_end, ascending, none in another")
    return PhoneStates(start, end, ready[ready[:, 1] > ready[:, 0]])


def read_speeds(path: str | Path) -> npt.NDArray[np.float64]:
    """Return mean and deviation of bytes per second down, and of those up, of devices as MobiPerf has them, (n, 4).

    Each device has ``down_u``, ``down_sigma``, ``up_u`` and ``up_sigma`` in kbit/s.
    """
    columns = ("down_u", "down_sigma", "up_u", "up_sigma")

    def speeds(device: dict[str, Any]) -> list[float]:
        row = [_number(device[column], column) for column in columns]
        if not (row[0] > 0 and row[2] > 0):
            raise ValueError(f"down_u={row[0]:g} and up_u={row[2]:g} must be above 0")
        return row

    return np.array(_each(path, f"devices, each with {', '.join(columns)}", speeds)) * 125.0


def read_latencies(path: str | Path, network: str = "ResNet") -> Vector:
    """Return the seconds of a training step of each phone of a list of measured latencies, (n,).

    Each phone has ``<network> Latency`` in milliseconds; those that lack it or have 0 there did not finish.
    """
    name = f"{network} Latency"
    found = np.array(_each(path, f"phones, each with '{name}'", lambda phone: _number(phone.get(name, 0.0), name)))
    if not (found > 0).any():
        raise ValueError(f"trace file {path} has no phone with '{name}' above 0")
    return found[found > 0] / 1000


def _each(path: str | Path, wanted: str, read: Callable[[dict[str, Any]], Found]) -> list[Found]:
    """Return what is read of each record of a file; an error names the record."""
    found = []
    for name, record in _records(path, wanted).items():
        try:
            found.append(read(record))
        except _NOT_A_TABLE as error:  # noqa: PERF203
            said = f"there is no {error}" if isinstance(error, KeyError) else str(error)[:200]
            raise ValueError(f"trace file {path}, record {name[:40]!r}: {said}") from None
    if all(each is None for each in found):
        raise ValueError(f"trace file {path} has nothing that can be used: it must hold {wanted}")
    return found


def _records(path: str | Path, wanted: str) -> dict[str, Any]:
    """Return the records of a JSON file by name or number."""
    try:
        loaded = json.loads(read_plain(Path(path), _LARGEST).decode("utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"trace file {path} does not exist") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"trace file {path} is not JSON: {str(error)[:200]}") from None
    found = dict(enumerate(loaded)) if isinstance(loaded, list) else loaded
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ValueError(f"trace file {path} must hold {wanted}")
    return {str(name): record for name, record in found.items()}


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={str(value)[:40]!r} is not a number")
    if not 0 <= value < _MOST_SECONDS:  # NaN neither
        raise ValueError(f"{name}={value:g} must be a number from 0 to {_MOST_SECONDS:g}")
    return float(value)


DELIVERIES = "deliveries.csv"  # in the folder of a run


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
