"""DivFL: K clients that stand for all others."""

from typing import Literal

import numpy as np
from typing_extensions import override

from fl_lightning.parts.protocols import Probe
from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.learned import LastUpdates, distances
from fl_lightning.samplers.sampler import SelectsByRule, among, unbiased_coefficients
from fl_lightning.theory.checks import one_of
from fl_lightning.types import BoolVector, IntVector, Profiles, RoundResult, Vector

Weights = Literal["cluster", "samples"]
Refresh = Literal["delivered", "all"]


def greedy_representatives(
    dissimilarity: Vector,
    num_selected: int,
    candidates: int | None = None,
    rng: np.random.Generator | None = None,
    absent: BoolVector | None = None,
) -> IntVector:
    r"""Return the clients that greedily minimise the facility-location objective, in the order of their choice, (K,).

    .. math:: G(S) = \sum_k \min_{i \in S} \lVert g_k - g_i \rVert, \qquad |S| = K

    Args:
        dissimilarity: Distance of each pair, (M, M).
        num_selected: K.
        candidates: Stochastic greedy: how many randomly chosen clients each step examines; all by default.
        rng: Chooses them.
        absent: Clients that cannot be selected; nobody by default.

    >>> line = np.array([0.0, 1.0, 2.0, 10.0])
    >>> greedy_representatives(np.abs(line[:, None] - line[None, :]), 2).tolist()
    [1, 3]
    """
    num_clients = len(dissimilarity)
    nearest = np.full(num_clients, np.inf)
    open_clients = np.ones(num_clients, dtype=bool) if absent is None else ~absent
    selected: list[int] = []
    for _ in range(num_selected):
        examined = np.flatnonzero(open_clients)
        if candidates is not None and rng is not None and candidates < len(examined):
            examined = np.sort(rng.choice(examined, candidates, replace=False))
        objective = np.minimum(nearest[:, None], dissimilarity[:, examined]).sum(axis=0)
        best = int(examined[np.argmin(objective)])
        selected.append(best)
        open_clients[best] = False
        nearest = np.minimum(nearest, dissimilarity[:, best])
    return np.array(selected, dtype=np.int64)


class SubmodularSelection(SelectsByRule):
    """Selects the K clients whose gradients stand best for those of all (DivFL).

    No chance is involved, apart from stochastic greedy, and no claim of unbiasedness is made: clients near many others
    are selected again and again. In the first round all clients are asked for a gradient, which is charged.

    Args:
        weights: ``cluster``: a client enters with the weight of all clients that it is the nearest to, as the theory
            has it. ``samples``: with its own share of the selected clients' weight, as the published code has it.
        refresh: ``delivered``: only gradients that arrive are renewed, without overhead. ``all``: every client is asked
            in every round, which is charged.
        candidates: Share of the clients that each greedy step examines, at least K of them; 1 examines all.
    """

    memory = ("_memory",)
    traits = SamplerTraits(asks="vectors", learns=True, looks_at_updates=True, scope="none")

    def __init__(self, weights: Weights = "cluster", refresh: Refresh = "delivered", candidates: float = 1.0) -> None:
        one_of("weights", weights, Weights)
        one_of("refresh", refresh, Refresh)
        if not 0 < candidates <= 1:
            raise ValueError(f"candidates={candidates} must be a share of the clients, above 0 and at most 1")
        self.weights = weights
        self.refresh = refresh
        self.candidates = candidates
        self._memory = LastUpdates()
        self._shares: Vector = np.empty(0)  # with which each client enters, summing to 1, (M,)

    @override
    def prepare(self, profiles: Profiles, num_draws: int, probe: Probe, rng: np.random.Generator) -> None:
        num_clients = profiles.num_clients
        if num_draws > num_clients:
            raise ValueError(f"{num_draws} distinct clients were asked for, but there are {num_clients}")
        if self.refresh == "all" or not len(self._memory):
            everybody = np.arange(num_clients)
            self._memory.store(num_clients, everybody, probe.gradients(everybody))
        apart = distances(self._memory.products)
        absent = None if profiles.available is None else profiles.weights == 0
        examined = None if self.candidates == 1 else max(num_draws, round(self.candidates * num_clients))
        self.selected = np.sort(greedy_representatives(apart, num_draws, examined, rng, absent))
        if self.weights == "cluster":
            nearest = self.selected[np.argmin(apart[:, self.selected], axis=1)]
            self._shares = np.bincount(nearest, profiles.weights, num_clients).astype(np.float64)
        else:
            self._shares = among(profiles.weights, np.isin(np.arange(num_clients), self.selected))

    @override
    def probabilities(self, profiles: Profiles, num_draws: int) -> Vector:
        """Return 1/K for each selected client; before the first selection everybody is as likely."""
        if not len(self.selected):
            return np.full(profiles.num_clients, 1 / profiles.num_clients)
        return super().probabilities(profiles, num_draws)

    @override
    def coefficients(self, profiles: Profiles, probabilities: Vector) -> Vector:
        """Return the factors by which the selected clients enter with their shares."""
        return unbiased_coefficients(self._shares if len(self.selected) else profiles.weights, probabilities)

    @override
    def observe(self, result: RoundResult) -> None:
        self._memory.observe(result)
