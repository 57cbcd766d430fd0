"""The page: one HTML file with everything in it.

Every text is escaped; only what a template made is taken as HTML.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from fl_lightning.figures.style import require
from fl_lightning.report import client_charts, sections
from fl_lightning.report.axes import SIZE
from fl_lightning.report.charts import Charts, Values
from fl_lightning.report.comparison import Comparison, Entry
from fl_lightning.report.tables import plus_minus
from fl_lightning.runs.reading import Problem

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).resolve().parent
_COLOURS = 8
_MANY = 8  # algorithms, beyond which only the best few and the reference are drawn at first
_FEW = 5
_DASHES = ("", "6 3", "2 2.5", "9 3 2 3", "1 4")
_SECTIONS: dict[str, Callable[[Comparison, Charts], Values | None]] = {  # by the name of the template
    "curves": sections.curves,
    "targets": sections.targets,
    "equal_cost": sections.equal_cost,
    "finals": sections.finals,
    "classes": sections.classes,
    "objective": sections.objective,
    "fairness": client_charts.fairness,
    "participation": client_charts.participation,
    "conditions": client_charts.conditions,
}


def colours(comparison: Comparison) -> list[tuple[int, str]]:
    """Return colour and dashes of each algorithm: the reference has a colour of its own, the best are drawn through."""
    others = [entry for entry in comparison.entries if entry is not comparison.reference]
    chosen = {
        entry.name: (1 + place % (_COLOURS - 1), _DASHES[place // (_COLOURS - 1) % len(_DASHES)])
        for place, entry in enumerate(others)
    }
    return [chosen.get(entry.name, (0, "")) for entry in comparison.entries]


def hidden(comparison: Comparison) -> list[int]:
    """Return the places of the algorithms that are not drawn until switched on: none, or all but a few."""
    if len(comparison.entries) <= _MANY:
        return []
    return [p for p, entry in enumerate(comparison.entries) if p >= _FEW and entry is not comparison.reference]


def findings(comparison: Comparison) -> list[str]:
    """Return the outcome in sentences, whoever wins."""
    entries, reference = comparison.entries, comparison.reference
    values = [plus_minus(comparison.spread(entry)) for entry in entries]
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


def _what_ran(comparison: Comparison, problems: Sequence[Problem]) -> Values:
    """Return settings that differ, seconds, versions, what was rejected and what was left out."""
    rows = [_run_row(comparison, entry) for entry in comparison.entries]
    versions = {tuple(sorted(run.summary.versions.items())) for run in comparison.runs}
    return {
        "reference": comparison.reference.name,
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

    loader = FileSystemLoader(_FOLDER / "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals["SIZE"] = SIZE
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def _made_here(text: str) -> str:
    """Mark a text as HTML, so that no template escapes it."""
    from markupsafe import Markup

    return Markup(text)


def render(name: str, values: Mapping[str, object]) -> str:
    """Return the HTML of a template.

    >>> "Not paired: &lt;b&gt; met" in render("conditions", {"charts": [], "unpaired": ["<b>"], "reference": "x"})
    True
    """
    return _made_here(_templates().get_template(f"{name}.html.j2").render(values))  # templates escape what they get


def asset(name: str) -> str:
    """Return a file of this package, for a style or a script element."""
    return _made_here((_FOLDER / name).read_text(encoding="utf-8"))


def page(comparison: Comparison, problems: Sequence[Problem] = ()) -> str:
    """Return the whole page."""
    require("jinja2")
    charts: Charts = {}
    made = {name: make(comparison, charts) for name, make in _SECTIONS.items()}
    made["what_ran"] = _what_ran(comparison, problems)
    entries, runs = comparison.entries, comparison.runs
    clients, chosen = runs[0].clients, colours(comparison)
    names, reference = [entry.name for entry in entries], entries.index(comparison.reference)
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
            "names": names,
            "reference": reference,
            "hidden": hidden(comparison),
            "sections": {name: render(name, values) for name, values in made.items() if values is not None},
            "colours": chosen,
            "values": {
                "names": names,
                "colours": [colour for colour, _ in chosen],
                "reference": reference,
                "hidden": hidden(comparison),
                "rounds": max(float(run.metrics["round"][-1]) for run in runs),
                "charts": charts,
            },
            "style": asset("page.css"),
            "script": asset("page.js"),
        },
    )
