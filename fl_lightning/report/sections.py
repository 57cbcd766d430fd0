"""The sections of the page, each from a comparison to HTML."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from fl_lightning.report import tables
from fl_lightning.report.charts import Chart, Series, line_chart
from fl_lightning.report.client_charts import condition_charts, interval_strip, omega_cards, participation_cards, strip
from fl_lightning.report.comparison import AXES, METRICS, Comparison, Entry
from fl_lightning.report.scales import Scale, tick_label

Charts = dict[str, Any]  # what hovering shows, by the chart's name
MANY = 12
FORGOTTEN = 0.1


def lead(text: str) -> str:
    """Return the sentence under a heading."""
    return f'<p class="lead">{escape(text)}</p>'


def note(text: str) -> str:
    """Return small print."""
    return f'<p class="note">{escape(text)}</p>'


def series(comparison: Comparison, axis: str, metric: str) -> list[Series]:
    """Return one curve for each algorithm."""
    num_points = 200 if len(comparison.entries) <= MANY else 100
    return [
        Series(
            index=index,
            name=entry.name,
            band=entry.band(axis, metric, num_points),
            is_reference=entry is comparison.reference,
        )
        for index, entry in enumerate(comparison.entries)
    ]


def curves(comparison: Comparison, charts: Charts) -> str:
    """Return the metric against rounds, local steps and computation time."""
    metric, name = comparison.metric, METRICS[comparison.metric]
    drawings = {}
    for axis, words in AXES.items():
        chart = Chart(
            identity=f"curve-{axis}",
            x_label=words,
            y_label=name,
            height=430 if axis == "round" else 250,
            marks=comparison.targets,
            logarithmic=metric != "test_accuracy",
            direct_labels=axis == "round",
        )
        drawings[axis], charts[chart.identity] = line_chart(chart, series(comparison, axis, metric))
    seeds = len(comparison.seeds)
    band = "its band from the lowest to the highest seed" if seeds > 1 else "one seed, so no band"
    longest = max(len(run.metrics["round"]) for run in comparison.runs)
    thinned = longest > (200 if len(comparison.entries) <= MANY else 100)
    return (
        drawings["round"]
        + f'<div class="pair">{drawings["local_steps"]}{drawings["computation_time"]}</div>'
        + note(
            f"Line: mean over {seeds} seeds; {band}. Nothing is smoothed"
            + (", though not every round is drawn" if thinned else "")
            + ". Local steps and time count every client that was asked, also where the upload was lost."
        )
    )


def _plain_table(table: tables.Table, comparison: Comparison, kind: Callable[[int, str], str]) -> str:
    own = comparison.reference.name
    head = "".join(f"<th>{escape(word)}</th>" for word in table.header)
    body = "".join(
        f'<tr class="r{index}{" ref" if row[0] == own else ""}">'
        + "".join(f'<td class="{kind(column, cell)}">{escape(cell)}</td>' for column, cell in enumerate(row))
        + "</tr>"
        for index, row in enumerate(table.rows)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def targets(comparison: Comparison, charts: Charts) -> str:
    """Return the cost to each target."""

    def kind(column: int, cell: str) -> str:
        return "never" if cell == tables.NEVER else "ratio" if column in (3, 5, 7) else ""

    made = [tables.target_table(comparison, target) for target in comparison.targets]
    return "".join(f"<h3>{escape(t.title)}</h3>{_plain_table(t, comparison, kind)}{note(t.note)}" for t in made)


def _tick_row(scale: Scale, wanted: int = 3) -> str:
    ticks = scale.ticks(wanted)
    places = scale.share(np.array(ticks)) * 100
    words = "".join(f'<i style="left:{p:.1f}%">{tick_label(v)}</i>' for v, p in zip(ticks, places, strict=True))
    return f'<span class="ticks">{words}</span>'


def _domain(values: Sequence[float], zero: bool) -> Scale:
    known = [value for value in values if math.isfinite(value)] + [0.0] * zero
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = 0.04 * (high - low or 1.0)
    return Scale(low - margin, high + margin)


def finals(comparison: Comparison, charts: Charts) -> str:
    """Return the final metric of each seed and the paired differences, as a table with plots in it."""
    table = tables.final_table(comparison)
    entries, metric = comparison.entries, comparison.metric
    finals = [entry.final(metric) for entry in entries]
    pairs = [comparison.paired(entry) for entry in entries]
    x = _domain([value for final in finals for value in final.values()], zero=False)
    ends = [value for pair in pairs for value in (pair.mean, pair.low, pair.high)]
    d = _domain(ends, zero=True)
    rows = []
    for index, (entry, cells) in enumerate(zip(entries, table.rows, strict=True)):
        own = entry is comparison.reference
        values, pair = finals[index], pairs[index]
        seeds = ", ".join(f"seed {seed}: {tables.number(value)}" for seed, value in values.items())
        plot = strip(x, list(values.values()), comparison.spread(entry).mean)
        forest = "" if own else interval_strip(d, pair.mean, pair.low, pair.high)
        told = f"{entry.name} − {comparison.reference.name}: {cells[3]} {cells[4]}"
        rows.append(
            f'<tr class="r{index}{" ref" if own else ""}"><td>{escape(entry.name)}</td>'
            f'<td class="cell e{index}" data-tip="{escape(seeds)}">{plot}</td><td>{cells[1]}</td><td>{cells[2]}</td>'
            f'<td class="cell e{index}"{"" if own else f" data-tip={chr(34)}{escape(told)}{chr(34)}"}>{forest}</td>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells[3:])
            + "</tr>"
        )
    heads = [table.header[0], "each seed and the mean", table.header[1], "best", f"minus {comparison.reference.name}"]
    head = "".join(f"<th>{escape(word)}</th>" for word in (*heads, "mean", *table.header[4:]))
    foot = f'<td></td><td class="cell">{_tick_row(x)}</td><td></td><td></td><td class="cell">{_tick_row(d)}</td>'
    return (
        f'<div class="scroll"><table id="final"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        f'<tfoot><tr>{foot}<td colspan="4"></td></tr></tfoot></table></div>{note(table.note)}'
    )


def classes(comparison: Comparison, charts: Charts) -> str:
    """Return the heat map of accuracies by class."""
    known = [(index, entry) for index, entry in enumerate(comparison.entries) if len(entry.class_accuracy)]
    if not known:
        return ""
    width = max(len(entry.class_accuracy) for _, entry in known)

    def cell(entry: Entry, number: int, value: float) -> str:
        if math.isnan(value):
            return f"<td>{tables.NEVER}</td>"
        mark = " lost" if value < FORGOTTEN else " hot" if value > 0.6 else ""
        told = f"{entry.name}, class {number}: {value:.3f}"
        return f'<td class="h{mark}" style="--p:{value * 92:.0f}%" data-tip="{escape(told)}">{100 * value:.0f}</td>'

    def forgotten(entry: Entry) -> int:
        return int((entry.class_accuracy < FORGOTTEN).sum())

    body = "".join(
        f'<tr class="r{index}{" ref" if entry is comparison.reference else ""}"><td>{escape(entry.name)}</td>'
        + "".join(cell(entry, number, value) for number, value in enumerate(entry.class_accuracy.tolist()))
        + f"<td>{forgotten(entry) or ''}</td></tr>"
        for index, entry in known
    )
    head = "".join(f"<th>{number if width <= 30 else ''}</th>" for number in range(width))
    tight = " tight" if width > 30 else ""
    return (
        f'<div class="scroll"><table class="heat{tight}" id="classes"><thead><tr><th>class</th>{head}'
        f"<th>forgotten</th></tr></thead><tbody>{body}</tbody></table></div>"
        + note(f"Per cent of the class, mean over seeds, last evaluated round. Framed: below {100 * FORGOTTEN:.0f} %.")
    )


def objective(comparison: Comparison, charts: Charts) -> str:
    """Return Omega against w and the chi-square distance over the rounds."""
    html = omega_cards(comparison)
    if html:
        html += note(
            "Ω / w of every client, mean over rounds and seeds, one logarithmic axis; on the line: as asked for."
        )
    if all("chi2" in run.metrics for run in comparison.runs):
        chart = Chart(
            identity="chi-square", x_label="rounds", y_label="χ² distance of Ω from w", height=250, logarithmic=True
        )
        drawing, charts[chart.identity] = line_chart(chart, series(comparison, "round", "chi2"))
        html += drawing + note("Values below 1e−6 are drawn at the bottom: they are 0 but for rounding.")
    return html


def participation(comparison: Comparison, charts: Charts) -> str:
    """Return draws and deliveries against the plan."""
    html = participation_cards(comparison)
    marks = (("plan", "M0 5h16", "planned draws"), ("dot", "M8 5h0", "drawn"), ("ring", "M8 5h0", "delivered"))
    keys = "".join(
        f'<span class="key"><svg viewBox="0 0 16 10"><path class="{kind}" d="{path}"/></svg>{word}</span>'
        for kind, path, word in marks
    )
    told = "of each client in a round, mean over rounds and seeds; one axis for all."
    return f'{html}<p class="cap">{keys}{told}</p>' if html else ""


def conditions(comparison: Comparison, charts: Charts) -> str:
    """Return T and q, and whether all algorithms met the same."""
    told = (
        f'<p class="note warn">Not paired: {escape(", ".join(comparison.unpaired))} met other data sizes, T or q than '
        f"{escape(comparison.reference.name)} under the same seed.</p>"
        if comparison.unpaired
        else note("Checked: under one seed, every algorithm met the same clients, the same T and the same q.")
    )
    return condition_charts(comparison) + told
