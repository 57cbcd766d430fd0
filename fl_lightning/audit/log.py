"""The log of participation: a CSV or JSON-lines file with a row for each client in each round."""

import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fl_lightning.output import open_plain, replace_file
from fl_lightning.theory.checks import Vector

_LARGEST = 8_000_000_000  # bytes of a file
_CHUNK = 100_000  # rows that are looked at together
_MOST_ROWS = 50_000_000
_MOST = 1e15
_LONGEST_NAME = 64
_FLAGS = {"true": 1.0, "false": 0.0}
_COUNTS = ("round", "asked", "arrived")
IntVector: TypeAlias = npt.NDArray[np.int64]
_Cells: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is known of one client in one round; None where nothing is."""

    round: int  # of any start, ascending or not
    client: str  # a name or a number
    asked: int  # how often it was drawn; 0 where it was not
    arrived: int  # how many of these uploads entered the average
    examples: float | None = None  # that the client trained on
    steps: float | None = None  # local steps of one upload
    weight: float | None = None  # of one upload in the average, before it is divided by the sum of the round
    applied: float | None = None  # the factor that one upload really had in the step of the model
    update_norm: float | None = None  # length of the update
    staleness: float | None = None  # age of the model that the update began with, in rounds


COLUMNS = tuple(each.name for each in fields(Row))
KNOWN = COLUMNS[4:]  # of which any may be left out


@dataclass(frozen=True, kw_only=True)
class Log:
    """The rows of a log as columns; NaN where something is not known."""

    names: tuple[str, ...]  # of the clients, (M,)
    num_rounds: int
    rounds: IntVector  # counted from 0 without holes, (N,)
    clients: IntVector  # places in the names, (N,)
    asked: Vector  # (N,)
    arrived: Vector  # (N,)
    known: Mapping[str, Vector] = field(default_factory=dict)  # by the names in KNOWN; what is absent is unknown, (N,)


class LogWriter:
    """Appends rows to a CSV file; a log that has the name is replaced, and any other file is refused.

    Args:
        path: Of the file.
        keep: The last round of an earlier log to go on from; None begins anew.
    """

    def __init__(self, path: str | Path, keep: int | None = None) -> None:
        self.path = Path(path)
        header = ",".join(COLUMNS)
        before: list[str] = []
        if self.path.exists():
            with io.TextIOWrapper(open_plain(self.path), encoding="utf-8", errors="replace") as file:
                if file.readline().strip() not in ("", header):
                    raise ValueError(f"{self.path} is there and is no log of participation: give another name")
                before = [line for line in file if keep is not None and _is_until(line, keep)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(self.path) as file:
            file.writelines([header + "\n", *before])

    def write(self, rows: Iterable[Row]) -> None:
        """Append the rows of a round, and hand them to the disk."""
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows(["" if cell is None else cell for cell in astuple(row)] for row in rows)
            file.flush()
            os.fsync(file.fileno())


def _is_until(line: str, last: int) -> bool:
    """Return whether a line is whole and of a round up to the last."""
    number = line.partition(",")[0]
    return line.endswith("\n") and line.count(",") == len(COLUMNS) - 1 and number.isdigit() and int(number) <= last


def read_log(path: str | Path) -> Log:
    """Read a log; what is wrong with it is named in one line, with the row.

    Args:
        path: A CSV file with a header, or JSON lines (``.jsonl``, ``.ndjson``, ``.json``).
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"log {path} does not exist")
    with io.TextIOWrapper(open_plain(path, _LARGEST), encoding="utf-8-sig", newline="") as file:
        try:
            is_json = path.suffix in (".jsonl", ".ndjson", ".json")
            return _collected(_json_rows(file) if is_json else _csv_rows(file))
        except _WrongLogError as wrong:
            raise ValueError(f"log {path}: {wrong}") from None
        except (csv.Error, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"log {path} is not a table of text: {error}") from None


class _WrongLogError(ValueError):
    """Something in a log is wrong; the text lacks the name of the file."""


def _csv_rows(file: io.TextIOBase) -> Iterator[_Cells]:
    reader = csv.reader(file)
    header = [word.strip().lower() for word in next(reader, [])]
    places = _places(header)
    yield tuple(places)
    pick = list(places.values())
    for number, cells in enumerate(reader, start=1):
        if len(cells) == len(header):
            yield tuple([cells[place] for place in pick])
        elif cells:
            raise _WrongLogError(f"row {number} has {len(cells)} cells, but the header has {len(header)}")


def _places(header: list[str]) -> dict[str, int]:
    """Return where each known column stands; others are the user's own."""
    for name in COLUMNS:
        if header.count(name) > 1:
            raise _WrongLogError(f"the column {name} is there {header.count(name)} times")
    missing = [name for name in COLUMNS[:4] if name not in header]
    if missing:
        raise _WrongLogError(f"there is no column {', '.join(missing)}; wanted are {', '.join(COLUMNS[:4])}")
    return {name: header.index(name) for name in COLUMNS if name in header}


