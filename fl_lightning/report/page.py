"""The page: one HTML file with everything in it.

Every text is escaped; only what a template made is taken as HTML.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from fl_lightning.figures.style import require
from fl_lightning.report import charts, tables
from fl_lightning.report.axes import SIZE, Scale
from fl_lightning.report.charts import Chart, Charts, Values, line_chart
from fl_lightning.report.comparison import AXES, Comparison, Entry
from fl_lightning.runs.reading import Problem

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).resolve().parent
_COLOURS = 8
_MANY = 8  # algorithms, beyond which only the best few and the reference are drawn at first
_FEW = 5
_DASHES = ("", "6 3", "2 2.5", "9 3 2 3", "1 4")
_NAMED = ("fedacs", "fedavg")  # have the first two colours, blue and orange, in every picture
_MOST_NAMES = 200  # of clients that are written out
_FORGOTTEN = 0.1


def colours(comparison: Comparison) -> list[tuple[int, str]]:
    """Return colour and dashes of each algorithm: FedACS, FedAvg and the reference have colours of their own."""
    entries = list(comparison.entries)
    firsts = [next((entry for entry in entries if entry.runs[0].algorithm == name), None) for name in _NAMED]
    chosen = {entry.name: (place, "") for place, entry in enumerate(firsts) if entry is not None}
    free = [colour for colour in range(_COLOURS) if (colour, "") not in chosen.values()]
    if comparison.reference.name not in chosen:
        chosen[comparison.reference.name] = (free.pop(0), "")
    others = [entry.name for entry in entries if entry.name not in chosen]
    for place, name in enumerate(others):
        chosen[name] = (free[place % len(free)], _DASHES[place // len(free) % len(_DASHES)])
    return [chosen[entry.name] for entry in entries]


def hidden(comparison: Comparison) -> list[int]:
    """Return the places of the algorithms that are not drawn until switched on: none, or all but a few."""
    if len(comparison.entries) <= _MANY:
        return []
    return [p for p, entry in enumerate(comparison.entries) if p >= _FEW and entry is not comparison.reference]


def findings(comparison: Comparison) -> list[str]:
    """Return the outcome in sentences, whoever wins."""
    entries, reference = comparison.entries, comparison.reference
    values = [tables.plus_minus(comparison.spread(entry)) for entry in entries]
    place = entries.index(reference)
    first = f"Best final {comparison.metric_name}: {entries[0].name}, {values[0]}."
    if place:
        first += f" {reference.name} comes {_ordinal(place + 1)} of {len(entries)} with {values[place]}."
    elif len(entries) > 1:
        first += f" Second: {entries[1].name}, {values[1]}."
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
    return sentences + [_about_target(comparison, target) for target in comparison.targets]


def _about_target(comparison: Comparison, target: float) -> str:
    always = [entry for entry in comparison.entries if None not in entry.reached(target, "round").values()]
    own = list(comparison.reference.reached(target, "round").values())
    costs = {entry.name: comparison.cost(entry, target, "computation_time").mean for entry in always}
    return (
        f"{target:g} is reached in all seeds by {len(always)} of {len(comparison.entries)}"
        + (f", with the least computation by {min(costs, key=lambda name: costs[name])}" if costs else "")
        + f"; by {comparison.reference.name} in {len(own) - own.count(None)} of {len(own)} seeds."
    )


def _ordinal(number: int) -> str:
    """Return a place in words.

    >>> [_ordinal(number) for number in (1, 2, 3, 11, 22)]
    ['1st', '2nd', '3rd', '11th', '22nd']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _curves(comparison: Comparison, hovers: Charts) -> Values:
    drawings = {}
    for axis in AXES:
        chart = Chart(
            identity=f"curve-{axis}",
            axis=axis,
            metric=comparison.metric,
            y_label=comparison.metric_name,
            height=430 if axis == "round" else 250,
            marks=comparison.targets,
            logarithmic=not comparison.maximised,
            direct_labels=axis == "round",
        )
        drawings[axis] = line_chart(comparison, chart, hovers)
    longest = max(len(run.metrics["round"]) for run in comparison.runs)
    return {
        "drawings": drawings,
        "num_seeds": len(comparison.seeds),
        "every_round_is_drawn": longest <= charts.num_points(comparison),
    }


def _domain(values: Sequence[float], zero: bool) -> Scale:
    known = [value for value in values if math.isfinite(value)] + [0.0] * zero
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = 0.04 * (high - low or 1.0)
    return Scale(low - margin, high + margin)


def _finals(comparison: Comparison) -> Values:
    """Return the final metric of each seed and the paired differences, as a table with plots in it."""
    table, own = tables.final_table(comparison), comparison.reference
    finals = [entry.final(comparison.metric) for entry in comparison.entries]
    pairs = [comparison.paired(entry) for entry in comparison.entries]
    x = _domain([value for final in finals for value in final.values()], zero=False)
    d = _domain([value for pair in pairs for value in (pair.mean, pair.low, pair.high)], zero=True)
    rows = [
        {
            "index": index,
            "is_reference": entry is own,
            "cells": cells,
            "seeds": ", ".join(f"seed {seed}: {tables.number(value)}" for seed, value in values.items()),
            "dots": charts.seed_strokes(x, list(values.values()), comparison.spread(entry).mean),
            "difference": f"{entry.name} − {own.name}: {cells[-4]} {cells[-3]}",
            "interval": [] if entry is own else charts.interval_strokes(d, pair.mean, pair.low, pair.high),
        }
        for index, (entry, cells, values, pair) in enumerate(
            zip(comparison.entries, table.rows, finals, pairs, strict=True)
        )
    ]
    heads = (table.header[0], "each seed and the mean", *table.header[1:-4], f"minus {own.name}", "mean")
    return {
        "header": (*heads, *table.header[-3:]),
        "num_values": len(table.header) - 5,
        "rows": rows,
        "note": table.note,
        "value_ticks": x.tick_words("", "left", 3, digits=1),
        "difference_ticks": d.tick_words("", "left", 2, digits=1),
    }


