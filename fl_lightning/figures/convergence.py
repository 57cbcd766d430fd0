r"""The toy of the paper, simulated over many seeds at once, and drawn: distance to the true optimum against rounds.

A client with the loss :math:`\tfrac12 \lVert x - e_m \rVert^2` answers exactly linearly: T local steps carry it the
share B of the way to :math:`e_m`. So a round needs no training, only the real schedule, sampler, calibration and
channel:

.. math:: X \leftarrow X + \sum_m s\, \frac{n_m Z_m c_m}{K} B_m (e_m - X)
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning import theory
from fl_lightning.figures.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RULE, YELLOW, apart, bare, blank
from fl_lightning.planning import Planner
from fl_lightning.seeding import Purpose, generator
from fl_lightning.solvers import SGD, Solver
from fl_lightning.types import Cohort, Conditions, IntVector, RoundPlan, Vector

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (ORANGE, YELLOW, PURPLE, GREEN)
_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_POINTS = 240  # shown of each curve


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
    points = np.full((len(players), len(seeds), targets.shape[2]), start)
    optimum = np.einsum("m,smd->sd", players[0].weights, targets)
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
            rng = generator(seed, Purpose.SAMPLING, index)
            drawn[known.key] = player.algorithm.sampling.configure_cohort(known.plan.cohort, rng)
        link = (id(system.channel), known.key + known.plan.profiles.failure_rates.tobytes())
        if link not in arrived:
            plan = replace(known.plan, index=index, cohort=drawn[known.key])
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
        self.algorithm = replace(planner.algorithm, max_local_steps=self.step_limit)
        self._planner = replace(planner, algorithm=self.algorithm)
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
        if self._known is None or not _equal(self._known[0], conditions):
            planner = self._planner
            plan = planner.calibrated(planner.undrawn(planner.profiles(conditions)))
            gain = plan.server_scale * plan.coefficients / plan.cohort.num_draws * self._gain(plan)
            self._known = (conditions, Undrawn(plan, gain, plan.cohort.probabilities.tobytes()))
        return self._known[1]

    def _gain(self, plan: RoundPlan) -> Vector:
        """Return B for each client, from a table that lasts as long as the learning rate."""
        steps, lr = plan.profiles.num_steps, plan.learning_rate
        longest = int(steps.max())
        if self._gains[0] != lr or len(self._gains[1]) <= longest:
            table = theory.toy_gain(np.arange(1, longest + 1), _local_step(self.algorithm.solver, lr))
            self._gains = (lr, np.concatenate([[0.0], table]))
        return self._gains[1][steps]


def _equal(first: Conditions, second: Conditions) -> bool:
    return first is second or (
        np.array_equal(first.num_steps, second.num_steps) and np.array_equal(first.failure_rates, second.failure_rates)
    )


def _local_step(solver: Solver, lr: float) -> theory.LocalStep:
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
    known = [player.undrawn(player.conditions(index, 0x5EED)) for index in range(1, num_rounds + 1)]
    moments = [_moments(each) for each in {id(each): each for each in known}.values()]
    first, second = (np.mean(each, axis=0) for each in zip(*moments, strict=True))
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


def convergence_figure(title: str, curves: Sequence[Curves], plateaus: Sequence[Plateau]) -> "Figure":
    """Draw mean and spread (10th to 90th percentile) over the seeds; dashed where the theory says that a curve ends.

    The last curve is the remedy, drawn strongest.
    """
    figure = blank(11.5, 4.6)
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, color=INK, fontweight="bold")
    limits = _limits(curves, plateaus)
    labels = [curve.label for curve in curves]
    means = [float(curve.distance[:, -max(1, curve.distance.shape[1] // 10) :].mean()) for curve in curves]
    _draw(left, labels, [curve.distance for curve in curves], [each.distance for each in plateaus], means, limits)
    left.set_title("the model of each round", loc="left", fontsize=10, color=INK)
    means = [float(curve.average[:, -1].mean()) for curve in curves]
    _draw(right, labels, [curve.average for curve in curves], [each.bias for each in plateaus], means, limits)
    right.set_title("the average of all models so far", loc="left", fontsize=10, color=INK)
    left.annotate(
        "line: mean over the seeds   band: 10th to 90th percentile   dashes: where the theory says it ends",
        (0.0, 0.012),
        xycoords="axes fraction",
        fontsize=7.5,
        color=MUTED,
    )
    left.set_ylabel("distance to the true optimum", color=MUTED, fontsize=9)
    return figure


def _shown_rounds(values: Vector) -> IntVector:
    """Return the rounds that are shown of curves, (seeds, rounds): evenly on a logarithmic axis, first and last too."""
    return np.unique(np.rint(np.geomspace(1, values.shape[1], _POINTS)).astype(np.int64))


def _draw(
    axes: "Axes",
    labels: Sequence[str],
    curves: Sequence[Vector],
    ends: Sequence[Vector],
    means: Sequence[float],
    limits: tuple[float, float],
) -> None:
    """Draw a half of the figure; each curve's name and mean at the end stand beside it, pushed apart."""
    rounds = _shown_rounds(curves[0])
    decades = math.log10(limits[1] / limits[0])
    places = apart([math.log10(mean) for mean in means], 0.052 * decades)
    for place, (label, curve, end, mean) in enumerate(zip(labels, curves, ends, means, strict=True)):
        remedy = place == len(curves) - 1
        colour = BLUE if remedy else _COLOURS[place % len(_COLOURS)]
        values = curve[:, rounds - 1]
        low, high = np.percentile(values, [10, 90], axis=0)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.18 if remedy else 0.06, linewidth=0)
        axes.plot(rounds, values.mean(axis=0), color=colour, linewidth=2.4 if remedy else 1.5, zorder=2 + remedy)
        axes.hlines(end.mean(), rounds[-1] / 8, rounds[-1], color=INK, linestyle=(0, (2, 2)), linewidth=1.0, zorder=5)
        axes.annotate(
            f"{label}  {mean:.2g}",
            (1.012, 10 ** places[place]),
            xycoords=("axes fraction", "data"),
            color=colour,
            fontsize=8.5,
            va="center",
            fontweight="bold" if remedy else "normal",
            annotation_clip=False,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, rounds[-1])
    axes.set_xlabel("round", color=MUTED, fontsize=9)
    axes.grid(axis="y", color=RULE, linewidth=0.5, alpha=0.7)
    bare(axes)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.set_ylim(*limits)


