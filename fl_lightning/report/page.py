"""The page: one HTML file with everything in it."""

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.report import sections, tables
from fl_lightning.report.charts import embedded
from fl_lightning.report.comparison import METRICS, Comparison
from fl_lightning.report.loading import Problem

_FOLDER = Path(__file__).resolve().parent
_COLOURS = 8
_MANY = 8  # lines, beyond which all but the reference are dimmed
_DASHES = ("", "6 3", "2 2.5", "9 3 2 3", "1 4")
_Section = Callable[[Comparison, sections.Charts], str]
_SECTIONS: tuple[tuple[_Section, str, str], ...] = (
    (sections.curves, "Learning curves", "What a round, a local step and a second of computation buy."),
    (sections.targets, "Cost to a target", "How much it takes to get there, and in how many seeds."),
    (sections.finals, "Where they end", "Final value of every seed, and the difference to the reference."),
    (sections.classes, "Classes that are forgotten", "A biased objective gives some classes up."),
    (sections.objective, "The objective really optimised", "Ω is what a round descends, w what was asked for."),
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


def findings(comparison: Comparison) -> list[str]:
    """Return the outcome in sentences, whoever wins."""
    entries, reference, metric = comparison.entries, comparison.reference, METRICS[comparison.metric]
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
        sign = 1 if comparison.metric == "test_accuracy" else -1
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


def _legend(comparison: Comparison) -> str:
    chips = "".join(
        f'<button class="chip e{index}{" ref" if entry is comparison.reference else ""}" data-e="{index}" '
        f'aria-pressed="true"><svg viewBox="0 0 24 8" aria-hidden="true"><path class="line chip e{index}" d="M0 4h24"/>'
        f"</svg>{escape(entry.name)}</button>"
        for index, entry in enumerate(comparison.entries)
    )
    return f'<div class="legend" role="group" aria-label="algorithms: click to hide">{chips}</div>'


def what_ran(comparison: Comparison, problems: Sequence[Problem]) -> str:
    """Return settings that differ, seconds, versions, what was rejected and what was left out."""
    rejected = {entry.name: _rejected([run.summary for run in entry.runs]) for entry in comparison.entries}
    some = any(rejected.values())
    rows = []
    for index, entry in enumerate(comparison.entries):
        own = entry is comparison.reference
        settings = [
            f"{key.removeprefix('loop.')} = {_shown(values[entry.name])}"
            for key, values in comparison.differences.items()
            if values[entry.name] is not None and (own or values[entry.name] != values[comparison.reference.name])
        ]
        seconds = [float(run.summary.get("seconds") or math.nan) for run in entry.runs]
        cells = [f"<td>{escape(entry.name)}</td>", f'<td class="wide">{"<br>".join(map(escape, settings)) or "–"}</td>']
        cells += [f"<td>{', '.join(str(run.seed) for run in entry.runs)}</td>"]
        cells += [f"<td>{max(len(run.metrics['round']) for run in entry.runs)}</td>"]
        cells += [f"<td>{sum(seconds) / len(seconds):.1f}</td>"] + (
            [f"<td>{rejected[entry.name]}</td>"] if some else []
        )
        rows.append(f'<tr class="r{index}{" ref" if own else ""}">{"".join(cells)}</tr>')
    heads = [
        "algorithm",
        f"settings that differ from {comparison.reference.name}'s",
        "seeds",
        "rounds",
        "seconds a run",
    ]
    head = "".join(f"<th>{escape(word)}</th>" for word in heads + ["rejected updates"] * some)
    head = head.replace("<th>settings", '<th style="text-align:left">settings')
    config = yaml.safe_dump(comparison.reference.runs[0].config, sort_keys=False)
    table = f'<table id="ran"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    title = f"Complete config of {escape(comparison.reference.name)}"
    return (
        f'<div class="scroll">{table}</div>{_versions(comparison)}{_left_out(problems)}'
        f"<details><summary>{title}</summary><pre>{escape(config)}</pre></details>"
    )


def _shown(value: Any) -> str:
    text = value.removeprefix("fl_lightning.") if isinstance(value, str) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _rejected(summaries: Sequence[dict[str, Any]]) -> int:
    """Return how many updates the runs rejected, by whatever name their summaries count them."""
    return sum(
        int(value)
        for s in summaries
        for key, value in s.items()
        if "rejected" in key and isinstance(value, (int, float))
    )


def _versions(comparison: Comparison) -> str:
    tables_ = {tuple(sorted((run.summary.get("versions") or {}).items())) for run in comparison.runs}
    lines = [", ".join(f"{name} {version}" for name, version in table) for table in sorted(tables_)]
    told = sections.note("Versions: " + "; ".join(lines) + ".")
    return told + '<p class="note warn">The runs were made with different versions.</p>' * (len(lines) > 1)


def _left_out(problems: Sequence[Problem]) -> str:
    if not problems:
        return ""
    items = "".join(
        f"<li><code>{escape(str(problem.folder))}</code>: {escape(problem.reason)}</li>" for problem in problems
    )
    return f'<h3 class="warn">Left out</h3><ul class="plain">{items}</ul>'


def page(comparison: Comparison, problems: Sequence[Problem] = ()) -> str:
    """Return the whole page."""
    charts: sections.Charts = {}
    bodies = [(title, sections.lead(sentence), make(comparison, charts)) for make, title, sentence in _SECTIONS]
    bodies.append(("What ran", sections.lead("All else was the same for all."), what_ran(comparison, problems)))
    shown = [(f"s{number}", *body) for number, body in enumerate((body for body in bodies if body[2]), start=1)]
    links = "".join(f'<a href="#{identity}">{escape(title)}</a>' for identity, title, _, _ in shown)
    parts = "".join(
        f'<section id="{identity}"><h2><span class="no">{identity[1:]}</span>{escape(title)}</h2>{start}{body}'
        "</section>"
        for identity, title, start, body in shown
    )
    told = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(comparison))
    return (
        f'{_head(comparison)}<ul class="findings">{told}</ul><nav>{links}</nav>{_legend(comparison)}{parts}'
        "<footer>Made by fl-lightning. Hover for values; click a name to hide it, shift-click to see it alone.</footer>"
        f'</main><div id="tip" role="status"></div>{_scripts(comparison, charts)}</body></html>\n'
    )


