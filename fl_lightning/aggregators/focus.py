"""FOCUS, FedSUM, FedDyn: vectors of all clients, learned until they are the gradients at the common optimum."""

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import matching_coefficients, mean_accumulation, mean_gradients
from fl_lightning.aggregators.client_rows import RowStorage
from fl_lightning.aggregators.scaffold import CorrectsGradients
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class PushPull(CorrectsGradients):
    r"""Steps along the tracked gradient of all clients (FOCUS, Ying et al. 2025).

    Local steps follow :math:`g_m - c_m`, what is new since the client last arrived. Of the distinct clients that arrive

    .. math:: c_m \leftarrow c_m + \frac{\Delta_m}{A_m}, \qquad X \leftarrow X - \eta \bar{A} \sum_j w_j c_j

    with :math:`\bar{A}` the mean A of all clients by weight. :math:`\Omega = w` whatever q and A are, and whoever takes
    part: at the limit the :math:`c_m` are the gradients there. A client that never arrived counts as zero; when nobody
    arrives, memory still moves the model. A client takes over :math:`c_m` when its upload is acknowledged.

    The paper pushes the last local gradient minus :math:`c_m`; an update holds the mean of the local ones instead, the
    same with one local step. The authors' code has no lost uploads.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client vectors", counts_absent=True)
    follows_all = False  # whether local steps follow c as well

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c at which Omega is w and the step as long as the mean A of all clients."""
        length = mean_accumulation(profiles.weights, profiles.accumulation)
        return matching_coefficients(length * profiles.weights / profiles.accumulation, profiles, cohort)

    @override
    def shift(self, client: int) -> torch.Tensor:
        own = -self.client_controls.of(client)
        return self.server_control + own if self.follows_all else own

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        profiles = plan.profiles
        changes = mean_gradients(updates, profiles) - (self.server_control if self.follows_all else 0.0)
        self.change(updates.clients, changes, profiles.weights[updates.clients] * (delivered[updates.clients] > 0))
        return mean_accumulation(profiles.weights, profiles.accumulation) * self.server_control


class UplinkMerge(PushPull):
    r"""Is FOCUS whose local steps follow the tracked gradient of all (FedSUM, You & Pu 2025).

    Local steps follow :math:`g_m - c_m + c` with :math:`c = \sum_j w_j c_j`, as SCAFFOLD's do. Of the distinct clients
    that arrive

    .. math:: c_m \leftarrow c_m - c + \frac{\Delta_m}{A_m}, \qquad X \leftarrow X - \eta \bar{A} \sum_j w_j c_j

    so that the server steps along the memory of all, where SCAFFOLD steps along the mean of who arrived. :math:`\Omega
    = w`. Read from the abstract and from summaries of the paper (local correction, differences sent up and merged into
    a sum, a server step along that sum); FedSUM-CR, which saves sending c, makes the same steps.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client vectors", counts_absent=True, num_downloaded=2)
    follows_all = True


class DynamicRegularizer(PushPull):
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
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        if not len(updates):
            return torch.zeros_like(self.server_control)
        changes = self.alpha * plan.learning_rate * updates.deltas
        self.change(updates.clients, changes, plan.profiles.weights[updates.clients])
        return updates.deltas.mean(dim=0) + self.server_control / (self.alpha * plan.learning_rate)
