"""ArrivalRates: who arrives how often where everybody trains all the time."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.protocols import Forecast
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.sampler import Sampler
from fl_lightning.types import Profiles, Vector


class ArrivalRates(Sampler):
    r"""Reports the share of each client among the uploads of clients that train without a pause.

    .. math:: p_m = \frac{1 / \mathrm{E}[t_m]}{\sum_j 1 / \mathrm{E}[t_j]}

    with t the seconds from one start of a client to the next. Nobody is drawn: the clock decides. So an asynchronous
    server optimises :math:`\Omega \propto p (1-q) c A`, arrival rate times work, and
    :class:`fl_lightning.samplers.Consistent` around this makes it optimise w.
    """

    traits = SamplerTraits(scope="average")

    def __init__(self) -> None:
        self._mean_seconds: Vector = np.empty(0)

    @override
    def start(self, forecast: Forecast) -> None:
        """Average the seconds of typical rounds."""
        self._mean_seconds = np.mean([seconds_of(profiles) for profiles in forecast()], axis=0)

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        rates = 1 / (self._mean_seconds if len(self._mean_seconds) else seconds_of(profiles))
        return np.asarray(rates / rates.sum(), dtype=np.float64)


def seconds_of(profiles: Profiles) -> Vector:
    """Return the seconds that each client takes; without a clock a step takes one, (M,)."""
    return profiles.num_steps.astype(np.float64) if profiles.conditions.seconds is None else profiles.conditions.seconds
