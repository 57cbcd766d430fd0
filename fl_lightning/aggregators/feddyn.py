"""FedDyn: a linear term in each client's loss, learned so that the clients' optima meet at the common one."""

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import matching_coefficients
from fl_lightning.aggregators.client_rows import RowStorage
from fl_lightning.aggregators.scaffold import CorrectsGradients
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class DynamicRegularizer(CorrectsGradients):
    r"""Averages the models of who arrived and subtracts the mean of learned linear terms (FedDyn, Acar et al. 2021).

    Local steps follow :math:`g_m - h_m + \alpha (x - X)`, where the last term is ``proximal`` of the solver. Of the
    distinct clients S that arrive

    .. math::
        h_m \leftarrow h_m + \alpha \eta \Delta_m, \qquad
        X \leftarrow X - \frac{\eta}{|S|} \sum_{m \in S} \Delta_m - \frac{1}{\alpha} \sum_j w_j h_j

    At the limit every update is zero, so that :math:`h_m` is the client's gradient there and the sum of them is zero:
    :math:`\Omega = w` whatever q and A are. A client is there after about :math:`1 / (\alpha \eta A_m)` arrivals, at
    once where it solves its problem exactly, as the paper assumes; until then who arrives often and works much counts
    more, so that a small alpha with short local work is FedAvg for long. A client takes over its :math:`h_m` when its
    upload is acknowledged; the weights stand for the 1/M of the original. When nobody arrives, the model stays.

    Args:
        alpha: Strength of the regularizer; give the solver the same ``proximal``. With another one Omega is w, too.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client vectors", counts_absent=True, effect="bounded")

    def __init__(self, alpha: float = 0.1, storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        if not 0 < alpha < float("inf"):
            raise ValueError(f"alpha={alpha} must be a positive number")
        self.alpha = alpha

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c at which Omega is w and the step as long as the mean of who arrives."""
        arriving = cohort.inclusion * (1 - profiles.failure_rates)
        length = float(arriving @ profiles.accumulation / max(arriving.sum(), 1e-12))
        return matching_coefficients(length * profiles.weights / profiles.accumulation, profiles, cohort)

    @override
    def shift(self, client: int) -> torch.Tensor:
        """Return what a client adds to its gradients, -h_m."""
        return -self.client_controls.of(client)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        if not len(updates):
            return torch.zeros_like(self.server_control)
        changes = self.alpha * plan.learning_rate * updates.deltas
        self.change(updates.clients, changes, plan.profiles.weights[updates.clients])
        return updates.deltas.mean(dim=0) + self.server_control / (self.alpha * plan.learning_rate)
