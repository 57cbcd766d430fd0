"""FAVANO: the server averages its model with those of a few clients, whose progress counts per local step."""

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import mean_accumulation, weighted_sum
from fl_lightning.aggregators.fedpbc import OwnModels
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class ReweightedProgress(OwnModels):
    r"""Averages the server's model with those of clients that are asked at any time (FAVANO, Leconte et al. 2023).

    A client trains from :math:`x_m`, the global model of the round after it last arrived, as many steps as it managed
    until it is asked. With c the sampler's factor and n how many of a client's draws arrive,

    .. math:: X \leftarrow X + \frac{1}{K + 1} \sum_m n_m \Bigl(x_m - \eta c_m \bar{A} \frac{\Delta_m}{A_m} - X\Bigr),
        \qquad x_m \leftarrow X\ \mathrm{for\ those\ who\ arrive}

    the mean of the server's model and K others where nothing is lost. Fast clients get no more by their steps:
    :math:`\Omega \propto p c (1-q)`. Work is corrected, links are not (the original knows none and asks all clients
    alike). Old starts hold the model back, so that the step is about K / (M + 1) times as long. The division is by the
    work that was done, the stochastic form of the original; its other form divides by the expected one. Read from the
    abstract and from what others say of the rule.

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
        lost = cohort.num_draws * float(cohort.probabilities @ profiles.failure_rates)
        return self._factors(profiles, cohort) * cohort.num_draws / (profiles.num_clients + 1 + lost)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the way from the mean of the models to the global one."""
        factors = self._factors(plan.profiles, plan.cohort)[updates.clients]
        models = self.moved(factors, weights, updates, delivered, plan)
        return weighted_sum(delivered[updates.clients] / (plan.cohort.num_draws + 1), weights - models)
