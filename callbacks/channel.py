"""ChannelFailures: whose upload arrives."""

import fl_lightning.torchvision_guard  # noqa: F401  isort: skip
import numpy as np
from lightning.pytorch.callbacks import Callback

from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import IntVector, RoundPlan


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
        rates, counts = plan.profiles.failure_rates, plan.cohort.counts
        links = rng.random(len(rates))
        if self.multiplicity == "shared":
            return np.where(links >= rates, counts, 0)
        return rng.binomial(counts, 1 - rates).astype(np.int64)
