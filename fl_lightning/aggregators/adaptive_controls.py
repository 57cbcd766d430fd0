"""Control variates that are used only as far as they are seen to predict."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, matching_coefficients, weighted_sum
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class AdaptiveControlVariates(Aggregator):
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
    since the corrections then sum to 0. The control variates take the size of the model for each client that was
    ever arrived.

    Args:
        smoothing: s; a visit of s local steps counts half, the control variate so far the other half. 0 replaces it.
        decay: Share of the evidence about beta that a round keeps.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    # A client gets the model and c; its own control variate stays with it, and the server derives it.
    traits = AggregatorTraits(only_sums=False, keeps="client vectors", num_downloaded=2)
    memory = ("server_control", "client_controls", "arrived", "agreement", "energy")
    agreement: float = 0.0  # sum of <y_m, c_m - c>
    energy: float = 0.0  # sum of |c_m - c|^2

    def __init__(self, smoothing: float = 5.0, decay: float = 0.97, storage: RowStorage | None = None) -> None:
        if not 0 <= smoothing < float("inf"):
            raise ValueError(f"smoothing={smoothing} must be a number of local steps, 0 or more")
        if not 0 < decay <= 1:
            raise ValueError(f"decay={decay} must be in (0, 1]: 1 forgets nothing")
        self.smoothing = smoothing
        self.decay = decay
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.server_control = torch.zeros_like(weights)  # c
        self.client_controls = ClientRows(num_clients, weights, self.storage)  # c_m
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
    def handout(self, plan: RoundPlan) -> Handout:
        """Return the shifts beta (c - c_m); 0 for a client that never arrived."""
        return Handout(gradient_shift=self._shift)

    def _shift(self, client: int) -> torch.Tensor:
        if not self.arrived[client]:
            return torch.zeros_like(self.server_control)
        return self.beta * (self.server_control - self.client_controls.of(client))

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        clients, cohort = updates.clients, plan.cohort
        if len(updates):
            self._learn(clients, updates.deltas, plan.profiles)
        else:
            self._weigh(0.0, 0.0)
        return weighted_sum(delivered[clients] * cohort.coefficients[clients] / cohort.num_draws, updates.deltas)

    def _learn(self, clients: IntVector, deltas: torch.Tensor, profiles: Profiles) -> None:
        """Take in what arrived: the control variates, and how well they had predicted it."""
        accumulation = profiles.accumulation[clients]
        known, controls = self.arrived[clients], self.client_controls[clients]
        shifts = torch.stack([self._shift(client) for client in clients.tolist()])
        gradients = deltas / torch.from_numpy(accumulation).to(deltas)[:, None] - shifts
        expected = (controls - self.server_control)[torch.from_numpy(known)]
        # Sums of many small numbers decide about every later step: double, so that the order does not show.
        agreement = (gradients[torch.from_numpy(known)].double() * expected.double()).sum()
        self._weigh(float(agreement), float(expected.double().square().sum()))
        gain = np.where(known, accumulation / (accumulation + self.smoothing), 1.0)
        changes = torch.from_numpy(gain).to(deltas)[:, None] * (gradients - controls)
        kept = self.client_controls.put(clients, controls + changes)
        if self.client_controls.rounds_values:
            changes = kept - controls  # so that c stays the mean of what is kept
        self.server_control = self.server_control + weighted_sum(profiles.weights[clients], changes)
        self.arrived[clients] = True

    def _weigh(self, agreement: float, energy: float) -> None:
        self.agreement = self.decay * self.agreement + agreement
        self.energy = self.decay * self.energy + energy
