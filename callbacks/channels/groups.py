"""GroupFailures: clients that fail together."""

from typing import Any

import numpy as np
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.trainer import refuse_trainer
from fl_lightning.parts.bases import Channel
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import IntVector, RoundPlan


class GroupFailures(Callback, Channel):
    r"""Lets the clients of a group fail together, as behind one base station; each client still fails with its own q.

    A client shares its group's fate with probability :math:`\rho` and has its own otherwise. A fate is a uniform number
    u in each round, and a client is lost where :math:`u < q_m`: of a group with one fate the less reliable fail
    whenever the more reliable do. Two clients of a group with equal q have failures of correlation :math:`\rho^2`. All
    draws of a client in a round share its fate.

    Args:
        groups: Number of groups, cut in the order of the clients' numbers; or the group of each client.
        correlation: rho.
    """

    def __init__(self, groups: int | list[int], correlation: float = 1.0) -> None:
        if isinstance(groups, int) and groups < 1:
            raise ValueError(f"groups={groups} must be at least 1")
        if not isinstance(groups, int) and (not groups or min(groups) < 0):
            raise ValueError(f"groups={groups} must give a group, counted from 0, for each client")
        if not 0 <= correlation <= 1:
            raise ValueError(f"correlation={correlation} must be between 0 and 1")
        self.groups, self.correlation = groups, correlation

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a plain Trainer."""
        refuse_trainer(self, "it relates the links of rounds and clients", "ChannelFailures")

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        rates, counts = plan.profiles.failure_rates, plan.cohort.counts
        members = self._members(len(rates))
        rng = generator(seed, Purpose.LINK, plan.index)
        own, shares_fate = rng.random(len(rates)), rng.random(len(rates)) < self.correlation
        fates = rng.random(int(members.max()) + 1)[members]
        return np.where(np.where(shares_fate, fates, own) >= rates, counts, 0)

    def _members(self, num_clients: int) -> IntVector:
        if isinstance(self.groups, int):
            return np.arange(num_clients) * self.groups // num_clients
        if len(self.groups) != num_clients:
            raise ValueError(f"groups has {len(self.groups)} entries, but there are {num_clients} clients")
        return np.asarray(self.groups, dtype=np.int64)
