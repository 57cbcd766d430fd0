"""The page: one HTML file with everything in it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from markupsafe import Markup

from fl_lightning.report import sections, tables
from fl_lightning.report.comparison import Comparison, Entry
from fl_lightning.report.rendering import asset, render
from fl_lightning.runs.reading import Problem

_COLOURS = 8
_MANY = 8  # algorithms, beyond which only the best few and the reference are drawn at first
_FEW = 5
_DASHES = ("", "6 3", "2 2.5", "9 3 2 3", "1 4")
_Maker = Callable[[Comparison, sections.Charts], Markup]
_SECTIONS: tuple[tuple[_Maker, str, str], ...] = (
    (sections.curves, "Learning curves", "What one round, one local step and one second of computation buy."),
    (sections.targets, "Cost to a target", "How much it takes to get there, and in how many seeds."),
    (sections.equal_cost, "At equal cost", "What the same computation, time on the clock and bytes have bought."),
    (sections.finals, "Where they end", "Final value of every seed, and the difference to the reference."),
    (sections.classes, "Classes that are forgotten", "A biased objective gives some classes up."),
    (
        sections.objective,
        "The objective really optimised",
        "Ω is the objective that is optimised, w the one that was asked for.",
    ),
    (sections.fairness, "What clients get", "Whoever the objective neglects is served worse by the model."),
    (sections.participation, "Who took part", "The sampler's plan, who was drawn, whose upload arrived."),
    (sections.conditions, "The heterogeneity they met", "Local steps and failure probability of every client."),
)


def colours(comparison: Comparison) -> list[tuple[int, str]]:
    """Return colour and dashes of each algorithm: the reference has a colour of its own, the best are drawn through."""
    places = iter(range(len(comparison.entries)))
    chosen = []
    for entry in comparison.entries:
        if entry is comparison.reference:
            chosen.append((0, ""))
            continue
        place = next(places)
        chosen.append((1 + place % (_COLOURS - 1), _DASHES[place // (_COLOURS - 1) % len(_DASHES)]))
    return chosen


def hidden(comparison: Comparison) -> list[int]:
    """Return the places of the algorithms that are not drawn until switched on: none, or all but a few."""
    if len(comparison.entries) <= _MANY:
        return []
    return [p for p, entry in enumerate(comparison.entries) if p >= _FEW and entry is not comparison.reference]


def findings(comparison: Comparison) -> list[str]:
    """Return the outcome in sentences, whoever wins."""
    entries, reference, metric = comparison.entries, comparison.reference, comparison.metric_name
    spreads = [comparison.spread(entry) for entry in entries]

    def told(index: int) -> str:
        spread = spreads[index]
        deviation = "" if math.isnan(spread.deviation) else f" ± {tables.number(spread.deviation)}"
        return f"{tables.number(spread.mean)}{deviation}"

    place = entries.index(reference)
    first = f"Best final {metric}: {entries[0].name}, {told(0)}."
    if place and len(entries) > 1:
        first += f" {reference.name} comes {_ordinal(place + 1)} of {len(entries)} with {told(place)}."
    elif len(entries) > 1:
        first += f" Second: {entries[1].name}, {told(1)}."
    sentences = [first]
    if len(comparison.seeds) > 1 and len(entries) > 1:
        pairs = [comparison.paired(entry) for entry in entries if entry is not reference]
        sign = 1 if comparison.maximised else -1
        above = sum(min(sign * pair.low, sign * pair.high) > 0 for pair in pairs)
        below = sum(max(sign * pair.low, sign * pair.high) < 0 for pair in pairs)
        sentences.append(
            f"By 95 % intervals of paired differences with {reference.name}: {above} of {len(pairs)} others better, "
            f"{below} worse; for {len(pairs) - above - below} these seeds cannot tell."
        )
    for target in comparison.targets:
        always = [entry for entry in entries if None not in entry.reached(target, "round").values()]
        own = list(reference.reached(target, "round").values())
        reached = sum(value is not None for value in own)
        costs = {entry.name: comparison.cost(entry, target, "computation_time").mean for entry in always}
        quickest = min(costs, key=lambda name: costs[name]) if costs else None
        sentences.append(
            f"{target:g} is reached in all seeds by {len(always)} of {len(entries)}"
            + (f", with the least computation by {quickest}" if quickest else "")
            + f"; by {reference.name} in {reached} of {len(own)} seeds."
        )
    return sentences


def _ordinal(number: int) -> str:
    """Return a place in words.

    >>> [_ordinal(number) for number in (1, 2, 3, 11, 22)]
    ['1st', '2nd', '3rd', '11th', '22nd']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@dataclass(frozen=True, kw_only=True)
