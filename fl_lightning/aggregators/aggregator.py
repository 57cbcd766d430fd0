"""What an aggregator is: one method that returns c, or a direction of its own where it has memory."""

from collections.abc import Callable

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import PLAIN, Handout
from fl_lightning.parts.traits import AggregatorTraits, check_declared
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector, beside_float64

Draw = Callable[[np.random.Generator], IntVector]
_PLAIN = AggregatorTraits()


class Aggregator(Remembers):
    r"""Turns what arrived into the next global weights.

    .. math:: X \leftarrow X - \eta \cdot \frac1K \sum_{m\ \mathrm{delivered}} n_m c_m \Delta_m

    Override :meth:`coefficients` for another c. Override :meth:`direction` for an aggregator with memory, or
    :meth:`step` for one whose clients keep models of their own, and keep :meth:`coefficients` what it amounts to in
    expectation, so that :math:`\Omega \propto p (1-q) c A` stays true; then declare its traits:
    ``traits = AggregatorTraits(only_sums=False)``. Name in ``memory`` the attributes that a resumed run needs.
    """

    @override
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_declared(cls, ("direction", "step"), "traits = AggregatorTraits(only_sums=False)")

    @property
    def traits(self) -> AggregatorTraits:
        """What other parts must know of it."""
        return _PLAIN

    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        """Make room for memory; ``weights`` are the initial ones."""

    def downloads(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return the clients that get the model in a round; by default those who are drawn."""
        return plan.cohort.clients

    def upload_bytes(self, num_values: float, num_bytes: float) -> float:
        """Return the bytes of one upload of ``num_values`` values that would take ``num_bytes`` without protection."""
        return num_bytes

    def protocol_bytes(self, plan: RoundPlan, delivered: IntVector) -> tuple[float, float]:
        """Return the bytes up and down, of all clients together, of messages besides models and updates."""
        return 0.0, 0.0

    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return c, the expected factor on a delivered update, the sampler's factor included, (M,)."""
        return cohort.coefficients

    def expect(self, plan: RoundPlan) -> None:
        """Remember of a round that is only planned what it brings on average, as far as :meth:`coefficients` asks."""

    def objective_factors(self, plan: RoundPlan, draw: Draw) -> Vector | None:
        """Return what is to be multiplied to each client's share of Omega and not to the step length, (M,); None: 1.

        Args:
            plan: Of the round.
            draw: Makes the draws of the round once more.
        """
        return None

    def handout(self, plan: RoundPlan) -> Handout:
        """Return what clients get besides the global model: starts of their own, shifts of their gradients."""
        return PLAIN

    def trains(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return the clients whose training somebody will see: those whose upload arrives, or all who are drawn."""
        drawn = plan.cohort.clients
        return drawn if self.traits.needs_lost_updates else drawn[delivered[drawn] > 0]

    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the aggregated Delta, (d,)."""
        direction = weighted_sum(delivered_shares(plan.coefficients, updates, delivered, plan), updates.deltas)
        return direction if updates.noise is None else direction + updates.noise / plan.cohort.num_draws

    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return what is taken off the global weights, (d,)."""
        return plan.learning_rate * plan.server_scale * self.direction(updates, delivered, plan)

    def __call__(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the next global weights, (d,)."""
        return weights - self.step(weights, updates, delivered, plan)


def delivered_shares(factors: Vector, updates: Updates, delivered: IntVector, plan: RoundPlan) -> Vector:
    """Return n c / K of the clients that sent something, for a factor c of each client, (n,)."""
    return np.asarray(delivered[updates.clients] * factors[updates.clients] / plan.cohort.num_draws)


def mean_gradients(updates: Updates, profiles: Profiles) -> torch.Tensor:
    """Return Delta / A, which does not grow with the number of local steps, (n, d)."""
    return updates.deltas / torch.from_numpy(profiles.accumulation[updates.clients]).to(updates.deltas)[:, None]


def row_norms(rows: torch.Tensor) -> Vector:
    """Return the length of each row, (n,); a long row of float32 is added up in blocks, so that nothing is lost.

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [5.0, 0.0]
    """
    return torch.linalg.vector_norm(beside_float64(rows), dim=1, dtype=torch.float64).cpu().numpy()


def weighted_sum(shares: Vector, rows: torch.Tensor) -> torch.Tensor:
    """Return sum_i shares_i rows_i, (d,); zeros when there are no rows.

    >>> weighted_sum(np.array([2.0, 1.0]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])).tolist()
    [2.0, 3.0]
    """
    return torch.from_numpy(np.asarray(shares)).to(rows) @ rows


def matching_coefficients(amounts: Vector, profiles: Profiles, cohort: Cohort) -> Vector:
    r"""Return the c at which a round applies, in expectation, the given amount of each client's update.

    .. math:: c_m = \frac{b_m}{p_m (1 - q_m)}

    Aggregators with memory apply w of every client's last update, however rarely it arrives; this is what they report.
    A client that never arrives gets 0: nothing of it is in memory.

    >>> half, ones = np.array([0.5, 0.5]), np.ones(2, dtype=np.int64)
    >>> rates = np.array([0.5, 1.0])
    >>> from fl_lightning.types import Conditions
    >>> profiles = Profiles(conditions=Conditions(ones, rates), weights=half, accumulation=np.ones(2))
    >>> cohort = Cohort(probabilities=half, coefficients=np.ones(2), counts=ones, num_draws=2)
    >>> matching_coefficients(profiles.weights, profiles, cohort).tolist()
    [2.0, 0.0]
    """
    arrival = cohort.probabilities * (1 - profiles.failure_rates)
    return np.divide(amounts, arrival, out=np.zeros(len(arrival)), where=arrival > 0)


def arrival_rates(plan: RoundPlan) -> Vector:
    r"""Return in which share of the rounds each client arrives; where not all are there, on average over who is, (M,).

    .. math:: a_m (1 - q_m) \min\Bigl(1, \frac{K p_m}{p_m + \sum_{j \ne m} a_j p_j}\Bigr)

    with p the probabilities if all were there.
    """
    presence, usual = plan.profiles.conditions.presence, plan.expected.lasting.probabilities
    if presence is None or plan.expected.average is None:
        return np.asarray(plan.cohort.inclusion * (1 - plan.profiles.failure_rates))
    others = np.maximum(float(presence @ usual) - presence * usual, 0.0)
    drawn = np.minimum(1.0, plan.cohort.num_draws * usual / np.maximum(usual + others, 1e-300))
    return np.asarray(presence * drawn * (1 - plan.profiles.failure_rates))


def mean_accumulation(shares: Vector, accumulation: Vector) -> float:
    """Return the mean of A under shares that need not sum to 1; NaN where they are all 0.

    >>> mean_accumulation(np.array([1.0, 3.0]), np.array([4.0, 8.0]))
    7.0
    """
    total = float(shares.sum())
    return float(shares @ accumulation) / total if total > 0 else float("nan")


def mixed_buffers(buffers: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
    """Return the global float buffers (running means of BatchNorm), averaged like the weights.

    Shares are kept convex, because a variance that an amplified update pushes below zero would be none.
    """
    if not len(buffers) or not len(updates):
        return buffers
    shares = delivered_shares(plan.coefficients, updates, delivered, plan)
    return buffers + weighted_sum(shares / max(1.0, float(shares.sum())), updates.buffers - buffers)
