"""Markdown tables of stored results."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.reproduction import measures
from benchmarks.reproduction.measures import By, Paired
from benchmarks.reproduction.runs import Run

REFERENCE, YARDSTICK = "fedavg", "fedacs"  # of the differences, and of equal work
MISSING = "*Not measured.*"


def reading_table(runs: list[Run], reference: list[Run], only: Sequence[str] = ()) -> str:
    """Return how the algorithms of a reading end, and what they cost; bold: the best, and who is not behind it by more
    than one standard error of the paired difference.

    Args:
        runs: Of the reading.
        reference: FedAvg's runs, where they are not among these.
        only: The algorithms to show; all by default.
    """
    groups = measures.by_algorithm([*runs, *(run for run in reference if run.algorithm == REFERENCE)])
    if not runs:
        return MISSING
    averaged = {name: measures.ends(each, "averaged") for name, each in groups.items()}
    raw = {name: measures.ends(each, "accuracy") for name, each in groups.items()}
    equal = {name: measures.at_equal_work(each, groups.get(YARDSTICK, [])) for name, each in groups.items()}
    best = [measures.leaders(each) for each in (averaged, raw, equal)]
    target = f"{runs[0].target:.0%}".replace("%", " %")
    rows = [
        [
            f"`{name}`",
            *(cell(each[name], name in bold) for each, bold in zip((averaged, raw, equal), best, strict=True)),
            "" if name == REFERENCE else difference(measures.paired(averaged[name], averaged.get(REFERENCE, {}))),
            *(cost(groups[name], curve, "evaluated") for curve in ("averaged", "accuracy")),
            cost(groups[name], "averaged", "steps"),
            thousands(float(np.mean([run.steps[-1] for run in groups[name]]))),
            str(len(groups[name])),
        ]
        for name in sorted(groups, key=lambda name: -_mean(averaged[name]))
        if not only or name in only
    ]
    header = [
        *("algorithm", "averaged model", "model of the round", "averaged, at equal local steps", "averaged - FedAvg's"),
        *(f"rounds to {target}, averaged", "of the round", f"local steps to {target}", "local steps in all", "seeds"),
    ]
    return markdown(header, rows)


def summary_table(runs: list[Run], reference: list[Run], only: Sequence[str] = ()) -> str:
    """Return the few columns that tell most: accuracy at equal rounds and at equal computation, and what it took.

    Args:
        runs: Of the reading.
        reference: FedAvg's runs, where they are not among these.
        only: The algorithms to show; all by default.
    """
    groups = measures.by_algorithm([*runs, *(run for run in reference if run.algorithm == REFERENCE)])
    if not runs:
        return MISSING
    averaged = {name: measures.ends(each, "averaged") for name, each in groups.items()}
    equal = {name: measures.at_equal_work(each, groups.get(YARDSTICK, [])) for name, each in groups.items()}
    best, target = [measures.leaders(each) for each in (averaged, equal)], f"{runs[0].target:.0%}".replace("%", " %")
    rows = [
        [
            f"`{name}`",
            *(cell(each[name], name in bold) for each, bold in zip((averaged, equal), best, strict=True)),
            cost(groups[name], "averaged", "evaluated"),
            cost(groups[name], "averaged", "steps"),
            str(len(groups[name])),
        ]
        for name in sorted(groups, key=lambda name: -_mean(averaged[name]))
        if not only or name in only
    ]
    costs = [f"rounds to {target}", f"local steps to {target}", "seeds"]
    return markdown(["algorithm", "accuracy at equal rounds", "accuracy at equal computation", *costs], rows)


def across_table(algorithm: str, readings: Mapping[str, tuple[list[Run], list[Run]]]) -> str:
    """Return how one algorithm ends in several readings; each has its runs, and FedAvg's where they are elsewhere."""
    rows = []
    for reading, (runs, reference) in readings.items():
        groups = measures.by_algorithm([*runs, *reference])
        if algorithm not in groups:
            continue
        own, averaged = groups[algorithm], measures.ends(groups[algorithm], "averaged")
        fedavg = measures.ends(groups.get(REFERENCE, []), "averaged")
        rows.append(
            [
                reading,
                cell(averaged, False),
                cell(measures.ends(own, "accuracy"), False),
                cell(fedavg, False),
                difference(measures.paired(averaged, fedavg)),
                *(cost(own, curve, "evaluated") for curve in ("averaged", "accuracy")),
                cost(own, "averaged", "steps"),
                str(len(own)),
            ]
        )
    header = ["reading", f"`{algorithm}`, averaged", "model of the round", "FedAvg, averaged", "averaged - FedAvg's"]
    costs = ["rounds to target, averaged", "of the round", "local steps to target", "seeds"]
    return markdown([*header, *costs], rows) if rows else MISSING


