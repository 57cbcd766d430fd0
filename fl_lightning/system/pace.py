"""Pace: how fast all clients compute and send in a round."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_lightning.system.traces import Column, read_trace
from fl_lightning.types import IntVector, Vector

_COLUMNS = (
    Column("seconds_per_step"),
    Column("latency", default=0.0),
    Column("upload_rate", default=np.inf),
    Column("download_rate", default=np.inf),
)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast each of M clients is."""

    seconds_per_step: Vector
    latency: Vector  # seconds
    upload_rate: Vector  # bytes per second
    download_rate: Vector

    def check(self, where: str = "the clock") -> None:
        """Refuse what no device has."""
        for name, values in vars(self).items():
            positive = name.endswith("rate")
            good = (values > 0) if positive else ((values >= 0) & np.isfinite(values))
            if not good.all():
                bad = int(np.argmin(good))
                wanted = "above 0 bytes per second" if positive else "a number of seconds from 0 up"
                raise ValueError(f"{where}: {name}={values[bad]:g} of client {bad} must be {wanted}")

    def of(self, clients: IntVector) -> "Pace":
        """Return how fast some of the clients are."""
        return Pace(**{name: values[clients] for name, values in vars(self).items()})

    def waiting(self, download: float, upload: float) -> Vector:
        """Return the seconds in which a client does not compute, (M,)."""
        ways = ((download, self.download_rate), (upload, self.upload_rate))
        # Where nothing limits the rate, no time passes, also if nobody knows how many bytes there are (NaN).
        return self.latency + sum(np.where(np.isinf(rate), 0.0, size / rate) for size, rate in ways)


def read_pace(path: Path) -> list[Pace]:
    """Return how fast clients are in each round of a trace file."""
    wanted = "client, round and seconds_per_step (and upload_rate, download_rate, latency)"
    table = read_trace(path, _COLUMNS, wanted, every_round=False)
    num_rounds = len(table["seconds_per_step"])
    paces = [Pace(**{name: values[index] for name, values in table.items()}) for index in range(num_rounds)]
    for index, pace in enumerate(paces, start=1):
        pace.check(f"trace file {path}, round {index}")
    return paces
