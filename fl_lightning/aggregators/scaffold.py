"""SCAFFOLD: control variates that take the drift out of local training."""

from typing import Literal

import torch
from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, matching_coefficients, weighted_sum
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage
from fl_lightning.parts.checking import one_of
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector

Commit = Literal["ack", "always"]


class ControlVariates(Aggregator):
    r"""Corrects each local gradient by the difference of two control variates (SCAFFOLD, Karimireddy et al. 2020).

    Local steps follow :math:`g_m - c_m + c`. Of the distinct clients that arrive,

    .. math:: c_m^+ = c_m - c + \Delta_m / A_m, \qquad c \leftarrow c + \sum_m w_m (c_m^+ - c_m)

    so that :math:`c = \sum_m w_m c_m` always, and the model takes the anonymous mean of what arrived. The fixed point
    is that of the target objective, :math:`\Omega = w`, whatever q and A are. The control variates take the size of
    the model for each client that ever arrived.

    Args:
        commit: ``ack``: a client takes over its new control variate when its upload is acknowledged. ``always``: also
            when it was lost. The server then no longer knows the mean of the c_m and the limit is wrong; this common
            mistake is here to show it, and the reported Omega does not contain it.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    memory = ("server_control", "client_controls")

    def __init__(self, commit: Commit = "ack", storage: RowStorage | None = None) -> None:
        one_of("commit", commit, Commit)
        self.commit, self.storage = commit, storage

    @property
    @override
    def traits(self) -> AggregatorTraits:
        """A client gets the model and c; its own control variate stays with it, and the server derives it."""
        always = self.commit == "always"
        return AggregatorTraits(
            only_sums=False,
            needs_lost_updates=always,
            keeps="client vectors",
            num_downloaded=2,
            counts_absent=True,
            effect="unknown" if always else "exact",
        )

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.server_control = torch.zeros_like(weights)  # c
        self.client_controls = ClientRows(num_clients, weights, self.storage)  # c_m

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c at which Omega is w and the step as long as that of the anonymous mean."""
        amounts = cohort.probabilities * (1 - profiles.failure_rates) * cohort.coefficients
        length = float(amounts @ profiles.accumulation)
        return matching_coefficients(length * profiles.weights / profiles.accumulation, profiles, cohort)

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        """Return the shifts c - c_m."""
        return Handout(gradient_shift=self._shift)

    def _shift(self, client: int) -> torch.Tensor:
        return self.server_control - self.client_controls.of(client)

    @override
    def trains(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return whose training changes something: with ``always`` that of lost clients does too."""
        return super().trains(plan, delivered) if self.commit == "ack" else plan.cohort.clients

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        clients, cohort = updates.clients, plan.cohort
        accumulation = torch.from_numpy(plan.profiles.accumulation[clients]).to(updates.deltas)
        changes = updates.deltas / accumulation[:, None] - self.server_control
        before = self.client_controls[clients]
        kept = self.client_controls.put(clients, before + changes)
        if self.client_controls.rounds_values:
            changes = kept - before  # so that c stays the mean of what is kept
        committed = plan.profiles.weights[clients] * (delivered[clients] > 0)
        self.server_control = self.server_control + weighted_sum(committed, changes)
        return weighted_sum(delivered[clients] * cohort.coefficients[clients] / cohort.num_draws, updates.deltas)
