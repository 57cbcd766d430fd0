"""c-a-FedNova: makes up for lost uploads and for unequal work, both at the server."""

from typing import Literal

from typing_extensions import override

from fl_lightning.aggregators.base import Aggregator, mean_accumulation
from fl_lightning.aggregators.cafedavg import checked_max_inverse, inverse_delivery
from fl_lightning.types import Cohort, Profiles, Vector


class CommunicationAwareNormalizedMean(Aggregator):
    r"""Divides each update by its chance to arrive and by the work behind it (c-a-FedNova).

    .. math:: X \leftarrow X - \frac{\eta\tau}{K} \sum_{m\ \mathrm{delivered}} \frac{n_m}{(1-q_m) A_m} \Delta_m

    With p = w this gives :math:`\Omega = w`. FedACS reaches the same by sampling; here the server must know q, A of
    what arrives, and who sent what, and a client with few steps is amplified when it arrives, at the price of variance.

    Args:
        tau: ``omega``: mean A of all clients by weight. A number: itself. It is only a step length.
        max_inverse: Cap on 1/(1-q), as in :class:`CommunicationAware`.
    """

    def __init__(self, tau: Literal["omega"] | float = "omega", max_inverse: float | None = None) -> None:
        if tau != "omega" if isinstance(tau, str) else not 0 < tau < float("inf"):
            raise ValueError(f"tau={tau!r} must be a positive number or 'omega'")
        self.tau, self.max_inverse = tau, checked_max_inverse(max_inverse)

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return the sampler's factor times tau / ((1-q) A)."""
        accumulation = profiles.accumulation
        tau = mean_accumulation(profiles.weights, accumulation) if isinstance(self.tau, str) else self.tau
        return cohort.coefficients * tau * inverse_delivery(profiles.failure_rates, self.max_inverse) / accumulation
