"""MetricsFile: a table that grows by a row each round and can be cut back to any round."""

import csv
import hashlib
import io
import math
import os
from itertools import islice, zip_longest
from pathlib import Path

from fl_lightning.output import write_durably
from fl_lightning.parts.memory import Remembers


class MetricsFile(Remembers):
    """A CSV file with one row for each round, counted from 1.

    Cells are kept as the text that was first written, so a file that was cut back and continued is the same, byte for
    byte, as one that was not.

    Args:
        path: The file.
        columns: Names that come first, in this order; others are added at the right when they first appear.
    """

    memory = ("columns", "digest")  # so that a changed file is noticed when a run is resumed

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self.path, self._first_columns = path, columns
        self.columns = list(columns)
        self._hash = hashlib.sha256()
        self._wanted = ""  # the digest that a checkpoint tells of

    @property
    def digest(self) -> str:
        """The sha256 of all that was written so far."""
        return self._hash.hexdigest()

    @digest.setter
    def digest(self, wanted: str) -> None:
        self._wanted = wanted

    def start(self, num_rounds: int) -> None:
        """Begin a new file, or cut an earlier one back to its first rounds.

        Raises:
            ValueError: If the earlier file does not have these rounds.
        """
        rows = self._first_rounds(num_rounds) if num_rounds else []
        if not num_rounds:
            self.columns = list(self._first_columns)
        self._write(rows)

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
            found = repr(header[number]) if number < len(header) else "missing"
            raise ValueError(
                f"{self.path} was changed: its column {number + 1} is {found}, but was {self.columns[number]!r} "
                f"when the checkpoint was saved: {again}"
            )
        first = [row[:width] for row in rows]
        if any(any(row[width:]) for row in rows) or _digest([self.columns, *first]) != wanted:
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
        write_durably(self.path, content)
        self._hash = hashlib.sha256(content)


def _digest(rows: list[list[str]]) -> str:
    return hashlib.sha256(_lines(rows)).hexdigest()


def _lines(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: float | None) -> str:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else repr(value)
