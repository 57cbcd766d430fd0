"""FAVANO: the server averages its model with those of a few clients, whose progress counts per local step."""

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import mean_accumulation
from fl_lightning.aggregators.fedpbc import OwnModels
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class ReweightedProgress(OwnModels):
    r"""Averages the server's model with those of clients that are asked at any time (FAVANO, Leconte et al. 2023).

    A client trains from :math:`x_m`, the global model of the round after it last arrived, as many steps as it managed
    until it is asked. Of the distinct clients S that arrive, with c the sampler's factor,

    .. math:: X \leftarrow \frac{1}{|S| + 1} \Bigl(X + \sum_{m \in S} \bigl(x_m - \eta c_m \bar{A} \frac{\Delta_m}{A_m}
        \bigr)\Bigr), \qquad x_m \leftarrow X

    Fast clients get no more by their steps: :math:`\Omega \propto p c (1-q)`. Work is corrected, links are not (the
    original knows none and asks all clients alike). Old starts hold the model back: the step is that of all who arrive
    over M + 1. The division is by the work that was done, the stochastic form of the original; its other form divides
    by the expected one. Read from the abstract and from what others say of the rule.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client models")

    def _factors(self, profiles: Profiles, cohort: Cohort) -> Vector:
        scale = mean_accumulation(profiles.weights, profiles.accumulation)
        return cohort.coefficients * scale / profiles.accumulation

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the factor on an update, with the shorter step that old starts leave."""
        return self._factors(profiles, cohort) * cohort.num_draws / (profiles.num_clients + 1)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the way from the mean of the models to the global one."""
        factors = self._factors(plan.profiles, plan.cohort)[updates.clients]
        models = self.moved(factors, weights, updates, delivered, plan)
        return (len(models) * weights - models.sum(dim=0)) / (len(models) + 1)
