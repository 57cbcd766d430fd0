"""SCAFFOLD: control variates that take the drift out of local training; and as far as they are seen to predict."""

from typing import ClassVar, Literal

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import (
    Aggregator,
    delivered_shares,
    matching_coefficients,
    mean_gradients,
    weighted_sum,
)
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.theory.checks import one_of
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector, widened

Commit = Literal["ack", "always"]


class CorrectsGradients(Aggregator):
    """Keeps a vector c at the server and one, c_m, for each client, and shifts local gradients by :meth:`shift`.

    Override :meth:`direction`. The vectors take the size of the model for each client that ever arrived. A client gets
    the model and c; its own vector stays with it, and the server derives it.
    """

    memory: ClassVar[tuple[str, ...]] = ("server_control", "client_controls")

    def __init__(self, storage: RowStorage | None = None) -> None:
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.server_control = torch.zeros_like(weights)  # c
        self.client_controls = ClientRows(num_clients, weights, self.storage)  # c_m

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        return Handout(gradient_shift=self.shift)

    def shift(self, client: int) -> torch.Tensor:
        """Return what a client adds to its gradients, c - c_m."""
        return self.server_control - self.client_controls.of(client)

    def change(self, clients: IntVector, changes: torch.Tensor, shares: Vector) -> None:
        """Add changes to some c_m, and their sum by shares to c."""
        before = self.client_controls[clients]
        kept = self.client_controls.put(clients, before + changes)
        if self.client_controls.rounds_values:
            changes = kept - before  # so that c stays the mean of what is kept
        self.server_control = self.server_control + weighted_sum(shares, changes)


class ControlVariates(CorrectsGradients):
    r"""Corrects each local gradient by the difference of two control variates (SCAFFOLD, Karimireddy et al. 2020).

    Local steps follow :math:`g_m - c_m + c`. Of the distinct clients that arrive,

    .. math:: c_m^+ = c_m - c + \Delta_m / A_m, \qquad c \leftarrow c + \sum_m w_m (c_m^+ - c_m)

    so that :math:`c = \sum_m w_m c_m` always, and the model takes the anonymous mean of what arrived. The fixed point
    is that of the target objective, :math:`\Omega = w`, whatever q and A are.

    Args:
        commit: ``ack``: a client takes over its new control variate when its upload is acknowledged. ``always``: also
            when it was lost. The server then no longer knows the mean of the c_m and the limit is wrong; this common
            mistake is here to show it, and the reported Omega does not contain it.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    def __init__(self, commit: Commit = "ack", storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        one_of("commit", commit, Commit)
        self.commit = commit

    @property
    @override
    def traits(self) -> AggregatorTraits:
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
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c at which Omega is w and the step as long as that of the anonymous mean."""
        amounts = cohort.probabilities * (1 - profiles.failure_rates) * cohort.coefficients
        length = float(amounts @ profiles.accumulation)
        return matching_coefficients(length * profiles.weights / profiles.accumulation, profiles, cohort)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        committed = plan.profiles.weights[updates.clients] * (delivered[updates.clients] > 0)
        self.change(updates.clients, mean_gradients(updates, plan.profiles) - self.server_control, committed)
        return weighted_sum(delivered_shares(plan.cohort.coefficients, updates, delivered, plan), updates.deltas)


class AdaptiveControlVariates(CorrectsGradients):
    r"""Corrects local gradients by control variates times a measured coefficient beta; stable where SCAFFOLD is not.

    Local steps follow :math:`g_m - \beta (c_m - c)`. With :math:`y_m = \Delta_m / A_m - \beta (c - c_m)` the mean local
    gradient of a client that arrives, and sums over all arrivals so far of clients that had arrived before,

    .. math::
        \beta = \mathrm{clip}\Bigl(\frac{\sum \langle y_m, c_m - c \rangle}{\sum \|c_m - c\|^2},\ 0,\ 1\Bigr), \qquad
        c_m \leftarrow c_m + \frac{A_m}{A_m + s} (y_m - c_m), \qquad c = \sum_m w_m c_m

    where old terms of both sums fade by ``decay`` per round. Beta is the least-squares coefficient with which the
    stored difference predicts the fresh gradient: near 1 where control variates stay valid between two visits (SCAFFOLD
    then), near 0 where they are noise or out of date (the anonymous mean then). A client that never arrived is not
    corrected, and its first visit sets c_m to y_m.

    With :math:`\Omega_0` the objective of the sampler and :math:`c_m` at the limit the objective is
    :math:`\Omega = (1-\beta) \Omega_0 + \beta w`: exactly w for a consistent sampler such as FedACS, whatever beta is,
    since the corrections then sum to 0.

    Args:
        smoothing: s; a visit of s local steps counts half, the control variate so far the other half. 0 replaces it.
        decay: Share of the evidence about beta that a round keeps.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client vectors", num_downloaded=2, absence="bounded")
    memory = ("arrived", "agreement", "energy")
    agreement: float = 0.0  # sum of <y_m, c_m - c>
    energy: float = 0.0  # sum of |c_m - c|^2

    def __init__(self, smoothing: float = 5.0, decay: float = 0.97, storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        if not 0 <= smoothing < float("inf"):
            raise ValueError(f"smoothing={smoothing} must be a number of local steps, 0 or more")
        if not 0 < decay <= 1:
            raise ValueError(f"decay={decay} must be in (0, 1]: 1 forgets nothing")
        self.smoothing = smoothing
        self.decay = decay

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.arrived = np.zeros(num_clients, dtype=bool)
        self.agreement = self.energy = 0.0

    @property
    def beta(self) -> float:
        """The share of the control variates that is used, in [0, 1]; 0 before anything is known."""
        return min(1.0, max(0.0, self.agreement / self.energy)) if self.energy > 0 else 0.0

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c at which Omega is the mixture of the sampler's and w, as long a step as the anonymous mean."""
        beta = self.beta
        if beta == 0:
            return cohort.coefficients
        arrival = cohort.probabilities * (1 - profiles.failure_rates)
        own = arrival * cohort.coefficients * profiles.accumulation
        mixed = (1 - beta) * own + beta * own.sum() * profiles.weights
        return matching_coefficients(mixed / profiles.accumulation, profiles, cohort)

    @override
    def shift(self, client: int) -> torch.Tensor:
        """Return beta (c - c_m); 0 for a client that never arrived."""
        if not self.arrived[client]:
            return torch.zeros_like(self.server_control)
        return self.beta * super().shift(client)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        clients = updates.clients
        known = torch.from_numpy(self.arrived[clients]).to(updates.deltas.device)
        controls = self.client_controls[clients]
        shifts = torch.where(known[:, None], self.beta * (self.server_control - controls), 0.0)
        gradients = mean_gradients(updates, plan.profiles) - shifts
        # Sums of many small numbers decide about every later step: double, so that the order does not show.
        expected = widened((controls - self.server_control)[known])
        agreement = float((widened(gradients[known]) * expected).sum())
        self.agreement = self.decay * self.agreement + agreement
        self.energy = self.decay * self.energy + float(expected.square().sum())
        accumulation = plan.profiles.accumulation[clients]
        gain = np.where(self.arrived[clients], accumulation / (accumulation + self.smoothing), 1.0)
        changes = torch.from_numpy(gain).to(gradients)[:, None] * (gradients - controls)
        self.change(clients, changes, plan.profiles.weights[clients])
        self.arrived[clients] = True
        return weighted_sum(delivered_shares(plan.cohort.coefficients, updates, delivered, plan), updates.deltas)
