"""TraceChannel: deliveries as they were recorded."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.trainer import refuse_trainer
from fl_lightning.parts.bases import Channel
from fl_lightning.system.trace_file import NOT_A_TABLE, read_rows, whole
from fl_lightning.types import IntVector, RoundPlan

_ARRIVED = {"1": True, "true": True, "0": False, "false": False}


class TraceChannel(Callback, Channel):
    """Delivers what a file says: no chance, and the failure rates of the schedule have no part in it.

    They are still what samplers and aggregators believe; where they should be those of the trace, give the schedule
    ``1 - channel.arrived.mean(axis=0)``.

    Args:
        path: A CSV or JSON file with columns ``client`` (from 0), ``round`` (from 1; after the last round it starts
            again) and ``arrived`` (1 or 0, true or false).

    Attributes:
        arrived: Whether the upload of each client arrives in each round, (rounds, M).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.arrived = read_deliveries(Path(path))

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a plain Trainer."""
        refuse_trainer(self, "it relates the links of rounds and clients", "ChannelFailures")

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        counts = plan.cohort.counts
        if self.arrived.shape[1] != len(counts):
            raise ValueError(f"{self.path} has {self.arrived.shape[1]} clients, but the federation has {len(counts)}")
        return np.where(self.arrived[(plan.index - 1) % len(self.arrived)], counts, 0)


def read_deliveries(path: Path) -> npt.NDArray[np.bool_]:
    """Return whether each upload of a trace file arrives, (rounds, M)."""
    try:
        rows = read_rows(path)
        values = {
            (whole("round", row["round"]), whole("client", row["client"])): _ARRIVED[
                str(row["arrived"]).strip().lower()
            ]
            for row in rows
        }
    except NOT_A_TABLE as error:
        raise ValueError(
            f"trace file {path} is not a table with columns client, round and arrived (1 or 0): {error!r}"
        ) from None
    num_rounds, num_clients = (max((key[part] for key in values), default=0) for part in (0, 1))
    first = all(index >= 1 and client >= 0 for index, client in values)
    # Counted instead of listed: one row of round 30,000,000 must not take the memory of all the rounds before it.
    if not values or not first or not len(rows) == len(values) == num_rounds * (num_clients + 1):
        raise ValueError(
            f"trace file {path} must have each client (from 0) once in each round (from 1), and nothing else"
        )
    return np.array([values[key] for key in sorted(values)]).reshape(num_rounds, num_clients + 1)
