"""ChannelFailures: whose upload arrives."""

import fl_lightning.torchvision_guard  # noqa: F401  isort: skip
import numpy as np
from lightning.pytorch.callbacks import Callback

from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import IntVector, RoundPlan, Vector


class ChannelFailures(Callback):
    r"""Loses each upload with the client's failure probability, :math:`Z_m \sim \mathrm{Ber}(1 - q_m)`.

    The links of all M clients are drawn in each round, also of those that send nothing, so every algorithm under one
    seed meets the same links.

    Args:
        multiplicity: ``shared``: a client drawn n times sends once, and all n draws arrive or none does.
            ``independent``: each of its n draws has a link of its own.
    """

    def __init__(self, multiplicity: str = "shared") -> None:
        if multiplicity not in ("shared", "independent"):
            raise ValueError(f"multiplicity={multiplicity!r} is unknown: use 'shared' or 'independent'")
        self.multiplicity = multiplicity

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return for each client how many of its draws arrive, (M,)."""
        rng = generator(seed, Purpose.LINK, plan.index)
        return arrivals(plan.profiles.failure_rates, plan.cohort.counts, self.multiplicity, rng)


def arrivals(failure_rates: Vector, counts: IntVector, multiplicity: str, rng: np.random.Generator) -> IntVector:
    """Return how many of n draws of each client arrive over links that fail at random, (M,).

    Links of all clients are drawn for the first draw, then for the second, and so on: a client's links depend neither
    on who else was drawn nor, for its first draw, on the multiplicity.

    >>> arrivals(np.array([0.0, 0.5, 1.0]), np.array([2, 0, 3]), "shared", np.random.default_rng(0)).tolist()
    [2, 0, 0]
    """
    if multiplicity == "shared":
        return np.where(rng.random(len(counts)) >= failure_rates, counts, 0)
    arrived = np.zeros(len(counts), dtype=np.int64)
    for draw in range(int(counts.max(initial=0))):
        arrived += (rng.random(len(counts)) >= failure_rates) & (draw < counts)
    return arrived
