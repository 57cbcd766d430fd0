"""HiCS-FL: clusters of clients whose labels look alike, the balanced ones first."""

import numpy as np
from typing_extensions import override

from fl_lightning.parts.memory import State
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.clustered import cut_tree, similarity_bins, ward_tree
from fl_lightning.samplers.learned import LastUpdates, angles, delivered_gradients
from fl_lightning.samplers.sampler import Sampler
from fl_lightning.types import IntVector, Profiles, RoundResult, Vector

_PUBLISHED_ROUNDS = 500
_AUTOMATIC_SPREAD = 5.0  # largest entry of a typical client's vector, in temperatures


def label_entropies(class_moves: Vector, temperature: float | None = None) -> Vector:
    r"""Return how balanced the labels of each client look, from 0 to log C, (M,).

    .. math:: H_m = -\sum_c \pi_c \log \pi_c, \qquad \pi = \mathrm{softmax}(b_m / \tau)

    Args:
        class_moves: b, how far each client moved the output of each class, (M, C).
        temperature: tau; by default such that the largest entry of the median client is 5, because the published 0.001
            suits the step size of Adam alone.

    >>> label_entropies(np.array([[1.0, 1.0], [9.0, 0.0]]), 1.0).round(3).tolist()
    [0.693, 0.001]
    """
    if temperature is None:
        typical = float(np.median(np.abs(class_moves).max(axis=1)))
        temperature = typical / _AUTOMATIC_SPREAD if typical > 0 else 1.0
    scaled = class_moves / temperature
    logits = scaled - scaled.max(axis=1, keepdims=True)
    log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -(np.exp(log_shares) * log_shares).sum(axis=1)


def capped_shares(shares: Vector, caps: Vector, total: float) -> Vector:
    """Return amounts in proportion to the shares that add up to ``total``, none above its cap.

    >>> capped_shares(np.array([0.8, 0.1, 0.1]), np.array([1.0, 5.0, 5.0]), 3.0).tolist()
    [1.0, 1.0, 1.0]
    """
    amounts = np.zeros_like(shares)
    full = np.zeros(len(shares), dtype=bool)
    while True:
        left = total - caps[full].sum()
        amounts = np.where(full, caps, left * shares / max(float(shares[~full].sum()), 1e-300))
        over = ~full & (amounts > caps * (1 + 1e-12))
        if not over.any():
            return np.minimum(amounts, caps)
        full |= over