def limits_table(free: list[Run], limited: list[Run]) -> str:
    """Return how algorithms end without and with a limit on the local steps that clients are asked for."""
    without, bound = measures.by_algorithm(free), measures.by_algorithm(limited)
    ends = [{name: measures.ends(each, "averaged") for name, each in groups.items()} for groups in (without, bound)]
    rows = [
        [
            f"`{name}`",
            *(cell({s: v for s, v in each.get(name, {}).items() if s in ends[1][name]}, False) for each in ends),
            difference(measures.paired(ends[1][name], ends[0].get(name, {}))),
            *(
                thousands(float(np.mean([run.steps[-1] for run in groups[name]]))) if name in groups else "-"
                for groups in (without, bound)
            ),
            str(len(bound[name])),
        ]
        for name in sorted(bound, key=lambda name: -_mean(ends[1][name]))
    ]
    header = ["algorithm", "averaged, no limit", "averaged, limited", "limited - no limit"]
    return markdown([*header, "local steps, no limit", "limited", "seeds"], rows) if rows else MISSING


def tuned_table(readings: Mapping[float, list[Run]]) -> str:
    """Return how the algorithms end with the learning rate that suits each best."""
    chosen = measures.best_rates(readings)
    if not chosen:
        return MISSING
    averaged = {name: measures.ends(runs, "averaged") for name, (_, runs) in chosen.items()}
    raw = {name: measures.ends(runs, "accuracy") for name, (_, runs) in chosen.items()}
    best = [measures.leaders(each) for each in (averaged, raw)]
    rows = [
        [
            f"`{name}`",
            f"{chosen[name][0]:g}",
            cell(averaged[name], name in best[0]),
            cell(raw[name], name in best[1]),
            "" if name == REFERENCE else difference(measures.paired(averaged[name], averaged.get(REFERENCE, {}))),
            thousands(float(np.mean([run.steps[-1] for run in chosen[name][1]]))),
            str(len(averaged[name])),
        ]
        for name in sorted(chosen, key=lambda name: -_mean(averaged[name]))
    ]
    rates = ", ".join(f"{rate:g}" for rate in sorted(readings))
    header = [f"algorithm (rates {rates})", "best rate", "averaged model", "model of the round", "averaged - FedAvg's"]
    return markdown([*header, "local steps in all", "seeds"], rows)


def overview_table(readings: Mapping[str, list[Run]], algorithms: Sequence[str]) -> str:
    """Return where some algorithms stand in each reading: place, and distance to the best of those not among them."""
    rows = []
    for reading, runs in readings.items():
        groups = measures.by_algorithm(runs)
        averaged = {name: measures.ends(each, "averaged") for name, each in groups.items()}
        equal = {name: measures.at_equal_work(each, groups.get(YARDSTICK, [])) for name, each in groups.items()}
        shown = [name for name in algorithms if name in groups and len(groups) > 1]
        rows += [[reading, f"`{name}`", *_place(averaged, name, shown), *_place(equal, name, shown)] for name in shown]
    header = ["reading", "algorithm", "at equal rounds", "ahead of the best other"]
    return markdown([*header, "at equal local steps", "ahead of the best other"], rows) if rows else MISSING


def _place(values: Mapping[str, By], name: str, shown: Sequence[str]) -> tuple[str, str]:
    """Return the place of an algorithm by its mean, and its paired difference to the best that is not shown."""
    ranked = sorted((each for each in values if values[each]), key=lambda each: -_mean(values[each]))
    enough = min(2, len(values.get(name, {})))  # one seed has no error
    other = next((each for each in ranked if each not in shown and len(values[each]) >= enough), None)
    if name not in ranked or other is None:
        return "-", "-"
    ahead = difference(measures.paired(values[name], values[other]))
    return f"{ranked.index(name) + 1} of {len(ranked)}", f"{ahead} (`{other}`)"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _mean(values: By) -> float:
    return float(np.mean(list(values.values()))) if values else float("-inf")


def cell(values: By, bold: bool) -> str:
    """Return the mean over the seeds and their standard deviation."""
    known = [value for value in values.values() if not math.isnan(value)]
    if not known:
        return "-"
    text = f"{np.mean(known):.3f}" + (f" ± {np.std(known, ddof=1):.3f}" if len(known) > 1 else "")
    return f"**{text}**" if bold else text


def difference(paired: Paired) -> str:
    """Return a mean paired difference and its standard error."""
    if not paired.count or math.isnan(paired.mean):
        return "-"
    text = f"{paired.mean:+.3f}"
    return text if math.isnan(paired.error) else f"{text} ± {paired.error:.3f}"


def cost(runs: list[Run], curve: str, unit: str) -> str:
    """Return the mean over the runs that reach the target, and how many do where not all of them."""
    costs = [measures.to_target(run, curve, unit) for run in runs]
    reached = [value for value in costs if math.isfinite(value)]
    if not reached:
        return "never" if costs else "-"
    mean = float(np.mean(reached))
    text = thousands(mean) if unit == "steps" else f"{mean:.0f}"
    return text if len(reached) == len(costs) else f"{text} ({len(reached)} of {len(costs)})"


def thousands(value: float) -> str:
    """Return a number in thousands.

    >>> thousands(18_432)
    '18.4k'
    """
    return f"{value / 1000:.1f}k"
