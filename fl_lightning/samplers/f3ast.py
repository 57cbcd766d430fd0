"""F3AST: those first who were served least for their weight, whoever can be drawn."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.protocols import Forecast
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.sampler import Certain, Drawing, Sampler, unbiased_coefficients
from fl_lightning.types import Profiles, RoundResult, Vector


class TrackedRates(Sampler):
    r"""Takes the K clients who were drawn least for their weight, among those who can be drawn (F3AST).

    .. math:: S = \operatorname{top}_K \frac{w_m}{r_m}, \qquad c_m = \frac{w_m}{r_m}, \qquad
        r \leftarrow (1 - \beta) r + \beta \frac{n}{K}

    which descends the variance :math:`\sum_m w_m^2 / r_m` over the rates r that availability allows. r is learned from
    who was drawn, nobody is asked; it starts at w. The factor undoes it, so that :math:`\Omega \propto w (1 - q) A` in
    the long run: lost uploads and unequal work are not corrected. The authors' code divides by the rate after the
    round's own draw, which differs by the order of beta.

    Args:
        beta: How fast r forgets.
    """

    traits = SamplerTraits(learns=True, scope="none")
    drawing: Drawing | None = Certain()
    memory = ("_rates",)

    def __init__(self, beta: float = 0.01) -> None:
        if not 0 < beta < 1:
            raise ValueError(f"beta={beta} must be between 0 and 1")
        self.beta = beta
        self._weights: Vector = np.empty(0)  # of all clients, also of those who cannot be drawn
        self._rates: Vector = np.empty(0)  # r, sums to 1

    @override
    def start(self, forecast: Forecast) -> None:
        self._weights = next(forecast()).weights

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return 1/K for those who are taken; of equals the first."""
        weights = profiles.weights
        behind = np.where(weights > 0, self._behind(weights).round(9), -1.0)
        number = min(num_draws, int(np.count_nonzero(weights)))
        taken = np.zeros(len(weights))
        taken[np.argsort(-behind, kind="stable")[:number]] = 1 / number
        return taken

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        return self._behind(profiles.weights)

    def _behind(self, weights: Vector) -> Vector:
        """Return w/r, whoever can be drawn, (M,)."""
        weights = self._weights if len(self._weights) else weights
        return unbiased_coefficients(weights, self._rates if len(self._rates) else weights)

    @override
    def observe(self, result: RoundResult) -> None:
        cohort = result.plan.cohort
        rates = self._rates if len(self._rates) else result.plan.profiles.weights
        self._rates = (1 - self.beta) * rates + self.beta * cohort.counts / cohort.num_draws
