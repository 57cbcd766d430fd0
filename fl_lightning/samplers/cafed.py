"""CA-Fed: everybody who is there, but those who are rarely or stubbornly away are left out while it pays."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.protocols import Forecast
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.sampler import FullParticipation
from fl_lightning.types import BoolVector, IntVector, Profiles, RoundResult, Vector


class CorrelationAware(FullParticipation):
    r"""Asks all clients that it keeps and divides by how often each arrives (CA-Fed, Rodio et al.).

    .. math:: c_m = \frac{w_m}{\pi_m}, \qquad
        \text{kept: a greedy minimum of } \sum_m \omega_m F_m + \kappa \max_m F_m \, \mathrm{TV}(w, \omega)^2, \quad
        \omega \propto \pi c

    Clients are tried for exclusion in the order of the correlation :math:`|\lambda_m|` of their arrivals with those of
    the round before, then in the order of their arrivals :math:`\pi_m`, rarest first. Both are learned from who arrives
    and who can be drawn, the losses F from the uploads; F* counts as 0. :math:`\Omega \propto w A` over those who are
    kept; whom a loss excludes depends on the data.

    Args:
        bias: kappa; the larger, the fewer are left out.
        prior: Imagined rounds at the average rate that each client starts with.
    """

    traits = SamplerTraits(learns=True, looks_at_updates=True, scope="none")
    memory = ("_known", "_arrived", "_pairs", "_last", "_losses")

    def __init__(self, bias: float = 1.0, prior: float = 2.0) -> None:
        if not bias >= 0 or not prior > 0:
            raise ValueError(f"bias={bias} must not be negative, and prior={prior} must be positive")
        self.bias, self.prior = bias, prior
        self._known: IntVector = np.empty(0, dtype=np.int64)  # rounds in which a client's state was seen
        self._arrived: IntVector = np.empty(0, dtype=np.int64)
        self._pairs: IntVector = np.empty((0, 0, 0), dtype=np.int64)  # [before, now] of successive rounds, (2, 2, M)
        self._last: IntVector = np.empty(0, dtype=np.int64)  # 1 arrived, 0 did not, -1 not known
        self._losses: Vector = np.empty(0)  # NaN where none arrived
        self._weights: Vector = np.empty(0)  # of all clients, also of those who cannot be drawn

    @override
    def start(self, forecast: Forecast) -> None:
        self._weights = next(forecast()).weights

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return the same for all who are kept and can be drawn; where nobody is both, who can be drawn."""
        there = profiles.weights > 0
        kept = there & self.kept(self._weights if len(self._weights) else profiles.weights)
        kept = kept if kept.any() else there
        return kept / kept.sum()

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        weights = self._weights if len(self._weights) else profiles.weights
        return np.where(probabilities > 0, profiles.num_clients * weights / self._rates(profiles.num_clients), 0.0)

    def _rates(self, num_clients: int) -> Vector:
        """Return pi, shrunk towards the average, (M,)."""
        if not len(self._known):
            return np.ones(num_clients)
        average = (self._arrived.sum() + 1) / (self._known.sum() + 1)
        return (self._arrived + self.prior * average) / (self._known + self.prior)

    def kept(self, weights: Vector) -> BoolVector:
        """Return who takes part, (M,)."""
        kept = weights > 0
        if not len(self._losses) or np.isnan(self._losses).all():
            return kept
        losses = np.where(np.isnan(self._losses), np.nanmean(self._losses), self._losses)
        stays = (self._pairs[[0, 1], [0, 1]] + 1) / (self._pairs.sum(axis=1) + 2)  # of those away, of those there

        share, total, highest = float(weights[kept].sum()), float((weights * losses)[kept].sum()), losses[kept].max()
        for order in (-np.abs(stays.sum(axis=0) - 1), self._rates(len(weights))):
            for client in np.argsort(order, kind="stable"):
                if not kept[client] or np.count_nonzero(kept) == 1:
                    continue
                less = share - weights[client], total - weights[client] * losses[client]
                # The total variation between w and w of the kept, rescaled, is the weight of those left out.
                error, before = (
                    each[1] / each[0] + self.bias * highest * (1 - each[0]) ** 2 for each in (less, (share, total))
                )
                if error < before:
                    kept[client] = False
                    share, total = less
        return kept

    @override
    def observe(self, result: RoundResult) -> None:
        profiles, drawn = result.plan.profiles, result.plan.cohort.counts > 0
        if not len(self._known):
            self._known = self._arrived = np.zeros(profiles.num_clients, dtype=np.int64)
            self._pairs = np.zeros((2, 2, profiles.num_clients), dtype=np.int64)
            self._last = np.full(profiles.num_clients, -1)
            self._losses = np.full(profiles.num_clients, np.nan)
        away = np.zeros_like(drawn) if profiles.available is None else ~profiles.available
        state = np.where(drawn, result.delivered > 0, np.where(away, 0, -1))
        self._known, self._arrived = self._known + (state >= 0), self._arrived + (state == 1)
        both = np.flatnonzero((state >= 0) & (self._last >= 0))
        self._pairs[self._last[both], state[both], both] += 1
        self._last = state
        updates = result.updates
        sound = np.isfinite(updates.losses) & (result.delivered[updates.clients] > 0)
        self._losses[updates.clients[sound]] = updates.losses[sound]
