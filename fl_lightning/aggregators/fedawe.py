"""FedAWE: clients with models of their own make up for the rounds they missed."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, matching_coefficients, mean_accumulation
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage, keep_synchronised
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class EchoedInnovations(Aggregator):
    r"""Repeats a client's innovation once for each round since it last arrived (FedAWE, Xiang et al. 2024).

    A client trains from its own model :math:`x_m`. Of the distinct clients S that arrive in round t, last in
    :math:`\tau_m`,

    .. math::
        x_m^+ = x_m - \eta_g (t - \tau_m)\, M w_m\, \eta \Delta_m, \qquad
        X \leftarrow \frac{1}{|S|} \sum_{m \in S} x_m^+, \qquad x_m \leftarrow X

    The others keep their models; when nobody arrives, nothing changes. The server needs to know nothing. :math:`\Omega
    \propto w A`, or A for the original without weights: links are corrected, unequal work is not. A client that was not
    drawn is as absent as one whose upload is lost. The clients' models take the size of the model for each client that
    ever arrived.

    Two limits: models mix only where several clients arrive in a round (with one arrival per round each keeps its own,
    and the objective is far from the stated one); and the reported Omega takes T and q for unrelated in time. The
    clipping of the innovation and the decaying rate of the authors' code are left out.

    Args:
        weighted: Scale the innovation by M w, so that unequal target weights are met; the original does not.
        normalize: Divide the innovation by A and multiply by the mean A of all clients, which corrects the work too.
        server_lr: eta_g, factor on the innovation.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client models")
    memory = ("models", "synchronised", "last_arrival")

    def __init__(
        self,
        weighted: bool = True,
        normalize: bool = False,
        server_lr: float = 1.0,
        storage: RowStorage | None = None,
    ) -> None:
        if not 0 < server_lr < float("inf"):
            raise ValueError(f"server_lr={server_lr} must be a positive number")
        self.weighted = weighted
        self.normalize = normalize
        self.server_lr = server_lr
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        """Make room for a model of each client; all start from the global one."""
        self.models = ClientRows(num_clients, weights, self.storage)
        # Who arrived takes over the global model, which is known for good only when the next round begins.
        self.synchronised = torch.ones(num_clients, dtype=torch.bool)
        self.last_arrival = torch.zeros(num_clients, dtype=torch.int64)

    @override
    def downloads(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return who arrived: nobody else gets the global model."""
        return np.flatnonzero(delivered)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c at which each client's innovation is applied once in each round."""
        return matching_coefficients(self._factors(profiles) / profiles.num_clients, profiles, cohort)

    def _factors(self, profiles: Profiles) -> Vector:
        factors = self.server_lr * (profiles.num_clients * profiles.weights if self.weighted else profiles.weights**0)
        if self.normalize:
            return factors * mean_accumulation(profiles.weights, profiles.accumulation) / profiles.accumulation
        return factors

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        return Handout(start=self._start)

    def _start(self, client: int, weights: torch.Tensor) -> torch.Tensor:
        return weights if self.synchronised[client] else self.models.of(client)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the way from the mean of the echoed models to the global one."""
        keep_synchronised(self.models, self.synchronised, weights)
        self.synchronised = torch.from_numpy(delivered > 0)
        if not len(updates):
            return torch.zeros_like(weights)
        rows = torch.from_numpy(updates.clients)
        echoes = (plan.index - self.last_arrival[rows]) * torch.from_numpy(self._factors(plan.profiles))[rows]
        lengths = (plan.learning_rate * plan.server_scale * echoes).to(updates.deltas)
        self.last_arrival[rows] = plan.index
        return weights - (self.models[updates.clients] - lengths[:, None] * updates.deltas).mean(dim=0)
