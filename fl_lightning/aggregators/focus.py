"""FOCUS and FedSUM: the server tracks the sum of all clients' gradients and steps along it, whoever arrives."""

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import matching_coefficients, mean_accumulation, mean_gradients
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

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c at which Omega is w and the step as long as the mean A of all clients."""
        length = mean_accumulation(profiles.weights, profiles.accumulation)
        return matching_coefficients(length * profiles.weights / profiles.accumulation, profiles, cohort)

    @override
    def shift(self, client: int) -> torch.Tensor:
        """Return what a client adds to its gradients, -c_m."""
        return -self.client_controls.of(client)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        profiles = plan.profiles
        changes = mean_gradients(updates, profiles) - self.common_shift()
        self.change(updates.clients, changes, profiles.weights[updates.clients] * (delivered[updates.clients] > 0))
        return mean_accumulation(profiles.weights, profiles.accumulation) * self.server_control

    def common_shift(self) -> torch.Tensor | float:
        """Return what all clients add to their gradients."""
        return 0.0


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

    @override
    def shift(self, client: int) -> torch.Tensor:
        """Return what a client adds to its gradients, c - c_m."""
        return self.server_control + super().shift(client)

    @override
    def common_shift(self) -> torch.Tensor:
        return self.server_control