class _RunRow:
    """An algorithm in the table of what ran."""

    name: str
    settings: list[str]
    seeds: list[int]
    rounds: int
    seconds: float
    rejected: int


def _run_row(comparison: Comparison, entry: Entry) -> _RunRow:
    reference = comparison.reference
    settings = [
        f"{key.removeprefix('loop.')} = {_shown(values[entry.name])}"
        for key, values in comparison.differences.items()
        if values[entry.name] is not None and (entry is reference or values[entry.name] != values[reference.name])
    ]
    seconds = [run.summary.seconds or math.nan for run in entry.runs]
    return _RunRow(
        name=entry.name,
        settings=settings,
        seeds=[run.seed for run in entry.runs],
        rounds=max(len(run.metrics["round"]) for run in entry.runs),
        seconds=sum(seconds) / len(seconds),
        rejected=sum(run.summary.rejected_updates for run in entry.runs),
    )


def what_ran(comparison: Comparison, problems: Sequence[Problem]) -> Markup:
    """Return settings that differ, seconds, versions, what was rejected and what was left out."""
    rows = [_run_row(comparison, entry) for entry in comparison.entries]
    versions = {tuple(sorted(run.summary.versions.items())) for run in comparison.runs}
    return render(
        "what_ran",
        {
            "reference": comparison.reference.name,
            "rows": rows,
            "any_rejected": any(row.rejected for row in rows),
            "versions": [", ".join(f"{name} {number}" for name, number in table) for table in sorted(versions)],
            "problems": problems,
            "config": yaml.safe_dump(comparison.reference.runs[0].config, sort_keys=False),
        },
    )


def _shown(value: Any) -> str:
    text = value.removeprefix("fl_lightning.") if isinstance(value, str) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."


@dataclass(frozen=True)
class _Section:
    """A numbered part of the page."""

    title: str
    lead: str
    body: Markup


def page(comparison: Comparison, problems: Sequence[Problem] = ()) -> str:
    """Return the whole page."""
    charts: sections.Charts = {}
    made = [_Section(title, lead, make(comparison, charts)) for make, title, lead in _SECTIONS]
    made.append(_Section("What ran", "All else was the same for all.", what_ran(comparison, problems)))
    entries, chosen = comparison.entries, colours(comparison)
    names, reference = [entry.name for entry in entries], entries.index(comparison.reference)
    return render(
        "page",
        {
            "title": f"{comparison.data}: {len(entries)} algorithm{'s' * (len(entries) > 1)}",
            "facts": _facts(comparison),
            "findings": findings(comparison),
            "names": names,
            "reference": reference,
            "hidden": hidden(comparison),
            "sections": [section for section in made if section.body],
            "colours": chosen,
            "values": {
                "names": names,
                "colours": [colour for colour, _ in chosen],
                "reference": reference,
                "hidden": hidden(comparison),
                "rounds": max(float(run.metrics["round"][-1]) for run in comparison.runs),
                "charts": charts,
            },
            "style": asset("page.css"),
            "script": asset("page.js"),
        },
    )


def _facts(comparison: Comparison) -> list[str]:
    runs = comparison.runs
    clients = runs[0].clients
    # A table of groups tells how many clients are in each.
    num_clients = int(clients["num_clients"].sum()) if "num_clients" in clients else len(clients["weight"])
    return [
        f"{len(runs)} runs",
        f"seeds {', '.join(map(str, comparison.seeds))}",
        f"{max(len(run.metrics['round']) for run in runs)} rounds",
        f"{num_clients} clients",
        f"reference {comparison.reference.name}",
    ]
