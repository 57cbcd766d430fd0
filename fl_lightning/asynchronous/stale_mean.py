"""FedAsync, FedBuff, FedStaleWeight, CA2FL, ACE and AREA: uploads that began with older models."""

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, matching_coefficients, weighted_sum
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage
from fl_lightning.aggregators.safa import exchanged
from fl_lightning.parts.protocols import PLAIN, Handout
from fl_lightning.parts.traits import AggregatorTraits, forwards
from fl_lightning.theory.checks import one_of
from fl_lightning.types import Arrivals, Cohort, IntVector, Profiles, RoundPlan, Updates, Vector

Normalization = Literal["expected", "received"]


class OlderStarts(Aggregator):
    """Hands out the models with which the clients' jobs began, and keeps those that somebody still trains on.

    Override :meth:`direction`, and :meth:`coefficients` where it depends on the age of uploads. Needs
    :class:`AsynchronousSelection`.
    """

    memory: ClassVar[tuple[str, ...]] = ("versions",)

    def __init__(self) -> None:
        self.versions: dict[int, torch.Tensor] = {}  # models that jobs in flight began with, by number of rounds

    @property
    @override
    def traits(self) -> AggregatorTraits:
        return AggregatorTraits(only_sums=False, older_starts=True, keeps="client models")

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.versions = {}

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        arrivals = plan.cohort.arrivals
        return PLAIN if arrivals is None else Handout(start=partial(self.start, arrivals))

    def start(self, arrivals: Arrivals, client: int, weights: torch.Tensor) -> torch.Tensor:
        """Return the model with which a client's job began, (d,)."""
        return self.versions.get(int(arrivals.started[client]), weights).to(weights)  # from main memory, when resumed

    def arrivals(self, cohort: Cohort) -> Arrivals:
        """Return what is known of the uploads' age."""
        if cohort.arrivals is None:
            raise ValueError(f"{type(self).__name__} needs uploads of known age: use it with AsynchronousSelection")
        return cohort.arrivals

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        step = super().step(weights, updates, delivered, plan)
        self.keep(weights, plan)
        return step

    def keep(self, weights: torch.Tensor, plan: RoundPlan) -> None:
        """Remember the model of a round for jobs that began with it, and forget those that nobody trains on."""
        oldest = self.arrivals(plan.cohort).oldest
        self.versions[plan.index - 1] = weights.clone()
        self.versions = {index: each for index, each in self.versions.items() if index >= oldest}


