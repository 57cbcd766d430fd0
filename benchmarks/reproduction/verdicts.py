"""Does it reproduce? Table 2 and Figure 4 of the paper, row by row, beside stored runs."""

import math
from collections.abc import Mapping

import numpy as np

from benchmarks.reproduction import measures, tables
from benchmarks.reproduction.runs import Run
from benchmarks.reproduction.tables import YARDSTICK

# Table 2 as printed: rounds and seconds to the target; None: never. ``fedau_by_k`` is another reading of its FedAU.
PAPER: dict[str, dict[str, tuple[int, float] | None]] = {
    "mnist": {
        **{"fedacs": (68, 3548.6), "fedavg": (93, 5470.4), "cafedavg": (84, 4884.4), "fedvarp": (115, 7289.9)},
        **{"fednova": (99, 6043.4), "fedau": None, "fedau_by_k": None, "os": (72, 4391.9)},
    },
    "cifar": {
        **{"fedacs": (100, 6928.9), "fedavg": (143, 12482.0), "cafedavg": (130, 7917.0), "fedvarp": (165, 13479.8)},
        **{"fednova": (161, 13314.8), "fedau": None, "fedau_by_k": None, "os": (80, 5095.3)},
    },
}
SECONDS = {"mnist": 3548.6, "cifar": 6928.9}  # FedACS's
WITHIN = 0.25  # of the printed rounds: reproduced
HEADER = [
    *("algorithm", "rounds, paper", "ours", "ours / paper", "ours, averaged model", "verdict"),
    *("time / FedACS's, paper", "local steps / FedACS's", "accuracy at the end", "FedACS ahead by", "seeds", "reading"),
]


def paper_table(data: str, readings: Mapping[str, list[Run]]) -> str:
    """Return Table 2 and the ends of Figure 4, each algorithm from the first reading that has it."""
    groups = {name: measures.by_algorithm(runs) for name, runs in readings.items()}
    rows = []
    for algorithm, printed in PAPER[data].items():
        reading = next((name for name in groups if algorithm in groups[name]), None)
        shown = ["never", "-"] if printed is None else [str(printed[0]), f"{printed[1] / SECONDS[data]:.2f}"]
        if reading is None:
            rows.append([f"`{algorithm}`", shown[0], *["-"] * 3, "not measured", shown[1], *["-"] * 5])
            continue
        runs = groups[reading][algorithm]
        yardstick, rival = (_paired(groups[reading].get(name, []), runs) for name in (YARDSTICK, _rival(algorithm)))
        rounds = [measures.to_target(run, "accuracy", "evaluated") for run in runs]
        mean, steps = float(np.mean(rounds)), _mean_cost(runs, "steps")
        ahead = measures.paired(measures.ends(yardstick, "accuracy"), measures.ends(runs, "accuracy"))
        own = _mean_cost(yardstick, "steps")
        rows.append(
            [
                f"`{algorithm}`",
                shown[0],
                tables.cost(runs, "accuracy", "evaluated"),
                "-" if printed is None or not math.isfinite(mean) else f"{mean / printed[0]:.2f}",
                tables.cost(runs, "averaged", "evaluated"),
                verdict(data, algorithm, rounds, _mean_cost(rival, "evaluated")),
                shown[1],
                f"{steps / own:.2f}" if math.isfinite(steps) and math.isfinite(own) else "-",
                tables.cell(measures.ends(runs, "accuracy"), False),
                "" if algorithm == YARDSTICK else tables.difference(ahead),
                str(len(runs)),
                reading,
            ]
        )
    return tables.markdown(HEADER, rows)


def _paired(runs: list[Run], others: list[Run]) -> list[Run]:
    """Return the runs under the seeds of the others."""
    return [run for run in runs if run.seed in {other.seed for other in others}]


def _mean_cost(runs: list[Run], cost: str) -> float:
    """Return the mean cost to the target of the model of the round; infinite where a run never reaches it."""
    return float(np.mean([measures.to_target(run, "accuracy", cost) for run in runs])) if runs else math.inf


def _rival(algorithm: str) -> str:
    """Return whom an algorithm is compared with: FedACS, and FedACS with FedAvg."""
    return tables.REFERENCE if algorithm == YARDSTICK else YARDSTICK


def verdict(data: str, algorithm: str, rounds: list[float], of_rival: float) -> str:
    """Return what becomes of a row, given the rounds of each run to the target.

    Reproduced: their mean is within 25 %, or none reaches what is never reached in the paper. Direction reproduced: on
    the same side of FedACS (FedACS: of FedAvg), or some do not reach it.

    >>> [verdict("mnist", "fedavg", [rounds], 80) for rounds in (100, 150, 60)]
    ['**reproduced**', 'direction reproduced', 'not reproduced']
    >>> verdict("mnist", "fedau", [90, math.inf], 80), verdict("mnist", "fedau", [90], 80)
    ('direction reproduced', 'not reproduced')
    """
    printed, rival, mean = PAPER[data][algorithm], PAPER[data][_rival(algorithm)], float(np.mean(rounds))
    if printed is None or rival is None:
        reached = np.isfinite(rounds)
        return "not reproduced" if reached.all() else "direction reproduced" if reached.any() else "**reproduced**"
    if abs(mean / printed[0] - 1) <= WITHIN:
        return "**reproduced**"
    same = mean != of_rival and (mean > of_rival) == (printed[0] > rival[0])
    return "direction reproduced" if same else "not reproduced"


def smoothed(run: Run, window: int) -> float:
    """Return the round at which the mean of the last evaluations first reaches the target; inf for never."""
    means = np.convolve(run.accuracy, np.full(window, 1 / window), "valid")
    reached = np.flatnonzero(means >= run.target)
    return float(run.evaluated[reached[0] + window - 1]) if len(reached) else math.inf


def explanations_table(readings: Mapping[str, list[Run]], window: int = 5) -> str:
    """Return rounds to the target of FedACS and FedAvg in several readings, as they are and smoothed, and their ratio.

    Only seeds that all readings have count.
    """
    rows = []
    seeds = set.intersection(*({run.seed for run in runs} for runs in readings.values() if runs))
    for reading, runs in readings.items():
        groups = measures.by_algorithm([run for run in runs if run.seed in seeds])
        found = [groups.get(name, []) for name in (YARDSTICK, tables.REFERENCE)]
        raw = [[measures.to_target(run, "accuracy", "evaluated") for run in each] for each in found]
        smooth = [[smoothed(run, window) for run in each] for each in found]
        rows.append([reading, *_beside(raw), *_beside(smooth)])
    header = ["`fedacs`", "`fedavg`", "`fedavg` / `fedacs`"]
    return tables.markdown(["reading", *header, *(f"{name}, mean of {window} evaluations" for name in header)], rows)


def _beside(costs: list[list[float]]) -> list[str]:
    """Return the mean cost of FedACS and of FedAvg, and their ratio.

    >>> _beside([[80, 120], [150]]), _beside([[math.inf], []])
    (['100', '150', '1.50'], ['never', '-', '-'])
    """
    means = [float(np.mean(each)) if each else math.nan for each in costs]
    ratio = f"{means[1] / means[0]:.2f}" if np.isfinite(means).all() else "-"
    return [*("-" if math.isnan(mean) else "never" if math.isinf(mean) else f"{mean:.0f}" for mean in means), ratio]
