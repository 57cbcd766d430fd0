"""Pace: how fast all clients compute and send in a round."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_lightning.system.trace_file import NOT_A_TABLE, read_rows, whole
from fl_lightning.types import IntVector, Vector

_COLUMNS = {"seconds_per_step": None, "latency": 0.0, "upload_rate": np.inf, "download_rate": np.inf}


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
    try:
        rows = read_rows(path)
        cells = {
            (whole("round", row.get("round") or 1), whole("client", row["client"])): [
                float(row["seconds_per_step"] if rest is None else row.get(name) or rest)
                for name, rest in _COLUMNS.items()
            ]
            for row in rows
        }
    except NOT_A_TABLE as error:
        raise ValueError(
            f"trace file {path} is not a table with columns client, round and seconds_per_step (and upload_rate, "
            f"download_rate, latency): {error!r}"
        ) from None
    num_rounds, last = (max((key[part] for key in cells), default=0) for part in (0, 1))
    first = all(index >= 1 and client >= 0 for index, client in cells)
    if not cells or not first or not len(rows) == len(cells) == num_rounds * (last + 1):
        raise ValueError(f"trace file {path} must have each client (from 0) once in each round (from 1), without holes")
    table = np.array([cells[key] for key in sorted(cells)]).reshape(num_rounds, last + 1, len(_COLUMNS))
    paces = [Pace(**{name: row[:, place] for place, name in enumerate(_COLUMNS)}) for row in table]
    for index, pace in enumerate(paces, start=1):
        pace.check(f"trace file {path}, round {index}")
    return paces
