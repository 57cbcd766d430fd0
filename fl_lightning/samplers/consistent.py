"""The consistent family: any way of drawing optimises the target objective if drawn clients scale their updates."""

from dataclasses import replace

from typing_extensions import override

from fl_lightning import theory
from fl_lightning.parts.traits import SamplerTraits, forwards
from fl_lightning.samplers.learned import LastNorms
from fl_lightning.samplers.sampler import Drawing, Sampler
from fl_lightning.types import Profiles, RoundResult, Vector


def consistent_factors(profiles: Profiles, probabilities: Vector) -> Vector:
    r"""Return the factors with which :math:`\Omega = w` and the step is as long as FedAvg's, (M,).

    .. math:: c_m = s \frac{w_m}{p_m (1 - q_m) A_m}, \qquad s = \sum_j w_j (1 - q_j) A_j

    >>> import numpy as np
    >>> w, a = np.array([0.5, 0.5]), np.array([2.0, 6.0])
    >>> from fl_lightning.types import Conditions
    >>> conditions = Conditions(a.astype(np.int64), np.zeros(2))
    >>> profiles = Profiles(conditions=conditions, weights=w, accumulation=a)
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

    The server sends a drawn client its factor, and the client scales its update before it sends it, so that the server
    needs no names.

    Args:
        use_norms: Take g, the norm of each client's mean gradient, from what last arrived of it; otherwise 1.
    """

    memory = ("_last_norms",)

    def __init__(self, use_norms: bool = False) -> None:
        self.use_norms = use_norms
        self._last_norms = LastNorms()

    @property
    @override
    def traits(self) -> SamplerTraits:
        return SamplerTraits(learns=self.use_norms, looks_at_updates=self.use_norms, consistent=True)

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        norms = self._last_norms.estimate(profiles.num_clients)
        return theory.variance_optimal_probabilities(profiles.weights, profiles.failure_rates, norms)

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        return consistent_factors(profiles, probabilities)

    @override
    def observe(self, result: RoundResult) -> None:
        if self.use_norms:
            self._last_norms.observe(result)


class WorkAware(VarianceOptimal):
    r"""Draws so that the variance of a step times its expected local work is least.

    .. math:: p_m \propto \frac{w_m g_m}{\sqrt{(1 - q_m) T_m}}, \qquad c_m \propto \frac{w_m}{p_m (1 - q_m) A_m}

    Args:
        use_norms: Take g, the norm of each client's mean gradient, from what last arrived of it; otherwise 1.
    """

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        norms = self._last_norms.estimate(profiles.num_clients)
        return theory.work_aware_probabilities(profiles.weights, profiles.failure_rates, profiles.num_steps, norms)


@forwards(Sampler, "sampler")
class Consistent(Sampler):
    """Makes another sampler optimise the target objective: its p, and the factors of :func:`consistent_factors`.

    The other sampler must give every client with a weight a chance in each round; one that selects by rule does not.

    Args:
        sampler: Decides who is drawn; its own factors are not used.
    """

    memory = ("sampler",)

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = self.wrapped = sampler

    @property
    @override
    def traits(self) -> SamplerTraits:
        return replace(self.sampler.traits, consistent=True)

    @property
    @override
    def drawing(self) -> Drawing | None:
        return self.sampler.drawing

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        return consistent_factors(profiles, probabilities)
