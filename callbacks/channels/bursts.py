"""GilbertElliott: uploads that are lost in bursts."""

from typing import Any

import numpy as np
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.channels.independent import Multiplicity, arrivals
from fl_lightning.callbacks.trainer import refuse_trainer
from fl_lightning.parts.bases import Channel
from fl_lightning.parts.checking import one_of
from fl_lightning.seeding import Purpose, client_keys, generator
from fl_lightning.types import IntVector, RoundPlan, Vector


class GilbertElliott(Callback, Channel):
    r"""Loses uploads in bursts: each client's link is a chain of two states, and in the bad one uploads are lost.

    The share of time in the bad state is :math:`b_m = q_m / h` with h the loss probability in it, so that the long-run
    loss rate is the client's q. Such a chain with mean burst length L is one that draws its state afresh with
    probability :math:`\nu_m = 1 / (L (1 - b_m))` in each round and keeps it otherwise:

    .. math:: P(\text{bad} \to \text{good}) = \nu_m (1 - b_m) = 1/L, \qquad P(\text{good} \to \text{bad}) = \nu_m b_m

    In that form the state of a round is a function of the seed: that of the last fresh draw. Nothing has to be stored,
    a resumed run meets the same bursts, and the loss rate is exactly q in each round even where q changes.

    Args:
        burst_length: L, mean number of rounds in the bad state. Independent losses have bursts of 1 / (1 - q) already;
            a client for which L is less than that has independent losses.
        loss_when_bad: h. A client's q must stay below it.
        multiplicity: Of a client drawn n times in the bad state. ``shared``: all n draws are lost or none is.
            ``independent``: each is lost on its own (the same unless h is below 1, because all of them meet one state).
    """

    def __init__(self, burst_length: float, loss_when_bad: float = 1.0, multiplicity: Multiplicity = "shared") -> None:
        if not 1 <= burst_length < float("inf"):
            raise ValueError(f"burst_length={burst_length} must be a number of at least 1 round")
        if not 0 < loss_when_bad <= 1:
            raise ValueError(f"loss_when_bad={loss_when_bad} must be above 0 and at most 1")
        one_of("multiplicity", multiplicity, Multiplicity)
        self.burst_length, self.loss_when_bad, self.multiplicity = burst_length, loss_when_bad, multiplicity

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a plain Trainer."""
        refuse_trainer(self, "it relates the links of rounds and clients", "ChannelFailures")

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        rates, counts = plan.profiles.failure_rates, plan.cohort.counts
        bad_share = rates / self.loss_when_bad
        if (bad_share >= 1).any():
            client = int(np.argmax(bad_share))
            raise ValueError(
                f"client {client} has a failure rate of {rates[client]:.3f}, but it must stay below "
                f"loss_when_bad={self.loss_when_bad}: raise loss_when_bad"
            )
        fresh_rates = np.minimum(1, 1 / (self.burst_length * (1 - bad_share)))
        is_bad = _levels(fresh_rates, plan.index, seed) < bad_share
        loss = np.where(is_bad, self.loss_when_bad, 0.0)
        return arrivals(loss, counts, self.multiplicity, generator(seed, Purpose.LINK, plan.index))


def _levels(fresh_rates: Vector, round_index: int, seed: int) -> Vector:
    """Return each client's uniform number of the last round up to this one in which it drew a fresh one, (M,)."""
    levels = np.empty(len(fresh_rates))
    pending = np.arange(len(fresh_rates))
    for index in range(round_index, -1, -1):  # round 0, before the first, is fresh for all: stationary from the start
        keys = client_keys(seed, Purpose.LINK, index, pending, 2)
        uniforms = (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53
        is_fresh = (uniforms[:, 0] < fresh_rates[pending]) | (index == 0)
        levels[pending[is_fresh]] = uniforms[is_fresh, 1]
        pending = pending[~is_fresh]
        if not len(pending):
            break
    return levels
