"""TraceChannel: deliveries as they were recorded."""

from typing import Any

import numpy as np
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.trainer import refuse_trainer
from fl_lightning.parts.bases import Channel
from fl_lightning.system.traces import read_flags
from fl_lightning.types import IntVector, RoundPlan


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
        self.arrived = read_flags(path, "arrived")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a plain Trainer."""
        refuse_trainer(self, "it relates the links of rounds and clients", "ChannelFailures")

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        counts = plan.cohort.counts
        if self.arrived.shape[1] != len(counts):
            raise ValueError(f"{self.path} has {self.arrived.shape[1]} clients, but the federation has {len(counts)}")
        return np.where(self.arrived[(plan.index - 1) % len(self.arrived)], counts, 0)
