r"""The toy of the paper, simulated over many seeds at once.

A client with the loss :math:`\tfrac12 \lVert x - e_m \rVert^2` answers exactly linearly: T local steps carry it the
share B of the way to :math:`e_m`. So a round needs no training, only the real schedule, sampler, calibration and
channel:

.. math:: X \leftarrow X + \sum_m s\, \frac{n_m Z_m c_m}{K} B_m (e_m - X)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fl_lightning import theory
from fl_lightning.planning import Planner
from fl_lightning.seeding import Purpose, generator
from fl_lightning.solvers import SGD, Solver
from fl_lightning.types import Cohort, Conditions, IntVector, RoundPlan, Vector


@dataclass(frozen=True)
class Curves:
    """Distances to the true optimum, (seeds, rounds)."""

    label: str
    distance: Vector  # of the model of each round
    average: Vector  # of the running average of the models so far


def simulate(
    planners: Mapping[str, Planner], targets: Vector, seeds: Sequence[int], rounds: int, start: float = 0.0
) -> list[Curves]:
    """Play all algorithms over all seeds, round by round, under the same random streams as the federated loop.

    Args:
        planners: What to compare, by its label; they share conditions, draws and links where their probabilities agree.
        targets: e, the optimum of each client under each seed, (seeds, M, d).
        seeds: Of the random streams.
        rounds: R.
        start: Value of each coordinate at the beginning.
    """
    players = [_Player(planner) for planner in planners.values()]
    weights = players[0].weights
    points = np.full((len(players), len(seeds), targets.shape[2]), start)
    optimum = np.einsum("m,smd->sd", weights, targets)
    sums = np.zeros_like(points)
    distance = np.empty((rounds, len(players), len(seeds)))
    average = np.empty_like(distance)
    for index in range(1, rounds + 1):
        factors = np.stack([_factors(players, index, seed) for seed in seeds], axis=1)  # (algorithms, seeds, M)
        points = points + np.einsum("vsm,smd->vsd", factors, targets) - factors.sum(axis=2)[..., None] * points
        sums += points
        distance[index - 1] = np.linalg.norm(points - optimum, axis=2)
        average[index - 1] = np.linalg.norm(sums / index - optimum, axis=2)
    return [Curves(label, distance[:, i].T.copy(), average[:, i].T.copy()) for i, label in enumerate(planners)]


def _factors(players: "Sequence[_Player]", index: int, seed: int) -> Vector:
    """Return n Z c s B / K of every algorithm and client in one round under one seed, (algorithms, M)."""
    drawn: dict[bytes, Cohort] = {}
    arrived: dict[tuple[int, bytes], IntVector] = {}
    conditions: dict[tuple[int, int | None], Conditions] = {}
    rows = []
    for player in players:
        system = player.system
        asked = (id(system.schedule), player.step_limit)
        if asked not in conditions:
            conditions[asked] = player.conditions(index, seed)
        known = player.undrawn(conditions[asked])
        if known.key not in drawn:
            drawn[known.key] = player.draw(known.plan.cohort, index, seed)
        cohort = drawn[known.key]
        link = (id(system.channel), known.key + known.plan.profiles.failure_rates.tobytes())
        if link not in arrived:
            plan = replace(known.plan, index=index, cohort=cohort)
            arrived[link] = system.channel.configure_delivery(plan, seed)
        rows.append(arrived[link] * known.gain)
    return np.stack(rows)


@dataclass(frozen=True)
class Undrawn:
    """A round before chance enters."""

    plan: RoundPlan
    gain: Vector  # s c B / K, what one delivered draw does, (M,)
    key: bytes  # equal for equal ways of drawing


class _Player:
    """Plans rounds of one algorithm as the loop does, and remembers what was worked out while conditions stay."""

    def __init__(self, planner: Planner) -> None:
        self.system, self.weights = planner.system, planner.weights
        self.step_limit = planner.step_limit  # found once, not for each seed
        self._planner = replace(planner, algorithm=replace(planner.algorithm, max_local_steps=self.step_limit))
        self._conditions: Conditions | None = None
        self._known: tuple[Conditions, Undrawn] | None = None
        self._gains: tuple[float, Vector] = (float("nan"), np.empty(0))
        self._planner.start()

    def conditions(self, index: int, seed: int) -> Conditions:
        """Return T and q; the very same object while they stay the same, so that nobody has to compare them again."""
        new = replace(self._planner, seed=seed).conditions(index)
        if self._conditions is None or not _equal(self._conditions, new):
            self._conditions = new
        return self._conditions

    def undrawn(self, conditions: Conditions) -> Undrawn:
        """Return what a round under these conditions does."""
        known = self._known
        if known is None or not _equal(known[0], conditions):
            known = self._known = (conditions, self._undrawn(conditions))
        return known[1]

    def _undrawn(self, conditions: Conditions) -> Undrawn:
        planner = self._planner
        plan = planner.calibrated(planner.undrawn(planner.profiles(conditions)))
        gain = plan.server_scale * plan.coefficients / plan.cohort.num_draws * self._gain(plan)
        return Undrawn(plan, gain, plan.cohort.probabilities.tobytes())

    def _gain(self, plan: RoundPlan) -> Vector:
        """Return B for each client, from a table that lasts as long as the learning rate."""
        steps, lr = plan.profiles.num_steps, plan.learning_rate
        longest = int(steps.max())
        if self._gains[0] != lr or len(self._gains[1]) <= longest:
            table = theory.toy_gain(np.arange(1, longest + 1), local_step(self._planner.algorithm.solver, lr))
            self._gains = (lr, np.concatenate([[0.0], table]))
        return self._gains[1][steps]

    def draw(self, expected: Cohort, index: int, seed: int) -> Cohort:
        """Return who is drawn."""
        rng = generator(seed, Purpose.SAMPLING, index)
        return self._planner.algorithm.sampling.configure_cohort(expected, rng)


def _equal(first: Conditions, second: Conditions) -> bool:
    return first is second or (
        np.array_equal(first.num_steps, second.num_steps) and np.array_equal(first.failure_rates, second.failure_rates)
    )


def local_step(solver: Solver, lr: float) -> theory.LocalStep:
    """Return the solver's step as the theory takes it."""
    if not isinstance(solver, SGD) or (solver.decay and solver.decay_form != "exponential") or solver.weight_decay:
        raise ValueError("the toy is simulated for SGD without weight decay, its decay exponential: use such a solver")
    return theory.sgd_step(
        lr, solver.momentum, solver.dampening, solver.nesterov, solver.proximal, decay=1 - solver.decay
    )


