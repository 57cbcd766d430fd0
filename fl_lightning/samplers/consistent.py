"""The consistent family: any way of drawing optimises the target objective if drawn clients scale their updates."""

import numpy as np
from typing_extensions import override

from fl_lightning import theory
from fl_lightning.parts.protocols import Forecast, Probe
from fl_lightning.samplers.base import Sampler
from fl_lightning.samplers.learned import LastNorms
from fl_lightning.types import IntVector, Profiles, RoundResult, Vector


def consistent_factors(profiles: Profiles, probabilities: Vector) -> Vector:
    r"""Return the factors with which :math:`\Omega = w` and the step is as long as FedAvg's, (M,).

    .. math:: c_m = s \frac{w_m}{p_m (1 - q_m) A_m}, \qquad s = \sum_j w_j (1 - q_j) A_j

    >>> w, a = np.array([0.5, 0.5]), np.array([2.0, 6.0])
    >>> profiles = Profiles(
    ...     weights=w, num_steps=a.astype(np.int64), failure_rates=np.zeros(2), accumulation=a
    ... )
    >>> consistent_factors(profiles, np.array([0.5, 0.5])).round(6).tolist()
    [2.0, 0.666667]
    """
    scale = float((profiles.weights * (1 - profiles.failure_rates) * profiles.accumulation).sum())
    return theory.consistent_coefficients(
        profiles.weights, probabilities, profiles.failure_rates, profiles.accumulation, scale
    )


class VarianceOptimal(Sampler):
    r"""Draws so that one step varies least.

    .. math:: p_m \propto \frac{w_m g_m}{\sqrt{1 - q_m}}, \qquad c_m \propto \frac{w_m}{p_m (1 - q_m) A_m}

    The server tells a drawn client its factor, and the client scales its update before it sends it, so that the server
    needs no names.

    Args:
        use_norms: Take g, the norm of each client's mean gradient, from what was last heard of it; otherwise 1.
    """

    memory = ("_heard",)

    def __init__(self, use_norms: bool = False) -> None:
        self.use_norms = use_norms
        self._heard = LastNorms()

    @property
    @override
    def looks_at_updates(self) -> bool:
        return self.use_norms

    @property
    @override
    def is_fixed(self) -> bool:
        return not self.use_norms

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        norms = self._heard.estimate(profiles.num_clients)
        return theory.variance_optimal_probabilities(profiles.weights, profiles.failure_rates, norms)

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        return consistent_factors(profiles, probabilities)

    @override
    def observe(self, result: RoundResult) -> None:
        if self.use_norms:
            self._heard.observe(result)


class WorkAware(VarianceOptimal):
    r"""Draws so that the variance of a step times its expected local work is least.

    .. math:: p_m \propto \frac{w_m g_m}{\sqrt{(1 - q_m) T_m}}, \qquad c_m \propto \frac{w_m}{p_m (1 - q_m) A_m}

    Best together with systematic drawing and calibration on the server.

    Args:
        use_norms: Take g, the norm of each client's mean gradient, from what was last heard of it; otherwise 1.
    """

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        norms = self._heard.estimate(profiles.num_clients)
        return theory.work_aware_probabilities(profiles.weights, profiles.failure_rates, profiles.num_steps, norms)


class Consistent(Sampler):
    """Makes another sampler optimise the target objective: its p, and the factors of :func:`consistent_factors`.

    The other sampler must give every client with a weight a chance in each round; one that selects by rule does not.

    Args:
        sampler: Decides who is drawn; its own factors are not used.
    """

    memory = ("sampler",)

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, self.calibration_scope = sampler, sampler.calibration_scope
        self.needs_all_updates = sampler.needs_all_updates

    @property
    @override
    def looks_at_updates(self) -> bool:
        return self.sampler.looks_at_updates

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        return self.sampler.probabilities(profiles, num_draws)

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        return consistent_factors(profiles, probabilities)

    @property
    @override
    def relies_on_forecast(self) -> bool:
        return self.sampler.relies_on_forecast

    @override
    def num_draws(self, requested: int, num_clients: int) -> int:
        return self.sampler.num_draws(requested, num_clients)

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        return self.sampler.draw(probabilities, num_draws, rng)

    @override
    def start(self, forecast: Forecast) -> None:
        self.sampler.start(forecast)

    @override
    def prepare(self, profiles: Profiles, num_draws: int, probe: Probe, rng: np.random.Generator) -> None:
        self.sampler.prepare(profiles, num_draws, probe, rng)

    @override
    def observe(self, result: RoundResult) -> None:
        self.sampler.observe(result)