def _json_rows(file: io.TextIOBase) -> Iterator[_Cells]:
    yield COLUMNS
    for number, line in enumerate(filter(str.strip, file), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            raise _WrongLogError(f"row {number} is not JSON: one object per line is wanted") from None
        if not isinstance(record, dict) or any(isinstance(cell, (dict, list)) for cell in record.values()):
            raise _WrongLogError(f"row {number} is not an object of plain values")
        _places(list(record)) if number == 1 else None
        yield tuple(["" if (cell := record.get(name)) is None else str(cell) for name in COLUMNS])


def _collected(rows: Iterator[_Cells]) -> Log:
    header = next(rows)
    names: dict[str, int] = {}
    parts: list[dict[str, Vector]] = []
    done = 0
    while chunk := list(islice(rows, _CHUNK)):
        columns = dict(zip(header, zip(*chunk, strict=True), strict=True))
        parts.append({name: _numbers(name, cells, done) for name, cells in columns.items() if name != "client"})
        parts[-1]["client"] = _places_of(columns["client"], names, done)
        done += len(chunk)
        if done > _MOST_ROWS:
            raise _WrongLogError(f"it has over {_MOST_ROWS:,} rows: keep every n-th round")
    if not parts:
        raise _WrongLogError("it has no rows: one for each client and round is wanted")
    whole = {name: np.concatenate([part[name] for part in parts]) for name in header}
    clients = whole["client"].astype(np.int64)
    numbers, rounds = np.unique(whole["round"], return_inverse=True)
    _check(whole, rounds * len(names) + clients, list(names))
    known = {name: whole[name] for name in KNOWN if name in whole and not np.isnan(whole[name]).all()}
    return Log(
        names=tuple(names),
        num_rounds=len(numbers),
        rounds=rounds,
        clients=clients,
        asked=whole["asked"],
        arrived=whole["arrived"],
        known=known,
    )


def _check(whole: dict[str, Vector], keys: IntVector, names: list[str]) -> None:
    """Refuse rows that contradict each other."""
    order = np.argsort(keys, kind="stable")
    repeated = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(repeated):
        row = int(order[repeated + 1].min())
        client = names[int(whole["client"][row])]
        raise _WrongLogError(f"row {row + 1} is a second one of client {client} in round {whole['round'][row]:.0f}")
    more = np.flatnonzero(whole["arrived"] > whole["asked"])
    if len(more):
        raise _WrongLogError(f"row {more[0] + 1} has more arrived than asked: an upload arrives from who was asked")
    if not whole["arrived"].any():
        raise _WrongLogError("no upload ever arrived: nothing was optimised")


def _numbers(name: str, cells: _Cells, done: int) -> Vector:
    """Return a column as numbers; NaN where a cell that may be blank is."""
    try:
        values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        blank = np.zeros(len(cells), dtype=bool)
    except ValueError:
        values = np.fromiter((_number(name, cell, done + row) for row, cell in enumerate(cells, 1)), dtype=np.float64)
        blank = np.fromiter((not cell.strip() for cell in cells), dtype=bool)
    required = name in _COUNTS
    wrong = ~blank & ~((values >= 0) & (values <= _MOST)) | (blank & required)
    if required:
        wrong |= values != np.floor(values)
    if wrong.any():
        row = int(np.argmax(wrong))
        wanted = "a whole number of at least 0" if required else "a finite number of at least 0, or blank"
        raise _WrongLogError(f"row {done + row + 1}: {name}={_shown(cells[row])} must be {wanted}")
    return values


def _number(name: str, cell: str, row: int) -> float:
    text = cell.strip().lower()
    if not text:
        return math.nan
    try:
        return _FLAGS[text] if text in _FLAGS else float(text)
    except ValueError:
        raise _WrongLogError(f"row {row}: {name}={_shown(cell)} is not a number") from None


def _places_of(cells: _Cells, names: dict[str, int], done: int) -> Vector:
    """Return the clients' places; a name that a terminal or a spreadsheet would take for something else is refused."""
    for name in dict.fromkeys(cells):
        if name not in names:
            if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or name[0] in "=+-@ ":
                raise _WrongLogError(
                    f"row {done + cells.index(name) + 1}: client={_shown(name)} must be a printable name of at most "
                    f"{_LONGEST_NAME} characters that does not begin with =, +, -, @ or a blank"
                )
            names[sys.intern(name)] = len(names)
    return np.fromiter(map(names.__getitem__, cells), dtype=np.float64, count=len(cells))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
