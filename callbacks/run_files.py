"""Tables that a run leaves: rounds, clients, and what a private run measures and its epsilon does not cover."""

import csv
import hashlib
import importlib.util
import io
import math
import os
from collections.abc import Iterable, Mapping
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_warn

from fl_lightning.loop import FederatedLoop
from fl_lightning.output import write_durably
from fl_lightning.parts.memory import Remembers
from fl_lightning.runs.records import EVERYBODY, NOISE_KEY, QUANTILES, UNCOVERED, UNCOVERED_CLIENTS, kept_key
from fl_lightning.types import RoundResult


class MetricsFile(Remembers):
    """A CSV file with one row for each round, counted from 1.

    Cells are kept as the text that was first written, so a file that was cut back and continued is the same, byte for
    byte, as one that was not. Columns that are not among the first ones are added at the right when they first appear.
    """

    memory = ("columns", "digest")  # so that a changed file is noticed when a run is resumed

    def __init__(self, path: Path, columns: tuple[str, ...], mode: int = 0o666) -> None:
        self.path, self._first_columns = path, columns
        self._mode = mode  # of the file
        self.columns = list(columns)
        self._hash = hashlib.sha256()
        self._wanted = ""  # the digest that a checkpoint has

    @property
    def digest(self) -> str:
        """The sha256 of all that was written so far."""
        return self._hash.hexdigest()

    @digest.setter
    def digest(self, wanted: str) -> None:
        self._wanted = wanted

    def start(self, num_rounds: int) -> None:
        """Begin a new file, or cut an earlier one back to its first rounds."""
        if not num_rounds:
            self.columns = list(self._first_columns)
        self._write(self._first_rounds(num_rounds) if num_rounds else [])

    def _first_rounds(self, num_rounds: int) -> list[list[str]]:
        """Return the rows before a checkpoint as they were written then; leave out columns that came later."""
        header, rows = self._read(num_rounds)
        again = "bring the file back, or start anew with --resume never"
        if [row[:1] for row in rows] != [[str(number)] for number in range(1, num_rounds + 1)]:
            raise ValueError(
                f"{self.path} does not have the rounds 1 to {num_rounds} that come before the checkpoint: {again}"
            )
        wanted, width = self._wanted, len(self.columns)
        if not wanted:  # the checkpoint knows no such file
            self.columns = header
            return rows
        if header[:width] != self.columns:
            pairs = zip_longest(header[:width], self.columns)
            number = next(place for place, (here, there) in enumerate(pairs) if here != there)
            name = repr(header[number]) if number < len(header) else "missing"
            raise ValueError(
                f"{self.path} was changed: its column {number + 1} is {name}, but was {self.columns[number]!r} "
                f"when the checkpoint was saved: {again}"
            )
        first = [row[:width] for row in rows]
        found = hashlib.sha256(_lines([self.columns, *first])).hexdigest()
        if found != wanted or any(any(row[width:]) for row in rows):
            raise ValueError(f"{self.path} was changed: its first {num_rounds} rounds are not what they were: {again}")
        return first

    def append(self, values: dict[str, float]) -> None:
        """Add a row; if the disk is full, the file stays as it was."""
        new = [name for name in values if name not in self.columns]
        if new:
            rows = self._read(None)[1]
            self.columns = self.columns + new
            self._write(rows)
        size = self.path.stat().st_size
        line = _lines([[_cell(values.get(name)) for name in self.columns]])
        try:
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            os.truncate(self.path, size)
            raise OSError(
                error.errno, f"cannot write {self.path}: {error.strerror}; its rows so far are intact"
            ) from None
        self._hash.update(line)

    def sync(self) -> None:
        """Force the rows to the disk."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())

    def _read(self, num_rows: int | None) -> tuple[list[str], list[list[str]]]:
        """Return the names and the first rows; what follows them may be cut off anywhere, and is not looked at."""
        if not self.path.is_file():
            return list(self._first_columns), []
        try:
            with self.path.open(newline="", encoding="utf-8", errors="replace") as file:
                reader = csv.reader(file)
                header = next(reader, list(self._first_columns))
                return header, list(islice(reader, num_rows))
        except csv.Error as error:
            raise ValueError(f"{self.path} is not a table of numbers with one row for each round: {error}") from None

    def _write(self, rows: list[list[str]]) -> None:
        padded = [row + [""] * (len(self.columns) - len(row)) for row in rows]
        content = _lines([self.columns, *padded])
        write_durably(self.path, content, self._mode)
        self._hash = hashlib.sha256(content)


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: float | None) -> str:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else repr(value)


Column = npt.NDArray[np.generic]
Columns = dict[str, Column]
MAX_ROWS = 100_000  # clients with a row each in the CSV file; beyond that it has one for each group
GROUPS = 1_000
LEVELS = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def write_client_table(path: Path, columns: Mapping[str, npt.ArrayLike], mode: int = 0o666) -> None:
    """Write ``clients.csv``: one row for each client, or for each of 1,000 groups of neighbours beyond 100,000 clients.

    With groups, quantiles of each column over all clients go to ``clients_quantiles.csv``, and where pyarrow is
    installed the row of each client to ``clients.parquet``.
    """
    table = {name: np.asarray(values) for name, values in columns.items()}
    num_clients = len(next(iter(table.values())))
    if num_clients <= MAX_ROWS:
        write_durably(path, _csv({"client": range(num_clients), **table}), mode)
        return
    every = dict(table)
    table.pop("name", None)  # groups have none
    write_durably(path, _csv(grouped(table, GROUPS)), mode)
    quantiles = {name: np.quantile(values, LEVELS) for name, values in table.items()}
    write_durably(path.with_name(QUANTILES), _csv({"quantile": LEVELS, **quantiles}), mode)
    if importlib.util.find_spec("pyarrow") is not None:
        write_durably(path.with_name(EVERYBODY), _parquet({"client": np.arange(num_clients), **every}), mode)


def grouped(table: Mapping[str, Column], num_groups: int) -> dict[str, Column]:
    """Return the means of groups of neighbours, with the first client and the number of clients of each group.

    >>> grouped({"size": np.array([1.0, 3.0, 5.0])}, 2)["size"].tolist()
    [2.0, 5.0]
    >>> {name: values.tolist() for name, values in grouped({"size": np.ones(3)}, 2).items() if name != "size"}
    {'client': [0, 2], 'num_clients': [2, 1]}
    """
    num_clients = len(next(iter(table.values())))
    begins = np.array([part[0] for part in np.array_split(np.arange(num_clients), num_groups)])
    sizes = np.diff(begins, append=num_clients)
    means = {name: np.add.reduceat(values, begins, dtype=np.float64) / sizes for name, values in table.items()}
    return {"client": begins, "num_clients": sizes, **means}


def _csv(columns: Mapping[str, Iterable[object]]) -> bytes:
    return _lines([columns, *zip(*columns.values(), strict=True)])


def _parquet(columns: Mapping[str, Column]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    content = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(columns)), content)
    return content.getvalue()


# Columns of a client that may be shown.
PUBLIC = ("size", "weight", "effective_weight", "num_steps", "offered_steps", "failure_rate", "expected_draws")
_OF_DRAWS = ("draws", "deliveries")
_PRIVATE = 0o600  # mode of a file for its owner alone


class Uncovered:
    """The files of a private run that are not for others: its key, and what its epsilon leaves out."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._metrics = MetricsFile(run_dir / UNCOVERED, ("round",), _PRIVATE)

    def start(self, loop: FederatedLoop) -> None:
        """Give the noise its key, and start the file or remove that of an earlier run."""
        noise, secret = loop.algorithm.uploads.noise, loop.algorithm.uploads.secret
        if noise is not None and secret is not None:
            noise.key = kept_key(self.run_dir / NOISE_KEY, noise.key, resumed=loop.round_index > 0)
        else:
            (self.run_dir / NOISE_KEY).unlink(missing_ok=True)
        if secret is not None and secret.keeps_uncovered:
            rank_zero_warn(f"{UNCOVERED} says more about a client than epsilon does: it is for nobody but its owner")
            self._metrics.start(loop.round_index)
            return
        for name in (UNCOVERED, UNCOVERED_CLIENTS):
            (self.run_dir / name).unlink(missing_ok=True)

    def append(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Add a round, where this is asked for."""
        secret = loop.algorithm.uploads.secret
        if secret is not None and secret.keeps_uncovered:
            self._metrics.append({"round": result.metrics["round"], **result.uncovered})

    def split(self, loop: FederatedLoop, columns: Columns) -> Columns:
        """Return the columns of the clients that may be shown; write the others where this is asked for."""
        secret = loop.algorithm.uploads.secret
        if secret is None:
            return columns
        shown = PUBLIC if secret.secret_draws else (*PUBLIC, *_OF_DRAWS)
        if secret.keeps_uncovered:
            hidden = {name: values for name, values in columns.items() if name not in shown}
            write_client_table(self.run_dir / UNCOVERED_CLIENTS, hidden, _PRIVATE)
        return {name: columns[name] for name in columns if name in shown}


def without_uncovered(loop: FederatedLoop, summary: Mapping[str, object]) -> dict[str, object]:
    """Return a summary without what a private run's epsilon does not cover: counts of rejections, and real time."""
    hidden = ("rejected_updates", "rejected_updates_by_client", "seconds")
    private = loop.algorithm.uploads.secret is not None
    return {name: value for name, value in summary.items() if not (private and name in hidden)}
