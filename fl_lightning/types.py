"""The records that the stages of a round hand on: frozen, one-way, columns instead of client objects."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fl_lightning import theory

Vector: TypeAlias = npt.NDArray[np.float64]
IntVector: TypeAlias = npt.NDArray[np.int64]
BoolVector: TypeAlias = npt.NDArray[np.bool_]
Scope = Literal["round", "average", "none"]
_WITHOUT_FLOAT64 = ["mps"]


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64: on its device, or in main memory where the device has no such numbers."""
    return beside_float64(tensor).double()


def beside_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, in main memory where its device has no float64 to compute with."""
    return tensor.cpu() if tensor.device.type in _WITHOUT_FLOAT64 else tensor


@dataclass(frozen=True)
class Conditions:
    """T and q of every client in one round; the environment is the same for every algorithm under one seed."""

    num_steps: IntVector  # T, local optimizer steps, (M,)
    failure_rates: Vector  # q, probability that an upload is lost, (M,)
    available: BoolVector | None = None  # who can be drawn; None: everybody, (M,)
    link_rates: Vector | None = None  # q of the links alone, where a deadline adds to it; None: failure_rates, (M,)
    presence: Vector | None = None  # how often each client can be drawn in the long run; None: always, (M,)
    chance: Vector | None = None  # the same in rounds with these T and q, whatever the hour; None: always, (M,)
    seconds: Vector | None = None  # that a round takes each client, where somebody asks for it, (M,)
    offered: IntVector | None = None  # T that clients could take, where they are asked for fewer; None: num_steps, (M,)

    @property
    def offered_steps(self) -> IntVector:
        """T as clients could take it, whatever the server asks for, (M,)."""
        return self.num_steps if self.offered is None else self.offered


@dataclass(frozen=True, kw_only=True)
class Profiles:
    """All that a server may know about its M clients before it draws any of them."""

    conditions: Conditions
    weights: Vector  # w, the target objective, sums to 1, (M,)
    accumulation: Vector  # A, the sum of the weights with which local gradients enter the update, (M,)
    offered_accumulation: Vector | None = None  # A of the steps that clients offer; None: accumulation, (M,)

    @cached_property
    def num_steps(self) -> IntVector:
        """T, (M,)."""
        return self.conditions.num_steps

    @cached_property
    def failure_rates(self) -> Vector:
        """q, (M,)."""
        return self.conditions.failure_rates

    @cached_property
    def available(self) -> BoolVector | None:
        """Who can be drawn; None: everybody, (M,)."""
        return self.conditions.available

    @property
    def seconds(self) -> Vector:
        """What a round takes each client on the clock; without one a second per local step, (M,)."""
        known = self.conditions.seconds
        return self.num_steps.astype(np.float64) if known is None else known

    @cached_property
    def num_clients(self) -> int:
        """M."""
        return len(self.weights)

    @cached_property
    def reachable_weights(self) -> Vector:
        """The target among those who can be drawn: w without the others, summing to 1, (M,)."""
        if self.available is None:
            return self.weights
        weights = np.where(self.available, self.weights, 0.0)
        total = weights.sum()
        return weights / total if total > 0 else self.available / self.available.sum()


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """What is known of uploads that did not wait for each other."""

    started: IntVector  # after how many rounds the model was made that each upload began with, (M,)
    oldest: int  # the same of the oldest model that somebody still trains on
    elapsed: float  # seconds since the round before
    expected: Vector  # steps that the server makes during a job of each client, on average, (M,)
    seen: tuple[IntVector, IntVector, IntVector] | None = None  # clients, ages, counts of uploads that were tried out

    def mean_discount(self, exponent: float) -> Vector:
        """Return the mean of (1 + age)^-exponent of each client's uploads; of those not seen at the mean age, (M,)."""
        usual = (1 + self.expected) ** -exponent
        if self.seen is None:
            return usual
        clients, ages, counts = self.seen
        number = np.bincount(clients, counts, minlength=len(usual))
        total = np.bincount(clients, counts * (1.0 + ages) ** -exponent, minlength=len(usual))
        return np.divide(total, number, out=usual, where=number > 0)


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Who was drawn, how often, and the probabilities behind it; before the draw the counts are 0."""

    probabilities: Vector  # p, expected share of the draws, sums to 1, (M,)
    coefficients: Vector  # factor a drawn client puts on its update, 1 for plain sampling, (M,)
    counts: IntVector  # n, how often each client was drawn, (M,)
    num_draws: int  # K, the divisor of the aggregate
    scope: Scope = "round"  # the narrowest scope in which a calibration may trust these probabilities
    arrivals: Arrivals | None = None  # where clients do not wait for each other
    with_replacement: bool = False  # whether the draws are independent, so that a client may be drawn twice by chance
    there: float = 1.0  # how much of what is drawn on average is there, where absence shortens the step
    average: "Cohort | None" = None  # over who can be drawn in a round, where absence shortens the step
    nominal: "Cohort | None" = None  # with the p that is drawn from, where the expected share is another

    @cached_property
    def clients(self) -> IntVector:
        """The distinct clients drawn, ascending."""
        return np.flatnonzero(self.counts > 0)  # several times faster on booleans

    @property
    def inclusion(self) -> Vector:
        """The probability that each client is drawn at all; dependent draws avoid repetition, (M,)."""
        if self.with_replacement:
            return 1 - (1 - self.probabilities) ** self.num_draws
        return np.minimum(1.0, self.num_draws * self.probabilities)


@dataclass(frozen=True)
class Expectation:
    """What a round does on average, which is known before anybody is drawn."""

    profiles: Profiles
    probabilities: Vector  # p, (M,)
    coefficients: Vector  # c, expected factor on a delivered update, sampler and aggregator together, (M,)
    uploaded: Vector | None = None  # expected factor of what happens to an update on its way; None: 1, (M,)
    measured: Vector | None = None  # factor that earlier rounds showed, such as that of clipping; None: 1, (M,)
    average: "Expectation | None" = None  # over who can be drawn, where the others are not replaced
    nominal: "Expectation | None" = None  # with the p that is drawn from, where the expected share is another

    @cached_property
    def contribution(self) -> Vector:
        """Contribution p (1-q) c A, see :func:`fl_lightning.theory.contribution`."""
        profiles, factors = self.profiles, self.coefficients
        if self.uploaded is not None:
            factors = factors * self.uploaded
        return theory.contribution(self.probabilities, profiles.failure_rates, factors, profiles.accumulation)

    @property
    def objective(self) -> Vector:
        """Contribution with what was measured. Step lengths leave that out: calibration must not depend on data."""
        return self.contribution if self.measured is None else self.contribution * self.measured

    @property
    def lasting(self) -> "Expectation":
        """What rounds do on average, whoever can be drawn in this one."""
        return self if self.average is None else self.average

    @cached_property
    def step_length(self) -> float:
        """Length of the step in units of the mean gradient, at a learning rate of 1."""
        return float(self.contribution.sum())


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """Everything decided about a round before anybody trains."""

    index: int  # counted from 1
    expected: Expectation
    cohort: Cohort
    learning_rate: float  # eta, of the local steps
    server_scale: float = 1.0  # factor on the aggregate; carries the calibration when it acts on the server
    probed_steps: int = 0  # local steps spent by clients that were asked before the draw (norms, losses)

    @cached_property
    def profiles(self) -> Profiles:
        """What the server knows about the clients."""
        return self.expected.profiles

    @property
    def coefficients(self) -> Vector:
        """c, expected factor on a delivered update, sampler and aggregator together, (M,)."""
        return self.expected.coefficients

    @cached_property
    def effective_weights(self) -> Vector:
        """Omega: the objective that this round really descends."""
        return theory.effective_weights(self.expected.objective)

    @property
    def lasting_weights(self) -> Vector:
        """Omega on average over who can be drawn, where a round without somebody is no more than a part of it."""
        measured, lasting = self.expected.measured, self.expected.lasting
        return theory.effective_weights(lasting.contribution if measured is None else lasting.contribution * measured)

    @property
    def chi_square(self) -> float:
        """Distance of Omega from w, among those who can be drawn; 0 means consistent."""
        return theory.chi_square(self.profiles.reachable_weights, self.effective_weights)

    @property
    def step_length(self) -> float:
        """Expected length of the step in units of the mean gradient: eta_eff * T_eff."""
        return self.learning_rate * self.server_scale * self.expected.step_length


@dataclass(frozen=True, kw_only=True)
class ClientUpdate:
    """What one client sends back."""

    client: int
    delta: torch.Tensor  # Delta = (start - end) / eta: gradient-like, (d,)
    buffers: torch.Tensor  # the float buffers of the model after training, (b,)
    num_steps: int
    loss: float  # mean training loss over the local steps


@dataclass(frozen=True, kw_only=True)
class Updates:
    """What n clients send back, as columns, ascending by client."""

    clients: IntVector  # (n,)
    deltas: torch.Tensor  # (n, d)
    buffers: torch.Tensor  # (n, b)
    num_steps: IntVector  # (n,)
    losses: Vector  # (n,)
    noise: torch.Tensor | None = None  # what the way adds to the sum of all uploads, before the division by K, (d,)
    total: torch.Tensor | None = None  # sum of n c Delta where nobody sees one of them; deltas are 0 then, (d,)

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, row: int) -> ClientUpdate:
        return ClientUpdate(
            client=int(self.clients[row]),
            delta=self.deltas[row],
            buffers=self.buffers[row],
            num_steps=int(self.num_steps[row]),
            loss=float(self.losses[row]),
        )

    def rows(self, rows: IntVector) -> "Updates":
        """Return the updates of some rows."""
        places = torch.from_numpy(rows)
        return replace(
            self,
            clients=self.clients[rows],
            deltas=self.deltas[places],
            buffers=self.buffers[places],
            num_steps=self.num_steps[rows],
            losses=self.losses[rows],
        )

    @property
    def mean_loss(self) -> float:
        """Mean training loss over the clients; NaN when nobody trained."""
        return float(self.losses.mean()) if len(self.clients) else float("nan")


@dataclass(frozen=True)
class ModelState:
    """The global model as one flat vector of weights and one of float buffers."""

    weights: torch.Tensor  # (d,)
    buffers: torch.Tensor  # (b,)


@dataclass(frozen=True)
class Fault:
    """An update that was thrown away."""

    round_index: int
    client: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Received:
    """What the server has of a round before it aggregates; each stage on the way returns a new one."""

    plan: RoundPlan
    delivered: IntVector  # how many of each client's draws arrived, (M,)
    updates: Updates  # of the clients that trained
    faults: tuple[Fault, ...] = ()  # updates that were rejected; their clients count as lost

    @property
    def arrived_plan(self) -> RoundPlan:
        """The plan with the draws that arrived of each client that sends something, where its draws have links each."""
        drawn = self.plan.cohort.counts
        counts = np.where(self.delivered > 0, self.delivered, drawn)
        if np.array_equal(counts, drawn):
            return self.plan
        return replace(self.plan, cohort=replace(self.plan.cohort, counts=counts))


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """What one round costs; lost work and lost uploads count."""

    local_steps: int
    computation_time: float  # seconds on all devices together
    round_time: float  # seconds until the server has what it waits for
    uplink_bytes: float
    downlink_bytes: float


@dataclass(frozen=True)
class Asked:
    """What clients were asked before the draw."""

    clients: IntVector = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # who got the model to answer
    numbers: int = 0  # that clients told of their data, for which nobody needs the model


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """What became of a round."""

    plan: RoundPlan
    delivered: IntVector  # how many of each client's draws arrived, (M,)
    updates: Updates  # of the delivered clients
    metrics: dict[str, float]  # one row of numbers: evaluation, plan, and what callbacks add
    training_seconds: float  # measured time of local training
    class_accuracy: Vector = field(default_factory=lambda: np.empty(0))  # per class, where the module measures it
    faults: tuple[Fault, ...] = ()  # updates that were rejected; their clients count as lost
    costs: RoundCosts | None = None  # by the loop's clock
    client_metrics: dict[str, Vector] = field(default_factory=dict)  # of each client's own evaluation, (M,) each
    uncovered: dict[str, float] = field(default_factory=dict)  # of a private run: numbers that its epsilon leaves out
