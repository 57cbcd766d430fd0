"""Clustered sampling: each of the K draws has a distribution of its own, so that unlike clients come together."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.learned import LastUpdates, angles
from fl_lightning.samplers.sampler import Sampler
from fl_lightning.types import IntVector, Profiles, RoundResult, Vector

_ALL_PAIRS = 2_000  # clients up to which those that never arrived are compared as well
Segment = tuple[int, int]  # client, mass


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


class ClusteredBySimilarity(ClusteredBySize):
    """Draws one client from each of K bins of clients whose last updates point the same way (algorithm 2).

    Each bin has as much mass as the others and each client K w in all, so p = w. The angle between two clients of which
    one never arrived counts as pi/2; beyond 2,000 clients those that never arrived are clusters of their own instead.
    Takes O(n^2) memory and time in each round, for the n clients that are compared: all up to 2,000, then those who
    have arrived, and room for their vectors.
    """

    memory = ("_memory",)
    traits = SamplerTraits(learns=True, looks_at_updates=True)

    def __init__(self) -> None:
        super().__init__()
        self._memory = LastUpdates()

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        memory = self._memory
        if not len(memory):
            return super().draw(probabilities, num_draws, rng)  # nobody is like anybody yet
        if len(probabilities) <= _ALL_PAIRS:
            bins = similarity_bins(probabilities, num_draws, angles(memory.products, memory.seen))
        else:
            arrived = memory.rows.clients
            pairs = angles(memory.pairs, np.ones(len(arrived), dtype=bool))
            bins = similarity_bins(probabilities, num_draws, pairs, arrived)
        return bins.draw(len(probabilities), rng)

    @override
    def observe(self, result: RoundResult) -> None:
        self._memory.observe(result)


@dataclass(frozen=True)
class Bins:
    """K bins of equal mass; a draw takes one client from each, in proportion to its mass in it.

    Masses are whole numbers, so that no part of a client is lost to rounding: over all bins together client m has
    exactly ``K w_m`` times the mass of a bin.
    """

    bins: list[list[Segment]]
    capacity: int  # mass of a full bin

    def distributions(self, num_clients: int) -> Vector:
        """Return the probability of each client in each bin, (K, M)."""
        table = np.zeros((len(self.bins), num_clients))
        for row, segments in zip(table, self.bins, strict=True):
            for client, mass in segments:
                row[client] += mass / self.capacity
        return table

    @cached_property
    def _segments(self) -> tuple[IntVector, Vector, IntVector]:
        """Client and upper end of each segment, the bins laid end to end at 0, 1, 2, ...; and each bin's last one."""
        clients = [client for segments in self.bins for client, _ in segments]
        levels = [accumulate(mass for _, mass in segments) for segments in self.bins]
        ends = [index + level / self.capacity for index, each in enumerate(levels) for level in each]
        last = np.cumsum([len(segments) for segments in self.bins]) - 1
        return np.array(clients, dtype=np.int64), np.array(ends), last

    def draw(self, num_clients: int, rng: np.random.Generator) -> IntVector:
        """Return how often each client is drawn, one draw from each bin, (M,)."""
        clients, ends, last = self._segments
        drawn = np.searchsorted(ends, np.arange(len(self.bins)) + rng.random(len(self.bins)), side="right")
        return np.bincount(clients[np.minimum(drawn, last)], minlength=num_clients).astype(np.int64)


def size_bins(weights: Vector, num_bins: int) -> Bins:
    """Return bins filled with the clients in order of their size (clustered sampling, algorithm 1).

    A client with K w >= 1 owns whole bins; what is left of it is poured with the others, the largest first.

    >>> size_bins(np.array([0.25, 0.125, 0.625]), 2).distributions(3).tolist()
    [[0.0, 0.0, 1.0], [0.5, 0.25, 0.25]]
    """
    bins, rest, capacity = _whole_bins(weights, num_bins)
    return Bins(_poured(bins, _largest_first(rest, rest), capacity), capacity)


def similarity_bins(weights: Vector, num_bins: int, dissimilarity: Vector, compared: IntVector | None = None) -> Bins:
    """Return bins that hold clients alike (clustered sampling, algorithm 2).

    The tree of Ward's linkage is cut where it has the fewest clusters none of which is heavier than a bin; the K
    heaviest clusters get a bin each, and the clients of all others fill what room is left.

    Args:
        weights: w of all clients, (M,).
        num_bins: K.
        dissimilarity: Of each pair of the clients that are compared, (n, n).
        compared: Which clients these are, (n,); all by default. Each of the others is a cluster of its own.

    >>> pairs = np.array([[0, 3, 1, 3], [3, 0, 3, 1], [1, 3, 0, 3], [3, 1, 3, 0.0]])
    >>> similarity_bins(np.full(4, 0.25), 2, pairs).distributions(4).tolist()
    [[0.5, 0.0, 0.5, 0.0], [0.0, 0.5, 0.0, 0.5]]
    """
    bins, rest, capacity = _whole_bins(weights, num_bins)
    empty = bins.count([])
    if empty:
        members = np.arange(len(weights)) if compared is None else compared
        clusters = _clusters(rest, dissimilarity, members, capacity, empty)
        clusters.sort(key=lambda cluster: -sum(rest[client] for client in cluster))
        for segments, cluster in zip(bins[num_bins - empty :], clusters, strict=False):
            segments.extend((client, rest[client]) for client in cluster)
        left = [segment for cluster in clusters[empty:] for segment in _largest_first(cluster, rest)]
        bins = _poured(bins, left, capacity)
    return Bins(bins, capacity)


