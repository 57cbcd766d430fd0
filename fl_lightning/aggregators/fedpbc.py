"""FedPBC: the global model goes only to those who arrived, the others train on from their own."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, matching_coefficients
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage, keep_synchronised
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class PostponedBroadcast(Aggregator):
    r"""Averages the models of those who arrive and sends the mean to them alone (FedPBC, Xiang et al. 2023).

    A client trains from its own model :math:`x_m`. With c the sampler's factor, of those who were drawn

    .. math::
        x_m \leftarrow x_m - \frac{M n_m c_m}{K} \eta \Delta_m, \qquad
        X \leftarrow \frac{1}{|S|} \sum_{m \in S} x_m, \qquad x_m \leftarrow X\ \mathrm{for}\ m \in S

    where S are the distinct clients that arrive. Work on a lost upload is not lost: the client trains on from it. So
    :math:`\Omega \propto p c A`, free of q: links are corrected (implicit gossip), unequal work is not. When nobody
    arrives, the global model stays.

    In the original all M clients train in every round: combine it with full participation, where
    :math:`M n_m c_m / K = M w_m`, and all of them are charged for their work. With another sampler only drawn clients
    train. The clients' models take the size of the model for each client that was ever drawn.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, needs_lost_updates=True, keeps="client models")
    memory = ("models", "synchronised")

    def __init__(self, storage: RowStorage | None = None) -> None:
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        """Make room for a model of each client; all start from the global one."""
        self.models = ClientRows(num_clients, weights, self.storage)
        # Who arrived takes over the global model, which is known for good only when the next round begins.
        self.synchronised = torch.ones(num_clients, dtype=torch.bool)

    @override
    def downloads(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return who arrived: nobody else gets the global model."""
        return np.flatnonzero(delivered)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the sampler's factor over 1-q: lost work comes back later."""
        return matching_coefficients(cohort.probabilities * cohort.coefficients, profiles, cohort)

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        return Handout(start=self._start)

    def _start(self, client: int, weights: torch.Tensor) -> torch.Tensor:
        return weights if self.synchronised[client] else self.models.of(client)

    @override
    def trains(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return all who were drawn: lost training lives on in the client's model."""
        return plan.cohort.clients

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the way from the mean of the delivered models to the global one."""
        keep_synchronised(self.models, self.synchronised, weights)
        cohort, clients = plan.cohort, updates.clients
        factors = self.models.num_clients * cohort.counts[clients] * cohort.coefficients[clients] / cohort.num_draws
        lengths = torch.from_numpy(plan.learning_rate * plan.server_scale * factors).to(updates.deltas)
        self.models.put(clients, self.models[clients] - lengths[:, None] * updates.deltas)
        self.synchronised = torch.from_numpy(delivered > 0)
        if not self.synchronised.any():
            return torch.zeros_like(weights)
        return weights - self.models[np.flatnonzero(delivered)].mean(dim=0)
