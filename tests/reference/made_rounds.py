"""Rounds made up of random numbers, and clients whose updates depend on where they start and on their shift."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fl_lightning.aggregators import Aggregator
from fl_lightning.types import Cohort, Updates
from made import made_profiles
from systems import made_plan

M, D, K = 7, 4, 5
EMPTY_ROUNDS = (1, 6, 7, 15)


@dataclass(frozen=True)
class MadeRound:
    """Everything about a round, in the letters of the equations; one entry for each client."""

    index: int
    w: np.ndarray
    q: np.ndarray
    T: np.ndarray
    A: np.ndarray
    p: np.ndarray
    c: np.ndarray  # the sampler's factor
    n: np.ndarray  # draws
    z: np.ndarray  # draws that arrived
    lr: float
    scale: float
    noise: np.ndarray  # (M, D)

    def delta(self, m: int, start: np.ndarray, shift: np.ndarray | float = 0.0) -> np.ndarray:
        """The update of a client whose optimum is m and whose curvature is 0.1 m."""
        return self.A[m] * (0.1 * m * (start - m) + shift) + self.noise[m]


def made_rounds(num_rounds: int = 20, seed: int = 0) -> Iterator[MadeRound]:
    """Yield rounds with failures, repeated draws, partly lost repeated draws, and rounds from which nothing arrives."""
    rng = np.random.default_rng(seed)
    w = rng.dirichlet(np.full(M, 2.0))
    for index in range(1, num_rounds + 1):
        p, q = rng.dirichlet(np.full(M, 2.0)), rng.uniform(0, 0.7, M)
        n = rng.multinomial(K, p)
        z = np.where(rng.random(M) < q, 0, n)
        if index == 4:
            z = rng.integers(0, n, endpoint=True)
        if index in EMPTY_ROUNDS:
            z = np.zeros(M, dtype=np.int64)
        T = rng.integers(1, 9, M)
        A = T * rng.uniform(0.5, 1.5, M)
        c = rng.uniform(0.5, 2.0, M)
        lr, scale = float(rng.uniform(0.01, 0.05)), float(rng.uniform(0.5, 2.0))
        yield MadeRound(index, w, q, T, A, p, c, n, z, lr, scale, rng.normal(size=(M, D)))


def trajectory(aggregator: Aggregator, rounds: list[MadeRound]) -> Iterator[np.ndarray]:
    """Yield the model after each round as a real aggregator makes it, in float64."""
    x = torch.linspace(-1, 1, D, dtype=torch.float64)
    aggregator.setup(M, x)
    for r in rounds:
        x = played(aggregator, r, x)
        yield x.numpy()


def played(aggregator: Aggregator, r: MadeRound, x: torch.Tensor) -> torch.Tensor:
    """Play one round and return the next model."""
    profiles, cohort = (
        made_profiles(weights=r.w, num_steps=r.T, failure_rates=r.q, accumulation=r.A),
        Cohort(probabilities=r.p, coefficients=r.c, counts=r.n, num_draws=K),
    )
    plan = made_plan(r.index, profiles, cohort, aggregator.coefficients(profiles, cohort), r.lr, r.scale)
    clients = aggregator.trains(plan, r.z)
    handout = aggregator.handout(plan)
    deltas = torch.zeros((len(clients), D), dtype=x.dtype)
    for row, m in enumerate(clients.tolist()):
        shift = handout.gradient_shift(m)
        start = handout.start(m, x).numpy()
        deltas[row] = torch.from_numpy(r.delta(m, start, 0.0 if shift is None else shift.numpy()))
    updates = Updates(
        clients=clients,
        deltas=deltas,
        buffers=torch.zeros((len(clients), 0)),
        num_steps=r.T[clients],
        losses=np.zeros(len(clients)),
    )
    return aggregator(x, updates, r.z, plan)
