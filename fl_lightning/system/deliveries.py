"""What clients on other machines answered in each round: the one thing of a deployment that no seed decides."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Protocol, runtime_checkable

from fl_lightning.output import open_plain

FILE = "deliveries.csv"  # in the folder of a run
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
    """Return the deliveries in a file, up to a round.

    Raises:
        ValueError: If it is not such a file.
    """
    try:
        with io.TextIOWrapper(open_plain(path, _LARGEST), newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            found = [_delivery([int(row[name]) for name in _COLUMNS]) for row in rows]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} is not a table with columns {', '.join(_COLUMNS)}: {error!r}") from None
    return [delivery for delivery in found if last_round is None or delivery.round_index <= last_round]


def _delivery(values: Sequence[int]) -> Delivery:
    round_index, question, client, arrived, num_steps = values
    if round_index < 1 or question < 0 or client < 0 or arrived not in (0, 1) or num_steps < 0:
        raise ValueError(f"a row {list(values)} is out of range")
    return Delivery(
        round_index=round_index, question=question, client=client, arrived=bool(arrived), num_steps=num_steps
    )
