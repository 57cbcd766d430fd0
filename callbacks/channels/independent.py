"""ChannelFailures: whose upload arrives."""

import copy
from typing import Any, Literal

import numpy as np
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.trainer import global_seed
from fl_lightning.parts.bases import Channel
from fl_lightning.parts.checking import one_of
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import IntVector, RoundPlan, Vector

Multiplicity = Literal["shared", "independent"]


class ChannelFailures(Callback, Channel):
    r"""Loses each upload with the client's failure probability, :math:`Z_m \sim \mathrm{Ber}(1 - q_m)`.

    The links of all M clients are drawn in each round, also of those that send nothing, so every algorithm under one
    seed meets the same links.

    Args:
        multiplicity: ``shared``: a client drawn n times sends once, and all n draws arrive or none does.
            ``independent``: each of its n draws has a link of its own.
        failure_rate: In a plain Trainer, the probability that an epoch is lost: weights and optimizers go back to where
            they were. A ``HeterogeneitySchedule`` beside it gives one too.
    """

    def __init__(self, multiplicity: Multiplicity = "shared", failure_rate: float | None = None) -> None:
        one_of("multiplicity", multiplicity, Multiplicity)
        if failure_rate is not None and not 0 <= failure_rate < 1:
            raise ValueError(f"failure_rate={failure_rate} must be in [0, 1)")
        self.multiplicity, self.failure_rate = multiplicity, failure_rate
        self.num_lost = 0  # epochs lost in a plain Trainer
        self._before: tuple[Any, Any] | None = None

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        rng = generator(seed, Purpose.LINK, plan.index)
        return arrivals(plan.profiles.failure_rates, plan.cohort.counts, self.multiplicity, rng)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """In a plain Trainer: remember where the epoch began."""
        weights = {name: value.detach().clone() for name, value in pl_module.state_dict().items()}
        self._before = weights, [copy.deepcopy(optimizer.state_dict()) for optimizer in trainer.optimizers]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """In a plain Trainer: lose the epoch with probability q."""
        arrived = generator(global_seed(), Purpose.LINK, trainer.current_epoch + 1).random() >= self._rate(trainer)
        if not arrived and self._before is not None:
            weights, optimizers = self._before
            pl_module.load_state_dict(weights)
            for optimizer, state in zip(trainer.optimizers, optimizers, strict=True):
                optimizer.load_state_dict(state)
            self.num_lost += 1
        self._before = None
        pl_module.log("num_delivered", float(arrived))

    def _rate(self, trainer: Any) -> float:
        if self.failure_rate is not None:
            return self.failure_rate
        others = (callback for callback in trainer.callbacks if callback is not self)
        given = (getattr(callback, "failure_rate", None) for callback in others)
        rate = next((value for value in given if value is not None), None)
        if rate is None:
            raise MisconfigurationException(
                "ChannelFailures in a plain Trainer needs a failure rate: give failure_rate=0.3, or put a "
                "HeterogeneitySchedule beside it"
            )
        return float(rate)


def arrivals(
    failure_rates: Vector, counts: IntVector, multiplicity: Multiplicity, rng: np.random.Generator
) -> IntVector:
    """Return how many of n draws of each client arrive over links that fail at random, (M,).

    Links of all clients are drawn for the first draw, then for the second, and so on: a client's links depend neither
    on who else was drawn nor, for its first draw, on the multiplicity.

    >>> arrivals(np.array([0.0, 0.5, 1.0]), np.array([2, 0, 3]), "shared", np.random.default_rng(0)).tolist()
    [2, 0, 0]
    """
    if multiplicity == "shared":
        return counts * (rng.random(len(counts)) >= failure_rates)
    arrived = np.zeros(len(counts), dtype=np.int64)
    for draw in range(int(counts.max(initial=0))):
        arrived += (rng.random(len(counts)) >= failure_rates) & (draw < counts)
    return arrived
