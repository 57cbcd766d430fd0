"""FedPBC, FedAWE, FAVANO: clients with models of their own, which get the global one when they arrive."""

from typing import ClassVar

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, matching_coefficients, mean_accumulation, weighted_sum
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class OwnModels(Aggregator):
    """Lets each client train from a model of its own, which is the global one after a round in which it arrived.

    Override :meth:`step`, which begins with :meth:`moved`. They take the size of the model for each client.
    """

    memory: ClassVar[tuple[str, ...]] = ("models", "synchronised")

    def __init__(self, storage: RowStorage | None = None) -> None:
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.models = ClientRows(num_clients, weights, self.storage)
        # Who arrived takes over the global model, which is known for good only when the next round begins.
        self.synchronised = torch.ones(num_clients, dtype=torch.bool)

    @override
    def downloads(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return who arrived: nobody else gets the global model."""
        return np.flatnonzero(delivered)

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        return Handout(start=self._start)

    def _start(self, client: int, weights: torch.Tensor) -> torch.Tensor:
        return weights if self.synchronised[client] else self.models.of(client)

    def moved(
        self, factors: Vector, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan
    ) -> torch.Tensor:
        """Return the models of those who trained after steps of these lengths, (n, d), and note who arrived."""
        clients = self.synchronised.nonzero()[:, 0].cpu().numpy()
        if len(clients) == self.models.num_clients:  # as before the first round
            self.models.fill(weights)
        else:
            self.models.put(clients, weights.expand(len(clients), -1))
        self.synchronised = torch.from_numpy(delivered > 0)
        lengths = torch.from_numpy(plan.learning_rate * plan.server_scale * factors).to(updates.deltas)
        return self.models[updates.clients] - lengths[:, None] * updates.deltas


class PostponedBroadcast(OwnModels):
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
    train.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, needs_lost_updates=True, keeps="client models", absence="bounded")

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the sampler's factor over 1-q: lost work comes back later."""
        return matching_coefficients(cohort.probabilities * cohort.coefficients, profiles, cohort)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the way from the mean of the delivered models to the global one."""
        cohort, clients = plan.cohort, updates.clients
        factors = self.models.num_clients * cohort.counts[clients] * cohort.coefficients[clients] / cohort.num_draws
        self.models.put(clients, self.moved(factors, weights, updates, delivered, plan))
        arrived = np.flatnonzero(delivered)
        return weights - self.models[arrived].mean(dim=0) if len(arrived) else torch.zeros_like(weights)


class EchoedInnovations(OwnModels):
    r"""Repeats a client's innovation once for each round since it last arrived (FedAWE, Xiang et al. 2024).

    A client trains from its own model :math:`x_m`. Of the distinct clients S that arrive in round t, last in
    :math:`\tau_m`,

    .. math::
        x_m^+ = x_m - \eta_g (t - \tau_m)\, M w_m\, \eta \Delta_m, \qquad
        X \leftarrow \frac{1}{|S|} \sum_{m \in S} x_m^+, \qquad x_m \leftarrow X

    The others keep their models; when nobody arrives, nothing changes. The server needs to know nothing. :math:`\Omega
    \propto w A`, or A for the original without weights: links are corrected, unequal work is not. A client that was not
    drawn is as absent as one whose upload is lost.

    Two limits: models mix only where several clients arrive in a round (with one arrival per round each keeps its own,
    and the objective is far from the stated one); and the reported Omega takes T and q for unrelated in time. The
    clipping of the innovation and the decaying rate of the authors' code are left out.

    Args:
        weighted: Scale the innovation by M w, so that unequal target weights are met; the original does not.
        normalize: Divide the innovation by A and multiply by the mean A of all clients, which corrects the work too.
        server_lr: eta_g, factor on the innovation.
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, keeps="client models", counts_absent=True, absence="bounded")
    memory = ("last_arrival",)

    def __init__(
        self,
        weighted: bool = True,
        normalize: bool = False,
        server_lr: float = 1.0,
        storage: RowStorage | None = None,
    ) -> None:
        super().__init__(storage)
        if not 0 < server_lr < float("inf"):
            raise ValueError(f"server_lr={server_lr} must be a positive number")
        self.weighted = weighted
        self.normalize = normalize
        self.server_lr = server_lr

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.last_arrival = torch.zeros(num_clients, dtype=torch.int64)

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
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the way from the mean of the echoed models to the global one."""
        missed = plan.index - self.last_arrival[torch.from_numpy(updates.clients)].numpy()
        factors = missed * self._factors(plan.profiles)[updates.clients]
        moved = self.moved(factors, weights, updates, delivered, plan)
        self.last_arrival[torch.from_numpy(updates.clients)] = plan.index
        return weights - moved.mean(dim=0) if len(updates) else torch.zeros_like(weights)


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
