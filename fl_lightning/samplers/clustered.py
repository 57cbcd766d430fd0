"""Clustered sampling: each of the K draws has a distribution of its own, so that unlike clients come together."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.base import Sampler
from fl_lightning.samplers.bins import Bins, similarity_bins, size_bins
from fl_lightning.samplers.learned import LastUpdates, angles, delivered_gradients
from fl_lightning.types import IntVector, Profiles, RoundResult, Vector

_ALL_PAIRS = 2_000  # clients up to which those that never arrived are compared as well


class ClusteredBySize(Sampler):
    r"""Draws one client from each of K bins that are filled in order of size (clustered sampling, algorithm 1).

    .. math:: \sum_{k=1}^{K} r_{k,m} = K w_m, \qquad \sum_m r_{k,m} = 1

    So p = w as in FedAvg, with counts that vary less.
    """

    drawing = None  # a client of each bin

    def __init__(self) -> None:
        self._known: tuple[bytes, int, Bins] | None = None  # weights do not change from round to round

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        return profiles.weights

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        key = probabilities.tobytes()
        if self._known is None or self._known[:2] != (key, num_draws):
            self._known = (key, num_draws, size_bins(probabilities, num_draws))
        return self._known[2].draw(len(probabilities), rng)


class ClusteredBySimilarity(Sampler):
    """Draws one client from each of K bins of clients whose last updates point the same way (algorithm 2).

    Each bin has as much mass as the others and each client K w in all, so p = w. The angle between two clients of which
    one never arrived counts as pi/2; beyond 2,000 clients those that never arrived are clusters of their own instead.
    Takes O(n^2) memory and time in each round, for the n clients that are compared: all up to 2,000, then those who
    have arrived, and room for their vectors.
    """

    memory = ("_memory",)
    traits = SamplerTraits(learns=True, looks_at_updates=True)
    drawing = None  # a client of each bin

    def __init__(self) -> None:
        self._memory = LastUpdates()

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        return profiles.weights

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        memory = self._memory
        if not len(memory):
            bins = size_bins(probabilities, num_draws)  # nobody is like anybody yet
        elif len(probabilities) <= _ALL_PAIRS:
            bins = similarity_bins(probabilities, num_draws, angles(memory.products, memory.seen))
        else:
            arrived = memory.rows.clients
            pairs = angles(memory.pairs, np.ones(len(arrived), dtype=bool))
            bins = similarity_bins(probabilities, num_draws, pairs, arrived)
        return bins.draw(len(probabilities), rng)

    @override
    def observe(self, result: RoundResult) -> None:
        clients, gradients = delivered_gradients(result)
        self._memory.store(result.plan.profiles.num_clients, clients, gradients)
