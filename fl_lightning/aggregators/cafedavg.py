"""c-a-FedAvg and c-a-FedNova: the server makes up for lost uploads, and for unequal work."""

from typing import Literal

import numpy as np
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, mean_accumulation
from fl_lightning.types import Cohort, Profiles, Vector


class CommunicationAware(Aggregator):
    r"""Divides each update by the probability that it arrives (c-a-FedAvg, Perazzone et al. 2022).

    .. math:: X \leftarrow X - \frac{\eta}{K} \sum_{m\ \mathrm{delivered}} \frac{n_m}{1 - q_m} \Delta_m

    With p = w this gives :math:`\Omega \propto w A`: links are corrected, unequal work is not. The server must know q
    and who sent what.

    Args:
        max_inverse: Cap on 1/(1-q); it bounds the variance that a bad link brings, and is biased where it acts.
    """

    def __init__(self, max_inverse: float | None = None) -> None:
        if max_inverse is not None and not max_inverse >= 1:
            raise ValueError(f"max_inverse={max_inverse} must be at least 1, the smallest value that 1/(1-q) takes")
        self.max_inverse = max_inverse

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        return cohort.coefficients * inverse_delivery(profiles.failure_rates, self.max_inverse)


class CommunicationAwareNormalizedMean(CommunicationAware):
    r"""Divides each update by its chance to arrive and by the work behind it (c-a-FedNova).

    .. math:: X \leftarrow X - \frac{\eta\tau}{K} \sum_{m\ \mathrm{delivered}} \frac{n_m}{(1-q_m) A_m} \Delta_m

    With p = w this gives :math:`\Omega = w`. FedACS reaches the same by sampling; here the server must know q, A of
    what arrives, and who sent what, and a client with few steps is amplified when it arrives, at the price of variance.

    Args:
        tau: ``omega``: mean A of all clients by weight. A number: itself. It is only a step length.
        max_inverse: Cap on 1/(1-q), as in :class:`CommunicationAware`.
    """

    def __init__(self, tau: Literal["omega"] | float = "omega", max_inverse: float | None = None) -> None:
        super().__init__(max_inverse)
        if tau != "omega" if isinstance(tau, str) else not 0 < tau < float("inf"):
            raise ValueError(f"tau={tau!r} must be a positive number or 'omega'")
        self.tau = tau

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        accumulation = profiles.accumulation
        tau = mean_accumulation(profiles.weights, accumulation) if isinstance(self.tau, str) else self.tau
        return cohort.coefficients * tau * inverse_delivery(profiles.failure_rates, self.max_inverse) / accumulation


def inverse_delivery(failure_rates: Vector, max_inverse: float | None = None) -> Vector:
    """Return 1/(1-q), capped; refuses q = 1 where there is no cap.

    >>> inverse_delivery(np.array([0.0, 0.5, 1.0]), max_inverse=4.0).tolist()
    [1.0, 2.0, 4.0]
    """
    if max_inverse is not None:
        return 1 / np.maximum(1 - failure_rates, 1 / max_inverse)
    hopeless = np.flatnonzero(failure_rates >= 1)
    if len(hopeless):
        raise ValueError(
            f"client {hopeless[0]} has failure rate {failure_rates[hopeless[0]]:g}, and 1/(1-q) must be finite "
            f"({len(hopeless)} such clients): lower its failure rate, leave it out, or cap 1/(1-q) by max_inverse"
        )
    return 1 / (1 - failure_rates)
