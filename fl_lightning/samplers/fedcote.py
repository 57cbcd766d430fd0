"""FedCote: draws after which the labels that arrive are mixed as in all data together."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.protocols import Probe
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.sampler import Sampler
from fl_lightning.types import IntVector, Profiles, Vector

_MOST_STEPS = 100


def matched_shares(usual: Vector, wanted: Vector, mixes: Vector, exact: bool = True) -> Vector:
    r"""Return the shares nearest to the usual ones whose mix of labels is the wanted one, (M,).

    .. math:: \min_s \lVert s - s^0 \rVert^2 \quad \text{s.t.} \quad L^\top s = L^\top w, \quad s \ge 0

    By Newton's method on the C multipliers :math:`\mu` of the labels, :math:`s = \max(0, s^0 + L \mu)`.

    Args:
        usual: s0, sums to 1, (M,).
        wanted: w, sums to 1, (M,).
        mixes: L, the share of each class among a client's examples, (M, C).
        exact: False: one step, clipped at 0: cheaper, and right where nobody is clipped.

    >>> both = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> matched_shares(np.array([0.1, 0.2, 0.7]), np.array([0.25, 0.25, 0.5]), both).round(6).tolist()
    [0.2, 0.3, 0.5]
    """
    multipliers, target = np.zeros(mixes.shape[1]), wanted @ mixes

    def gap(multipliers: Vector) -> Vector:
        return np.asarray(target - np.maximum(usual + mixes @ multipliers, 0) @ mixes)

    for _ in range(_MOST_STEPS if exact else 1):
        active = mixes[usual + mixes @ multipliers > 0]
        step = np.linalg.lstsq(active.T @ active + 1e-12 * np.eye(len(target)), gap(multipliers), rcond=None)[0]
        length = 1.0
        while (
            exact
            and length > 1e-6
            and (np.abs(gap(multipliers + length * step)) > np.abs(gap(multipliers)).max()).any()
        ):
            length /= 2
        multipliers = multipliers + length * step
        if np.abs(gap(multipliers)).max() < 1e-12:
            break
    shares = np.maximum(usual + mixes @ multipliers, 0)
    return np.asarray(shares / shares.sum())


class LabelMatching(Sampler):
    r"""Draws so that the examples behind what arrives have the labels of all examples (FedCote, Wang et al.).

    .. math:: p_m \propto \frac{s_m}{1 - q_m}, \qquad \sum_m s_m L_m = \sum_m w_m L_m

    Of all such shares s of the arrivals it takes those nearest to the shares of FedAvg's draws, :math:`w (1 - q)`
    (:func:`matched_shares`). Clients tell once how many examples of each class they have, which is charged; data
    without classes is refused. Unequal work is not corrected: :math:`\Omega \propto s A`. Read from the abstract, which
    leaves the choice among the shares open; the paper's own bound may choose others.

    Args:
        exact: Solve the problem; otherwise make one clipped step, the cheaper way (as FedCote-II is meant).
    """

    traits = SamplerTraits(asks="numbers", looks_at_updates=True)
    memory = ("_counts",)

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact
        self._counts: IntVector = np.empty((0, 0), dtype=np.int64)  # examples of each class, (M, C)

    @override
    def prepare(self, profiles: Profiles, num_draws: int, probe: Probe, rng: np.random.Generator) -> None:
        if not len(self._counts):
            self._counts = probe.label_counts()

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return p; w before clients were asked."""
        if not len(self._counts):
            return profiles.weights
        arriving = profiles.weights * (1 - profiles.failure_rates)
        there = profiles.weights > 0
        mixes = np.where(there[:, None], self._counts / self._counts.sum(axis=1, keepdims=True), 0.0)
        shares = matched_shares(arriving / arriving.sum(), profiles.weights, mixes, self.exact)
        unnormalised = shares / (1 - profiles.failure_rates)
        return unnormalised / unnormalised.sum()
