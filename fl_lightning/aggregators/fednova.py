"""FedNova and scheme C of Ruan et al.: the server makes up for unequal local work."""

from typing import Literal, get_args

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, mean_accumulation
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector

Tau = Literal["gamma", "omega", "received", "selected"]


class NormalizedMean(Aggregator):
    r"""Divides each update by the local work A behind it and multiplies by a common tau (FedNova, Wang et al. 2020).

    .. math:: X \leftarrow X - \frac{\eta\tau}{K} \sum_{m\ \mathrm{delivered}} n_m \frac{\Delta_m}{A_m}

    With p = w this gives :math:`\Omega \propto w (1-q)`: work is corrected, links are not. The server must know A of
    what arrives. Any tau will do that does not depend on who takes part; it is only a step length.

    Args:
        tau: ``gamma``: mean A of what arrives in expectation, so that the step is as long as without normalisation (the
            paper's choice). ``omega``: mean A of all clients by weight (FedNova's own). A number: itself.
            ``received``, ``selected``: mean A of the draws that arrived, or of all draws, in this very round. Both are
            biased towards clients that work much, because tau is large just when these take part; they are here to show
            it, and the reported Omega does not contain this bias.
    """

    def __init__(self, tau: Tau | float = "gamma") -> None:
        if (tau not in get_args(Tau)) if isinstance(tau, str) else not 0 < tau < float("inf"):
            raise ValueError(f"tau={tau!r} must be a positive number or one of {', '.join(get_args(Tau))}")
        self.tau = tau

    @property
    @override
    def traits(self) -> AggregatorTraits:
        """A tau of who arrived or was drawn needs their names."""
        fixed = self.tau not in ("received", "selected")
        return AggregatorTraits(only_sums=fixed, effect="exact" if fixed else "unknown")

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        return cohort.coefficients * self._expected_tau(profiles, cohort) / profiles.accumulation

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        direction = super().direction(updates, delivered, plan)
        if self.tau not in ("received", "selected") or not len(updates):
            return direction
        counts = delivered if self.tau == "received" else plan.cohort.counts
        realised = mean_accumulation(counts.astype(float), plan.profiles.accumulation)
        return direction * (realised / self._expected_tau(plan.profiles, plan.cohort))

    def _expected_tau(self, profiles: Profiles, cohort: Cohort) -> float:
        if isinstance(self.tau, int | float):
            return float(self.tau)
        if self.tau == "omega":
            return mean_accumulation(profiles.weights, profiles.accumulation)
        arrival = 1.0 if self.tau == "selected" else 1 - profiles.failure_rates
        return mean_accumulation(cohort.probabilities * arrival * cohort.coefficients, profiles.accumulation)


class IncompleteWork(Aggregator):
    r"""Scales the update of a client that made s of E steps by E/s (scheme C of Ruan et al. 2021).

    .. math:: X \leftarrow X - \frac{\eta}{K} \sum_{m\ \mathrm{delivered}} n_m \frac{E}{T_m} \Delta_m

    With p = w this gives :math:`\Omega \propto w (1-q) A / T`, for plain SGD :math:`w (1-q)`. It counts steps where
    :class:`NormalizedMean` counts their accumulated weight A, so momentum, decay and a proximal term stay uncorrected.
    A client that does not arrive is left out, as in the original, whose scheme C corrects the work of active clients.

    Args:
        nominal_steps: E, the number of steps that is a full round of work; by default that of the busiest client of the
            round, whether it is drawn or not.
    """

    def __init__(self, nominal_steps: float | None = None) -> None:
        if nominal_steps is not None and not 0 < nominal_steps < float("inf"):
            raise ValueError(f"nominal_steps={nominal_steps} must be a positive number")
        self.nominal_steps = nominal_steps

    @override
    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        nominal_steps = float(profiles.num_steps.max()) if self.nominal_steps is None else self.nominal_steps
        return cohort.coefficients * nominal_steps / profiles.num_steps
