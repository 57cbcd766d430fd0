"""Secure aggregation: the anonymous mean of updates that nobody sees."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, Draw
from fl_lightning.parts.traits import AggregatorTraits, layers
from fl_lightning.secure.primitives import Bits, FixedPoint, library
from fl_lightning.secure.protocol import exchanged_bytes, secure_sum
from fl_lightning.theory.sampling import fewer_others
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, RoundResult, Updates, Vector

_COHORTS = 256  # over the number of draws: how many cohorts are drawn to see how often a sum fails
_LEAST = 2  # the sum of one update is that update


class SecureSum(Aggregator):
    r"""Finds :math:`\sum_m n_m c_m \Delta_m` under masks that cancel (secure aggregation, Bonawitz et al. 2017).

    The clients that were drawn agree on pairwise masks (X25519, HKDF) and share their keys among each other (Shamir).
    Lost uploads are drop-outs, whose masks the others' shares take off. The server sees public keys, sealed shares,
    masked vectors, and of each client either the shares of its own mask or those of its key. Where fewer than the
    threshold arrive, the round fails and the model stays. Numbers are whole multiples of a step in a ring: the result
    is the plain one to half a step per client, and an entry above the bound is an error. The server is assumed to
    follow the protocol. What such a round decides by arrivals, a threshold of many clients decides against cohorts of
    bad links: a low one is a choice between that and how many must be honest.

    Args:
        bound: Largest absolute value in what a client sends, n c Delta.
        threshold: How many of those drawn must arrive, as a number or as a share of them; at least 2. As many clients
            that work together with the server can open every update, so that it is above half by default.
        weighting: The aggregator whose factor c the clients put on their updates; none by default.
        bits: Of the ring.
    """

    memory = ("num_failed", "weighting")
    traits = AggregatorTraits(hides_updates=True)

    def __init__(
        self,
        bound: float,
        threshold: int | float = 0.51,
        weighting: Aggregator | None = None,
        bits: Bits = 64,
    ) -> None:
        FixedPoint(bound, 1, bits)
        if not threshold > 0 or (threshold > 1 and threshold % 1):
            raise ValueError(f"threshold={threshold} must be a number of clients or a share of them in (0, 1)")
        self.bound = bound
        self.threshold = threshold
        self.bits = bits
        self.weighting = weighting or Aggregator()
        if not self.weighting.traits.only_sums:
            raise ValueError(f"weighting={type(self.weighting).__name__} needs each update: a sum is all there is")
        self.num_failed = 0  # rounds in which too few arrived

    def on_federation_start(self, loop: object) -> None:
        """Notice a missing library before anybody trains."""
        library()

    @override
    def upload_bytes(self, num_values: float, num_bytes: float) -> float:
        """Return the bytes of a masked vector: one element of the ring for each value, however it was compressed."""
        return num_values * self.bits / 8

    @override
    def protocol_bytes(self, plan: RoundPlan, delivered: IntVector) -> tuple[float, float]:
        """Return the bytes of keys and shares; a client that never arrives took part in their exchange as well."""
        num_clients = len(plan.cohort.clients)
        num_arrived = int((delivered[plan.cohort.clients] > 0).sum())
        return exchanged_bytes(num_clients, num_arrived, self.needed(plan))

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        return self.weighting.coefficients(profiles, cohort)

    @override
    def objective_factors(self, plan: RoundPlan, draw: Draw) -> Vector:
        r"""Return the probability that enough others arrive where a client does, over cohorts and independent links.

        .. math:: P\Bigl(1 + \sum_{j \ne m\ \mathrm{drawn}} Z_j \ge t\Bigr), \qquad Z_j \sim \mathrm{Ber}(1 - q_j)
        """
        rng, arriving = np.random.default_rng(plan.index), 1 - plan.profiles.failure_rates
        amounts, counted = np.zeros(len(arriving)), np.zeros(len(arriving))
        for _ in range(max(8, _COHORTS // max(1, plan.cohort.num_draws))):
            counts = draw(rng)
            if plan.cohort.with_replacement:  # any client may stand for one of the draws: all are seen in each cohort
                counts = counts.copy()
                counts[rng.choice(len(counts), p=counts / counts.sum())] -= 1
            clients = np.flatnonzero(counts)
            chances = _enough_others(arriving[clients], self.needed(plan, len(clients)))
            if plan.cohort.with_replacement:
                joined = _enough_others(np.append(arriving[clients], 0.0), self.needed(plan, len(clients) + 1))
                counted += joined[-1]
                counted[clients] += chances - joined[-1]
                amounts += 1
            else:
                counted[clients] += counts[clients] * chances
                amounts[clients] += counts[clients]
        usual = float(counted.sum() / max(amounts.sum(), 1.0))
        return np.divide(counted, amounts, out=np.full(len(arriving), usual), where=amounts > 0)

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        num_draws = plan.cohort.num_draws
        total = self._played(updates, delivered, plan) if updates.total is None else updates.total
        if total is None or len(updates) < self.needed(plan):
            self.num_failed += 1
            total = updates.deltas.new_zeros(updates.deltas.shape[1])
        return (total / num_draws).to(updates.deltas) + (0.0 if updates.noise is None else updates.noise / num_draws)

    def _played(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor | None:
        """Return the sum, with all parties in this process; None where too few arrived."""
        factors = delivered * plan.coefficients
        vectors = {
            int(client): factors[client] * updates.deltas[row].cpu().double().numpy()
            for row, client in enumerate(updates.clients)
        }
        participants = plan.cohort.clients.tolist()
        total, _ = secure_sum(vectors, participants, self.ring(plan), self.needed(plan), f"round {plan.index}")
        return None if total is None else torch.from_numpy(total)

    def ring(self, plan: RoundPlan) -> FixedPoint:
        """Return how numbers become whole numbers in a round."""
        return FixedPoint(self.bound, max(1, len(plan.cohort.clients)), self.bits)

    def needed(self, plan: RoundPlan, num_clients: int | None = None) -> int:
        """Return how many uploads must arrive in a round; also if another number of clients were drawn.

        Raises:
            ValueError: If there are never so many.
        """
        num_draws = plan.cohort.num_draws
        num_clients = len(plan.cohort.clients) if num_clients is None else num_clients
        if isinstance(self.threshold, float) and self.threshold <= 1:
            return max(_LEAST, int(np.ceil(self.threshold * num_clients)))
        if self.threshold > num_draws:
            raise ValueError(
                f"threshold={self.threshold} is above the {num_draws} draws of a round, so no round could succeed: "
                "lower loop.aggregator.threshold, or draw more clients"
            )
        return max(_LEAST, int(self.threshold))

    def configure_metrics(self, result: RoundResult) -> dict[str, float]:
        """Return the column of a round: how many rounds had too few arrivals so far."""
        return {"failed_sums": self.num_failed}


def _enough_others(arriving: Vector, needed: int) -> Vector:
    """Return the probability that ``needed - 1`` others arrive or more, for each client.

    >>> _enough_others(np.array([0.5, 0.5, 1.0]), 2).tolist()
    [1.0, 1.0, 0.75]
    """
    return 1 - fewer_others(arriving[:, None], needed - 1)[:, 0]


def sum_of(aggregator: Aggregator) -> SecureSum | None:
    """Return the secure sum that an aggregator is or is around; None where the server sees updates.

    >>> from fl_lightning.aggregators import AnonymousMean, ServerMomentum
    >>> hidden = SecureSum(bound=1.0)
    >>> sum_of(ServerMomentum(hidden)) is hidden, sum_of(AnonymousMean())
    (True, None)
    """
    return next((each for each in layers(aggregator) if isinstance(each, SecureSum)), None)