@dataclass(frozen=True)
class Plateau:
    """Where an algorithm ends, according to the theory, under each seed."""

    bias: Vector  # distance of the point of convergence from the true optimum, (seeds,)
    distance: Vector  # root mean square distance of the model from it: bias and noise together, (seeds,)


def predict(planner: Planner, targets: Vector, num_rounds: int = 400) -> Plateau:
    r"""Return the plateau of the models and of their average.

    With :math:`g_m` the factor of client m in a round and :math:`G = \sum_m g_m`, the mean converges to
    :math:`\tilde x = \sum_m E[g_m] e_m / E[G]`, and for rounds that are independent of each other

    .. math:: E \lVert X - \tilde x \rVert^2 = \frac{E \lVert \sum_m g_m (e_m - \tilde x) \rVert^2}{2 E[G] - E[G^2]}

    exactly. The moments are those of draws with replacement whose repetitions share a link; where conditions vary from
    round to round they are averaged over ``num_rounds`` of them.
    """
    player = _Player(planner)
    rounds: dict[int, Undrawn] = {}
    for index in range(1, num_rounds + 1):
        known = player.undrawn(player.conditions(index, 0x5EED))
        rounds[id(known)] = known
    moments = [_moments(each) for each in rounds.values()]
    first = np.mean([each[0] for each in moments], axis=0)
    second = np.mean([each[1] for each in moments], axis=0)
    point = np.einsum("m,smd->sd", first / first.sum(), targets)
    away = targets - point[:, None]
    noise = np.einsum("smd,mn,snd->s", away, second, away) / (2 * first.sum() - second.sum())
    bias = np.linalg.norm(point - np.einsum("m,smd->sd", planner.weights, targets), axis=1)
    return Plateau(bias, np.sqrt(bias**2 + noise))


def _moments(known: Undrawn) -> tuple[Vector, Vector]:
    """Return E[g], (M,), and E[g g'], (M, M)."""
    p, num_draws = known.plan.cohort.probabilities, known.plan.cohort.num_draws
    delivered = 1 - known.plan.profiles.failure_rates
    first = num_draws * p * delivered * known.gain
    second = num_draws * (num_draws - 1) / num_draws**2 * np.outer(first, first)
    diagonal = (num_draws * p + num_draws * (num_draws - 1) * p**2) * delivered * known.gain**2
    np.fill_diagonal(second, diagonal)
    return first, second