def _clusters(
    rest: dict[int, int], dissimilarity: Vector, compared: IntVector, max_mass: int, min_clusters: int
) -> list[list[int]]:
    """Return clusters of all clients that have mass left: of those that are compared, and each of the others alone."""
    places = np.argsort(compared, kind="stable")
    places = places[np.isin(compared[places], list(rest))]
    members = compared[places].tolist()
    alone = [[client] for client in sorted(set(rest) - set(members))]
    if len(members) < 2:
        return [[client] for client in sorted(rest)]
    tree = ward_tree(dissimilarity[np.ix_(places, places)])
    masses = [rest[client] for client in members]
    found = cut_tree(tree, masses, max_mass, max(1, min_clusters - len(alone)))
    return [[members[row] for row in cluster] for cluster in found] + alone


def ward_tree(dissimilarity: Vector) -> npt.NDArray[np.float64]:
    """Return the merges of Ward's agglomerative clustering, as scipy writes them, (M - 1, 4)."""
    from scipy.cluster.hierarchy import linkage  # imported here: few samplers need it
    from scipy.spatial.distance import squareform

    tree: npt.NDArray[np.float64] = linkage(squareform(dissimilarity, checks=False), "ward")
    return tree


def cut_tree(tree: npt.NDArray[np.float64], masses: list[int], max_mass: int, min_clusters: int) -> list[list[int]]:
    """Return the clusters of the coarsest cut with no mass above ``max_mass`` and no fewer than ``min_clusters``.

    >>> cut_tree(np.array([[0, 1, 1.0, 2], [2, 3, 2.0, 3]]), [1, 1, 1], 2, 1)
    [[2], [0, 1]]
    """
    clusters = {index: [index] for index in range(len(masses))}
    mass = dict(enumerate(masses))
    for merge, (left, right) in enumerate(tree[:, :2].astype(int).tolist()):
        total = mass[left] + mass[right]
        if len(clusters) <= min_clusters or total > max_mass:
            break
        clusters[len(masses) + merge] = sorted(clusters.pop(left) + clusters.pop(right))
        mass[len(masses) + merge] = total
    return list(clusters.values())


def _whole_bins(weights: Vector, num_bins: int) -> tuple[list[list[Segment]], dict[int, int], int]:
    """Give whole bins to clients with K w >= 1; return all K bins, what is left of each client, a bin's capacity."""
    masses = _exact_masses(weights)
    capacity = sum(masses)  # of K times as much mass, each bin takes this
    bins: list[list[Segment]] = []
    rest: dict[int, int] = {}
    for client, mass in enumerate(masses):
        whole, left = divmod(num_bins * mass, capacity)
        bins.extend([(client, capacity)] for _ in range(whole))
        if left:
            rest[client] = left
    bins.extend([] for _ in range(num_bins - len(bins)))
    return bins, rest, capacity


def _exact_masses(weights: Vector) -> list[int]:
    """Return whole numbers in exactly the proportion of the weights.

    >>> _exact_masses(np.array([0.25, 0.5, 3.0]))
    [1, 2, 12]
    """
    ratios = [float(weight).as_integer_ratio() for weight in weights]
    common = max(denominator for _, denominator in ratios)  # all are powers of two
    return [numerator * (common // denominator) for numerator, denominator in ratios]


def _largest_first(clients: Iterable[int], masses: dict[int, int]) -> list[Segment]:
    return [(client, masses[client]) for client in sorted(clients, key=lambda client: (-masses[client], client))]


def _poured(bins: list[list[Segment]], segments: list[Segment], capacity: int) -> list[list[Segment]]:
    """Return the bins after the segments have filled what room is left, one bin after another."""
    filled = [list(content) for content in bins]
    rooms = [capacity - sum(mass for _, mass in content) for content in filled]
    index = 0
    for client, amount in segments:
        left = amount
        while left:
            while not rooms[index]:
                index += 1
            part = min(left, rooms[index])
            filled[index].append((client, part))
            rooms[index] -= part
            left -= part
    return filled