def _objective(comparison: Comparison, hovers: Charts) -> Values | None:
    """Return Omega against w and the chi-square distance over the rounds."""
    cards, distance = charts.omega_cards(comparison), None
    if all("chi2" in run.metrics for run in comparison.runs):
        chart = Chart(
            identity="chi-square",
            axis="round",
            metric="chi2",
            y_label="χ² distance of Ω from w",
            height=250,
            logarithmic=True,
        )
        distance = line_chart(comparison, chart, hovers)
    names = comparison.runs[0].names[:_MOST_NAMES]
    return {"cards": cards, "distance": distance, "names": names} if cards or distance else None


def _what_ran(comparison: Comparison, problems: Sequence[Problem]) -> Values:
    rows = [_run_row(comparison, entry) for entry in comparison.entries]
    versions = {tuple(sorted(run.summary.versions.items())) for run in comparison.runs}
    return {
        "rows": rows,
        "any_rejected": any(row["rejected"] for row in rows),
        "versions": [", ".join(f"{name} {number}" for name, number in table) for table in sorted(versions)],
        "problems": problems,
        "config": yaml.safe_dump(comparison.reference.runs[0].config, sort_keys=False),
    }


def _run_row(comparison: Comparison, entry: Entry) -> Values:
    reference = comparison.reference
    seconds = [run.summary.seconds or math.nan for run in entry.runs]
    return {
        "name": entry.name,
        "settings": [
            f"{key.removeprefix('loop.')} = {_shown(values[entry.name])}"
            for key, values in comparison.differences.items()
            if values[entry.name] is not None and (entry is reference or values[entry.name] != values[reference.name])
        ],
        "seeds": [run.seed for run in entry.runs],
        "rounds": max(len(run.metrics["round"]) for run in entry.runs),
        "seconds": sum(seconds) / len(seconds),
        "rejected": sum(run.summary.rejected_updates for run in entry.runs),
    }


def _shown(value: object) -> str:
    text = value.removeprefix("fl_lightning.") if isinstance(value, str) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    loader = FileSystemLoader(_FOLDER / "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    style, script = (Markup((_FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    made.globals |= {"SIZE": SIZE, "NEVER": tables.NEVER, "style": style, "script": script}
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def render(name: str, values: Mapping[str, object]) -> str:
    """Return the HTML of a template.

    >>> "its own &lt;b&gt; at the end" in render("fairness", {"cards": [], "metric": "<b>"})
    True
    """
    from markupsafe import Markup

    return Markup(_templates().get_template(f"{name}.html.j2").render(values))  # templates escape what they get


def page(comparison: Comparison, problems: Sequence[Problem] = ()) -> str:
    """Return the whole page."""
    require("jinja2")
    hovers: Charts = {}
    targets = [tables.target_table(comparison, target) for target in comparison.targets]
    num_classes = max(len(entry.class_accuracy) for entry in comparison.entries)
    made = {  # by the name of the template
        "curves": _curves(comparison, hovers),
        "targets": {"tables": targets} if targets else None,
        "equal_cost": {"table": tables.equal_cost_table(comparison)} if comparison.equal_costs else None,
        "finals": _finals(comparison),
        "classes": {"width": num_classes, "forgotten": _FORGOTTEN} if num_classes else None,
        "objective": _objective(comparison, hovers),
        "fairness": charts.fairness(comparison),
        "participation": charts.participation(comparison),
        "conditions": charts.conditions(comparison),
        "what_ran": _what_ran(comparison, problems),
    }
    entries, runs = comparison.entries, comparison.runs
    clients, chosen = runs[0].clients, colours(comparison)
    return render(
        "page",
        {
            "title": f"{comparison.data}: {len(entries)} algorithm{'s' * (len(entries) > 1)}",
            "num_runs": len(runs),
            "seeds": comparison.seeds,
            "rounds": max(len(run.metrics["round"]) for run in runs),
            # A table of groups says how many clients are in each.
            "num_clients": int(clients["num_clients"].sum()) if "num_clients" in clients else len(clients["weight"]),
            "findings": findings(comparison),
            "sections": {
                name: render(name, {"comparison": comparison, **values})
                for name, values in made.items()
                if values is not None
            },
            "colours": chosen,
            "values": {
                "names": [entry.name for entry in entries],
                "colours": [colour for colour, _ in chosen],
                "reference": entries.index(comparison.reference),
                "hidden": hidden(comparison),
                "rounds": max(float(run.metrics["round"][-1]) for run in runs),
                "charts": hovers,
            },
        },
    )