class StaleMean(OlderStarts):
    r"""Averages uploads that began with models of different age (FedBuff, Nguyen et al. 2022).

    .. math:: X \leftarrow X - \frac{\eta}{b} \sum_{m\ \mathrm{delivered}} n_m c_m s(\tau_m) \Delta_m, \qquad
        s(\tau) = (1 + \tau)^{-a}

    with :math:`\tau` the steps that the server made since the client got its model. With ``mixing`` the server moves
    towards the client's model instead (FedAsync, Xie et al. 2019), :math:`X \leftarrow X - \alpha s(\tau) (X - x_m)`,
    where what the client learned is taken at the calibrated length and the pull towards its old start with alpha.
    Needs :class:`AsynchronousSelection`. The reported Omega has the mean discount of each client's uploads in rounds
    that are tried out beforehand.

    Args:
        exponent: a; 0 treats old and new uploads alike.
        mixing: alpha, the weight of a client's model in the mixture; 0 adds updates and pulls nowhere.
    """

    traits = AggregatorTraits(only_sums=False, older_starts=True, keeps="client models")

    def __init__(self, exponent: float = 0.5, mixing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= exponent < float("inf"):
            raise ValueError(f"exponent={exponent} must be a number from 0 up")
        if not 0 <= mixing <= 1:
            raise ValueError(f"mixing={mixing} must be between 0 and 1")
        self.exponent, self.mixing = exponent, mixing

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the sampler's factor times the mean discount of each client's uploads."""
        return cohort.coefficients * self.arrivals(cohort).mean_discount(self.exponent)

    def _shares(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> Vector:
        ages = plan.index - 1 - self.arrivals(plan.cohort).started
        shares = delivered * plan.cohort.coefficients * (1.0 + ages) ** -self.exponent / plan.cohort.num_draws
        return np.asarray(shares[updates.clients])

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        return weighted_sum(self._shares(updates, delivered, plan), updates.deltas)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        arrivals = self.arrivals(plan.cohort)
        starts = [self.start(arrivals, client, weights) for client in updates.clients.tolist()]
        step = super().step(weights, updates, delivered, plan)
        if not self.mixing or not starts:
            return step
        return step + weighted_sum(self.mixing * self._shares(updates, delivered, plan), weights - torch.stack(starts))


class ExpectedStaleness(OlderStarts):
    r"""Weighs an upload by the mean age of its client's uploads (FedStaleWeight, Ma et al. 2024).

    .. math:: X \leftarrow X - \frac{\eta}{b} \sum_{m\ \mathrm{delivered}} n_m \frac{M w_m a_m}{\bar{a}} \Delta_m,
        \quad a_m = \bar\tau_m + \frac1b

    :math:`\bar\tau_m` is the mean of the client's ages so far, and :math:`\bar{a}` that of :math:`M w_m a_m` over
    uploads that are tried out beforehand. A client that takes long is old when it arrives, by as much as it arrives
    rarely: with everybody training all the time :math:`p_m a_m = 1/b`, so that arrival rates drop out, :math:`\Omega
    \propto w (1-q) A`, and nobody need know them. Links and work are not corrected.

    Args:
        count_own: Add 1/b, the client's own place in the buffer; without it, as the original has it, fast clients get
            :math:`1 - p_m` of their share.
        normalize: ``expected``: as above. ``received``: divide by the sum of the weights in the buffer, as the original
            does; a ratio of sums, which is biased where a buffer has few uploads.
    """

    traits = AggregatorTraits(only_sums=False, older_starts=True, keeps="client models")
    memory = ("num_uploads", "total_age")

    def __init__(self, count_own: bool = True, normalize: Normalization = "expected") -> None:
        super().__init__()
        one_of("normalize", normalize, Normalization)
        self.count_own, self.normalize = count_own, normalize

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.num_uploads = np.zeros(num_clients, dtype=np.int64)
        self.total_age = np.zeros(num_clients)

    def _factors(self, ages: Vector, profiles: Profiles, cohort: Cohort) -> Vector:
        return profiles.num_clients * profiles.weights * (ages + self.count_own / cohort.num_draws)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return M w a over its mean, with the mean ages of uploads that are tried out."""
        factors = self._factors(self.arrivals(cohort).expected, profiles, cohort)
        return factors / max(float(cohort.probabilities @ factors), 1e-12)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        arrivals, cohort, profiles = self.arrivals(plan.cohort), plan.cohort, plan.profiles
        self.num_uploads = self.num_uploads + delivered
        self.total_age = self.total_age + delivered * (plan.index - 1 - arrivals.started)
        factors = self._factors(self.total_age / np.maximum(self.num_uploads, 1), profiles, cohort)
        usual = float(cohort.probabilities @ self._factors(arrivals.expected, profiles, cohort))
        total = cohort.num_draws * usual if self.normalize == "expected" else float(delivered @ factors)
        return weighted_sum((delivered * factors)[updates.clients] / max(total, 1e-12), updates.deltas)


@forwards(Aggregator, "aggregator")
class Delayed(OlderStarts):
    r"""Lets another aggregator have uploads that began with older models, as if they had begun with the newest.

    Its rule, its memory and its Omega are the other aggregator's, with p the share of each client among the uploads.

    - CA2FL (Wang et al. 2024) is this around :class:`fl_lightning.aggregators.LastKnownUpdates`: of the distinct
      clients S in a buffer, :math:`X \leftarrow X - \eta (\sum_j w_j y_j + \frac{1}{|S|} \sum_{m \in S} (\Delta_m -
      y_m))`. Arrival rates and links drop out: :math:`\Omega \propto w A`.
    - ACE (Chang et al. 2025) is this around :class:`fl_lightning.aggregators.MemorizedMean` with a buffer of one: each
      upload replaces its client's row, and the step is along the mean of all rows; ACED leaves out rows that are older
      than ``max_age``. :math:`\Omega \propto w A`.

    Needs :class:`AsynchronousSelection`.

    Args:
        aggregator: Turns the uploads into a step; not one whose clients keep models of their own.
    """

    memory = ("aggregator",)

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        if aggregator.traits.keeps == "client models":
            raise ValueError(
                f"aggregator={type(aggregator).__name__} hands out models of its own, but a job began with an older "
                "global one: use an aggregator without, such as MemorizedMean"
            )
        self.aggregator = self.wrapped = aggregator

    @property
    @override
    def traits(self) -> AggregatorTraits:
        inner = self.aggregator.traits
        keeps = "client models" if inner.keeps == "nothing" else inner.keeps
        return replace(inner, only_sums=False, older_starts=True, keeps=keeps)

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.aggregator.setup(num_clients, weights)

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        return replace(self.aggregator.handout(plan), start=super().handout(plan).start)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        self.keep(weights, plan)
        return self.aggregator.step(weights, updates, delivered, plan)


class ExactAveraging(OlderStarts):
    r"""Adds what a client's model differs from the one it sent before (AREA, Iakovidou & Kim 2024).

    With :math:`x_m` the model that a job began with, of the distinct clients S in a buffer

    .. math:: X \leftarrow X + \sum_{m \in S} w_m (x_m - \eta \Delta_m - y_m), \qquad y_m \leftarrow x_m - \eta \Delta_m

    from :math:`y_m = X` at the start, so that :math:`X = \sum_j w_j y_j` always: who sends often replaces what it sent.
    Arrival rates and links drop out, :math:`\Omega \propto w A`; work does not. A client takes over :math:`y_m` when
    its upload is acknowledged. Old models hold the mean back, by their mean age in rounds: that much shorter is the
    step, which the calibration makes up for. Read from the abstract and an implementation by others.

    Needs :class:`AsynchronousSelection`.

    Args:
        storage: Where and how exactly the clients' vectors are kept, see :class:`RowStorage`.
    """

    traits = AggregatorTraits(only_sums=False, older_starts=True, keeps="client vectors", counts_absent=True)
    memory = ("cache",)

    def __init__(self, storage: RowStorage | None = None) -> None:
        super().__init__()
        self.storage = storage

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.cache = ClientRows(num_clients, weights, self.storage)  # y
        self.cache.fill(weights)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the c of w over the mean age of the models that are averaged."""
        lost, uploads = profiles.failure_rates, np.maximum(cohort.num_draws * cohort.probabilities, 1e-12)
        kept = (1 + lost) / (2 * np.maximum(1 - lost, 1e-12) * uploads) - 0.5  # rounds since it arrived
        age = float(profiles.weights @ (1 + self.arrivals(cohort).expected + np.maximum(kept, 0)))
        return matching_coefficients(profiles.weights / age, profiles, cohort)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return what the exchanged models take off the mean."""
        arrivals = self.arrivals(plan.cohort)
        starts = [self.start(arrivals, client, weights) for client in updates.clients.tolist()]
        self.keep(weights, plan)
        if not starts:
            return torch.zeros_like(weights)
        models = torch.stack(starts) - plan.learning_rate * plan.server_scale * updates.deltas
        return exchanged(self.cache, updates.clients, models, plan.profiles.weights)
