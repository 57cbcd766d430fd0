"""FedCS: the fastest of some candidates."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.sampler import Sampler
from fl_lightning.types import IntVector, Profiles, Vector

_HARDLY = 1e-12  # of who is never among the first, but a candidate all the same


class FastestCandidates(Sampler):
    r"""Takes of d random candidates the K that a round takes least time (FedCS).

    .. math:: \mathrm{E}[n_m] = \frac{d}{M} P(\mathrm{Hyp}(M - 1, f_m, d - 1) < K), \qquad f_m = |\{j: t_j < t_m\}|

    The paper adds clients as long as they are done before a deadline, the one that needs least more time first; who has
    no chance to meet the clock's ``deadline`` is not drawn here, and uploads go side by side, so that the fastest are
    those. The selected are averaged as they are: the weights drop out and slow clients, too. Read from the abstract.

    Args:
        num_candidates: d; twice K by default, and all who can be drawn where they are fewer.
    """

    traits = SamplerTraits(needs_seconds=True)
    drawing = None  # the fastest of a random choice

    def __init__(self, num_candidates: int | None = None) -> None:
        if num_candidates is not None and num_candidates < 1:
            raise ValueError(f"num_candidates={num_candidates} must be at least 1")
        self.num_candidates = num_candidates

    def _number(self, num_draws: int, num_there: int) -> int:
        return min(max(num_draws, self.num_candidates or 2 * num_draws), num_there)

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        from scipy.stats import hypergeom  # imported here: it takes long, and few runs need it

        there = np.flatnonzero(profiles.weights > 0)
        number, times = self._number(num_draws, len(there)), profiles.seconds[there]
        faster = np.arange(len(there))
        chances = np.maximum(hypergeom.cdf(num_draws - 1, max(1, len(there) - 1), faster, number - 1), _HARDLY)
        order = np.argsort(times, kind="stable")
        starts = np.unique(times[order], return_index=True)[1]
        alike = np.repeat(np.arange(len(starts)), np.diff([*starts, len(there)]))  # who takes as long shares evenly
        probabilities = np.zeros(profiles.num_clients)
        probabilities[there[order]] = (np.bincount(alike, chances) / np.bincount(alike))[alike]
        return probabilities / probabilities.sum()

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return the counts of the fastest candidates, who are those of the highest probability."""
        there = np.flatnonzero(probabilities > 0)
        candidates = rng.permutation(there)[: self._number(num_draws, len(there))]
        counts = np.zeros(len(probabilities), dtype=np.int64)
        counts[candidates[np.argsort(-probabilities[candidates], kind="stable")][:num_draws]] = 1
        return counts
