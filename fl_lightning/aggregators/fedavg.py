"""The paper's rule: the server adds up what arrives and asks nobody for a name."""

from typing import Literal

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.theory.checks import one_of
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector

Normalize = Literal["draws", "received"]


class AnonymousMean(Aggregator):
    r"""Divides the sum of what arrived by K, never by the number of arrivals.

    .. math:: X \leftarrow X - \frac{\eta}{K} \sum_{m\ \mathrm{delivered}} n_m \Delta_m

    Args:
        normalize: ``draws``: divide by K, as in the paper. ``received``: divide by what arrived, as much code does.
            That is a ratio, so the objective deviates from Omega when few clients are drawn; Omega is its limit for
            large K.
    """

    def __init__(self, normalize: Normalize = "draws") -> None:
        one_of("normalize", normalize, Normalize)
        self.normalize = normalize

    @property
    @override
    def traits(self) -> AggregatorTraits:
        """With ``received`` the server must count arrivals, which a sum does not show."""
        plain = self.normalize == "draws"
        return AggregatorTraits(only_sums=plain, effect="exact" if plain else "bounded")

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the sampler's factor; with ``received`` divided by its expected sum over the arrivals."""
        if self.normalize == "draws":
            return cohort.coefficients
        arriving = float(cohort.probabilities @ ((1 - profiles.failure_rates) * cohort.coefficients))
        return cohort.coefficients / arriving if arriving > 0 else cohort.coefficients

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        direction = super().direction(updates, delivered, plan)
        if self.normalize == "draws" or not len(updates):
            return direction
        arrived = float(delivered @ plan.coefficients) / plan.cohort.num_draws
        return direction / arrived if arrived > 0 else direction
