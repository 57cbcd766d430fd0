"""REFL: those first who will hardly be there again."""

import numpy as np
from typing_extensions import override

from fl_lightning.samplers.sampler import Drawing, Sampler, WithoutReplacement
from fl_lightning.types import Profiles, Vector


class LeastAvailable(Sampler):
    r"""Takes the K clients who can be drawn most rarely, of equals any (REFL, its selection of participants).

    .. math:: K p_m = \min\Bigl(1, \max\Bigl(0, \frac{K - |\{j: a_j < a_m\}|}{|\{j: a_j = a_m\}|}\Bigr)\Bigr)

    with :math:`a_m` how often client m can be drawn in the long run, which each client tells about itself; REFL
    predicts the next hours. Without a clock that knows availability all are alike. The selected are averaged as they
    are, so that the weights drop out and :math:`\Omega \propto p (1 - q) A`. REFL's weights for late uploads are the
    aggregator's business and not here. Read from the authors' code.
    """

    drawing: Drawing | None = WithoutReplacement()

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        presence = profiles.conditions.presence
        there = np.flatnonzero(profiles.weights > 0)
        rates = np.ones(len(there)) if presence is None else presence[there].round(9)
        _, alike, number = np.unique(rates, return_inverse=True, return_counts=True)
        earlier = np.cumsum(number) - number
        shares = np.clip((min(num_draws, len(there)) - earlier) / number, 0, 1)[alike.reshape(-1)]
        probabilities = np.zeros(profiles.num_clients)
        probabilities[there] = shares / shares.sum()
        return probabilities