class EntropyClusters(Sampler):
    r"""Draws from clusters of similar clients, early on those with balanced labels (HiCS-FL).

    What a client's update does to the output layer shows its labels. Clients are clustered (Ward) by

    .. math:: \arccos \cos(b_m, b_j) + \lambda |H_m - H_j|, \qquad P(\text{cluster}) \propto e^{\gamma_t \bar H},
        \quad \gamma_t = \gamma (1 - t/R)

    and each cluster gets its share of the K draws, but no more than it has clients; they are taken at random, without
    replacement. The draws are systematic over the clusters, so that E[n] = K p is known. The selected are averaged as
    they are: no claim of unbiasedness is made. In the first ceil(M/K) rounds all clients take their turn.

    Args:
        num_classes: C.
        output_size: How many entries at the end of the model's parameters belong to its output layer, weights (C rows)
            and bias; by default only the bias, the last C entries.
        has_bias: Whether the output layer ends with a bias; without one the row means of its weights are b.
        temperature: Of the softmax; None adapts it to the size of the updates.
        distance_weight: lambda.
        gamma: Preference for balanced clients in the first round.
        num_rounds: R, after which all clusters are alike; by default the rounds of the run.
        num_clusters: K by default.
        entropy_variance_threshold: From this variance of H on, bins by similarity are used instead, with p = w
            (:class:`ClusteredBySimilarity`), as the published code does.
    """

    traits = SamplerTraits(learns=True, looks_at_updates=True, scope="none")
    drawing = None  # over the clusters
    memory = ("_memory", "_finished")

    def __init__(
        self,
        num_classes: int = 10,
        output_size: int | None = None,
        has_bias: bool = True,
        temperature: float | None = None,
        distance_weight: float = 10.0,
        gamma: float = 4.0,
        num_rounds: int | None = None,
        num_clusters: int | None = None,
        entropy_variance_threshold: float = 0.1,
    ) -> None:
        size = num_classes if output_size is None else output_size
        if num_classes < 2 or size < num_classes or size % num_classes or (output_size is None and not has_bias):
            raise ValueError(
                f"output_size={output_size} must be a multiple of num_classes={num_classes} (2 or more), "
                "and must be given where there is no bias"
            )
        if temperature is not None and not temperature > 0:
            raise ValueError(f"temperature={temperature} must be positive")
        if (num_rounds is not None and num_rounds < 1) or (num_clusters is not None and num_clusters < 1):
            raise ValueError(f"num_rounds={num_rounds} and num_clusters={num_clusters} must be at least 1")
        self.num_classes = num_classes
        self.output_size = size
        self.has_bias = has_bias
        self.temperature = temperature
        self.distance_weight = distance_weight
        self.gamma = gamma
        self.num_rounds = num_rounds
        self.num_clusters = num_clusters
        self.entropy_variance_threshold = entropy_variance_threshold
        self._memory = LastUpdates()
        self._finished = 0  # rounds
        self._clusters: IntVector | None = None  # of each client, until something new arrives

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return the turn of the warm-up, the shares of the clusters, or w where similarity decides."""
        num_clients = profiles.num_clients
        if num_draws > num_clients:
            raise ValueError(f"{num_draws} distinct clients were asked for, but there are {num_clients}")
        if self._warms_up(num_clients, num_draws):
            turn = np.zeros(num_clients)
            turn[(self._finished * num_draws + np.arange(num_draws)) % num_clients] = 1 / num_draws
            return turn
        if not len(self._memory):
            return np.full(num_clients, 1 / num_clients)
        entropies = self._entropies()
        if self._similarity_decides(entropies):
            return profiles.weights
        clusters = self._clustered(entropies, num_draws)
        sizes = np.bincount(clusters).astype(np.float64)
        num_rounds = self.num_rounds or self.run_length or _PUBLISHED_ROUNDS
        gamma = self.gamma * max(0.0, 1 - self._finished / num_rounds)
        preference = gamma * np.bincount(clusters, weights=entropies) / sizes
        amounts = capped_shares(np.exp(preference - preference.max()), sizes, float(num_draws))
        return (amounts / sizes)[clusters] / num_draws

    @override
    def draw(self, probabilities: Vector, num_draws: int, rng: np.random.Generator) -> IntVector:
        """Return counts of 0 and 1, spread over the clusters; several draws of one client where similarity decides."""
        num_clients = len(probabilities)
        if not self._warms_up(num_clients, num_draws) and len(self._memory):
            entropies = self._entropies()
            if self._similarity_decides(entropies):
                apart = angles(self._memory.products, self._memory.seen)
                return similarity_bins(probabilities, num_draws, apart).draw(num_clients, rng)
            clusters = self._clustered(entropies, num_draws)
        else:
            clusters = np.zeros(num_clients, dtype=np.int64)
        ranks = rng.permutation(int(clusters.max()) + 1)[clusters]
        order = np.lexsort((rng.random(num_clients), ranks))
        levels = np.cumsum(num_draws * probabilities[order])
        drawn = np.searchsorted(levels, rng.random() * levels[-1] / num_draws + np.arange(num_draws), side="right")
        counts = np.zeros(num_clients, dtype=np.int64)
        counts[order[np.minimum(drawn, np.flatnonzero(probabilities[order])[-1])]] = 1
        return counts

    def _warms_up(self, num_clients: int, num_draws: int) -> bool:
        return self._finished * num_draws < num_clients

    def _entropies(self) -> Vector:
        """Return H of each client; one that never arrived counts as average."""
        rows = self._memory.rows.dense().cpu().double().numpy()
        if self.has_bias:
            moves = rows[:, -self.num_classes :]
        else:
            moves = rows.reshape(len(rows), self.num_classes, -1).mean(axis=2)
        seen = self._memory.seen
        known = label_entropies(moves[seen], self.temperature)
        entropies = np.full(len(rows), known.mean())
        entropies[seen] = known
        return entropies

    def _similarity_decides(self, entropies: Vector) -> bool:
        return float(entropies.var()) >= self.entropy_variance_threshold

    def _clustered(self, entropies: Vector, num_draws: int) -> IntVector:
        """Return the cluster of each client, (M,)."""
        if self._clusters is None:
            apart = angles(self._memory.products, self._memory.seen)
            apart = apart + self.distance_weight * np.abs(entropies[:, None] - entropies[None, :])
            num_clusters = min(num_draws if self.num_clusters is None else self.num_clusters, len(entropies))
            self._clusters = np.zeros(len(apart), dtype=np.int64)
            if len(apart) > 1:
                found = cut_tree(ward_tree(apart), [0] * len(apart), 0, num_clusters)
                for number, members in enumerate(found):
                    self._clusters[members] = number
        return self._clusters

    @override
    def observe(self, result: RoundResult) -> None:
        clients, gradients = delivered_gradients(result)
        if gradients.shape[1] < self.output_size:
            raise ValueError(f"output_size={self.output_size}, but the model has only {gradients.shape[1]} parameters")
        moves = -gradients[:, -self.output_size :]  # a client moves against its gradient
        self._memory.store(result.plan.profiles.num_clients, clients, moves)
        self._finished = result.plan.index
        self._clusters = None

    @override
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._clusters = None