def _head(comparison: Comparison) -> str:
    runs, entries = comparison.runs, comparison.entries
    style = "".join(
        f".e{index}{{--k:var(--c{colour})}}" + (f".line.e{index}{{stroke-dasharray:{dash}}}" if dash else "")
        for index, (colour, dash) in enumerate(colours(comparison))
    )
    title = f"{comparison.data}: {len(entries)} algorithm{'s' * (len(entries) > 1)}"
    facts = (
        f"{len(runs)} runs",
        f"seeds {', '.join(map(str, comparison.seeds))}",
        f"{max(len(run.metrics['round']) for run in runs)} rounds",
        f"{len(runs[0].clients['weight'])} clients",
        f"reference {comparison.reference.name}",
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}{style}</style></head>\n"
        f'<body class="{"many" if len(entries) > _MANY else "few"}"><main><header><h1>{escape(title)}</h1>'
        f'<p class="sub">{escape(" · ".join(facts))}</p></header>'
    )


def _scripts(comparison: Comparison, charts: sections.Charts) -> str:
    values = {
        "names": [entry.name for entry in comparison.entries],
        "colours": [colour for colour, _ in colours(comparison)],
        "reference": comparison.entries.index(comparison.reference),
        "charts": charts,
    }
    data = f'<script id="data" type="application/json">{embedded(values)}</script>'
    return f"{data}\n<script>{_asset('page.js')}</script>"


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