def _limits(curves: Sequence[Curves], plateaus: Sequence[Plateau]) -> tuple[float, float]:
    """Return the range of distances that both halves share; a predicted end far below all curves is left out."""
    shown = [each[:, _shown_rounds(each) - 1] for curve in curves for each in (curve.distance, curve.average)]
    low = min(float(np.percentile(values, 10, axis=0).min()) for values in shown)
    ends = [float(plateau.bias.mean()) for plateau in plateaus if plateau.bias.mean() > low / 5]
    return 0.75 * min([low, *ends]), 1.15 * max(float(values.max()) for values in shown)


def write_csv(path: Path, curves: Sequence[Curves], plateaus: Sequence[Plateau]) -> None:
    """Write what the figure shows: for each curve and shown round mean, standard deviation and percentiles."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        kinds = [f"{what}_{value}" for what in ("distance", "average") for value in ("mean", "sd", "p10", "p90")]
        writer.writerow(["curve", "round", *kinds, "predicted_distance", "predicted_average"])
        for curve, plateau in zip(curves, plateaus, strict=True):
            for index in _shown_rounds(curve.distance):
                shown = [values[:, index - 1] for values in (curve.distance, curve.average)]
                parts = [(each.mean(), each.std(), *np.percentile(each, [10, 90])) for each in shown]
                numbers = [*parts[0], *parts[1], plateau.distance.mean(), plateau.bias.mean()]
                writer.writerow([curve.label, int(index), *(f"{number:.6g}" for number in numbers)])
