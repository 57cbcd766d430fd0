"""An audit in words, as tables, as JSON, as a page, and as a check."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fl_lightning.audit.chance import Interval
from fl_lightning.audit.cures import AS_IT_IS
from fl_lightning.audit.estimate import Aggregation, Assumed, Audit, Band, Wanted, audit
from fl_lightning.audit.log import read_log
from fl_lightning.diagnosis.objective import Diagnosis, recommend
from fl_lightning.figures.style import draw
from fl_lightning.output import write_durably
from fl_lightning.theory.checks import Vector

WIDE = 120
_SHOWN = 5  # clients above and below
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<title>What does your federation optimise?</title></head>
<body style="max-width:70em;margin:2em auto;font-family:sans-serif">
<pre style="line-height:1.35">{code}</pre><hr></body></html>
"""
_WANTED = {"examples": "the shares of examples", "equal": "equal weights"}
_UNKNOWN = (
    "Nobody told local steps, and the objective hangs on them: it is {near:.2f} away if all clients take equally many "
    "per upload{far}. Who is asked and who arrives is known all the same. Add the column steps, or --epochs and "
    "--batch_size, or decide by --assume."
)


def verdict(audited: Audit) -> list[str]:
    """Return in plain words what was optimised, and what is not known."""
    far, equal = audited.distance, audited.distance_from_equal
    lines = [
        f"{len(audited.names):,} clients, {audited.num_rounds:,} rounds, {audited.num_arrived:.3g} of "
        f"{audited.num_draws:.3g} uploads arrived in a round.",
        f"Distance (L1) of what was optimised from {_WANTED[audited.wanted]}: {_span(far)}, so that about "
        f"{percent(far.value / 2)} of the objective is in the wrong place"
        + (f"; from equal weights: {_span(equal)}." if audited.wanted != "equal" else "."),
    ]
    if audited.num_rounds == 1:
        lines.append("One round says nothing about chance: log more of them.")
    elif far.low == 0 and far.high > 0.01:
        lines.append("Nothing here is more than chance may have made: log more rounds to know.")
    if not audited.certain:
        other = audited.otherwise
        more = f", and {other.distance.value:.2f} if they grow with the examples, as epochs do" if other else ""
        lines.append(_UNKNOWN.format(near=far.value, far=more))
    elif audited.steps_from != "log":
        lines.append(f"Local steps are made of {audited.steps_from}.")
    return [*lines, *audited.notes]


def _span(interval: Interval) -> str:
    return f"{interval.value:.3f} (90 %: {interval.low:.3f} to {interval.high:.3f})"


def percent(share: float) -> str:
    """Return a share as it is read.

    >>> percent(0.1234), percent(0.0012)
    ('12 %', '0.12 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 or share < 1e-6 else f"{100 * share:.2g} %"


def extremes(audited: Audit) -> list[int]:
    """Return the clients that are surely over-represented, most first, and the surely under-represented, least last."""
    outside = audited.outside
    order = np.argsort(-outside, kind="stable")
    above = [int(client) for client in order[:_SHOWN] if outside[client] > 0]
    below = [int(client) for client in order[-_SHOWN:] if outside[client] < 0]
    return above + below


def client_table(audited: Audit) -> Table:
    """Return the clients whose share is surely not what was wanted, and why."""
    table = _table("Who counts more, and who less, than wanted (90 % bands)")
    for name in ("client", "wanted", "optimised", "asked", "lost", "steps", "weight in a round"):
        table.add_column(name, justify="left" if name == "client" else "right")
    for client in extremes(audited):
        style = "bold" if audited.outside[client] > 0 else ""
        cells = [_shares(band, client) for band in (audited.objective, audited.asked, audited.lost)]
        steps = f"{audited.steps.value[client]:.3g}" if audited.certain else "?"
        cells += [steps, percent(float(np.nan_to_num(audited.applied.value[client])))]
        table.add_row(escape(audited.names[client]), percent(float(audited.weights[client])), *cells, style=style)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _shares(band: Band, client: int) -> str:
    value, low, high = (float(column[client]) for column in (band.value, band.low, band.high))
    return "-" if np.isnan(value) else f"{percent(value)} ({100 * low:.2g}..{100 * high:.2g})"


def cure_table(audited: Audit, found: Sequence[Diagnosis]) -> Table:
    """Return what each cure would give and cost, if clients stay as they are."""
    table = _table("What would help, if clients stay as they are")
    for name in ("", "L1", "steps per round", "cost", "must be known"):
        table.add_column(name, justify="right" if name in ("L1", "steps per round", "cost") else "left")
    choice = recommend(found)
    for one in found:
        work, cost = (f"{one.work:.3g}", f"{choice.cost(one):.2f}") if audited.certain else ("?", "?")
        style = "green" if one.consistent else ""
        table.add_row(
            one.name, f"{one.distance:.3f}", work, cost, "" if one.name == AS_IT_IS else str(one.needs), style=style
        )
    table.caption = (
        "cost: local steps for equal progress. The theory divides by the number of draws, not by what arrives."
    )
    table.caption_justify = "left"
    return table


def show(console: Console, audited: Audit, found: Sequence[Diagnosis], title: str) -> None:
    """Print words and tables."""
    console.print(f"What this federation optimises: {title}", style="bold", highlight=False, markup=False)
    for line in verdict(audited):
        console.print(line, highlight=False, markup=False)
    if extremes(audited):
        console.print(client_table(audited))
    console.print(cure_table(audited, found))


def draw_picture(audited: Audit, found: Sequence[Diagnosis], path: Path) -> str | None:
    """Draw the objective as it is and with each cure; return what is missing for that, if anything is."""
    from fl_lightning.figures.clients import diagnosis_figure

    steps, lost = (np.nan_to_num(band.value) for band in (audited.steps, audited.lost))
    return draw(lambda: diagnosis_figure(found, steps, lost), path)


def write_page(audited: Audit, found: Sequence[Diagnosis], path: Path, title: str) -> None:
    """Write words, tables and, where matplotlib is installed, the picture as one HTML file."""
    console = Console(width=WIDE, record=True, file=io.StringIO())
    show(console, audited, found, title)
    page = console.export_html(inline_styles=True, code_format=_PAGE)
    with TemporaryDirectory() as folder:
        picture = Path(folder) / "picture.svg"
        missing = draw_picture(audited, found, picture)
        svg = "" if missing else picture.read_text(encoding="utf-8").partition("<svg")[2]
    write_durably(path, page.replace("<hr>", f"<svg{svg}" if svg else "").encode())


def as_json(audited: Audit, found: Sequence[Diagnosis]) -> str:
    """Return an audit as JSON; null where something is not known."""
    columns: dict[str, Vector] = {"wanted": audited.weights}
    bands = {
        "objective": audited.objective,
        "asked_share": audited.asked,
        "lost_share": audited.lost,
        "steps": audited.steps,
        "applied_weight": audited.applied,
    }
    for name, band in bands.items():
        prefix = "" if name == "objective" else f"{name}_"
        columns |= {name: band.value, f"{prefix}low": band.low, f"{prefix}high": band.high}
    single = {"examples": audited.examples, "pull": audited.pull, "staleness": audited.staleness}
    columns |= {name: values for name, values in single.items() if values is not None}
    lists = {name: [_plain(value) for value in values.tolist()] for name, values in columns.items()}
    choice = recommend(found)
    record = {
        "rounds": audited.num_rounds,
        "wanted": audited.wanted,
        **{f"distance{end}": number for end, number in zip(("", "_low", "_high"), audited.distance, strict=True)},
        "distance_from_equal": audited.distance_from_equal.value,
        "certain": audited.certain,
        "steps_from": audited.steps_from,
        "distance_if_steps_grow_with_examples": audited.otherwise and audited.otherwise.distance.value,
        "cures": [
            {"name": one.name, "distance": one.distance, "steps_per_round": one.work, "cost": _plain(choice.cost(one))}
            for one in found
        ],
        "notes": list(audited.notes),
        "clients": [
            dict(zip(("client", *lists), row, strict=True)) for row in zip(audited.names, *lists.values(), strict=True)
        ],
    }
    return json.dumps(record, indent=None if len(audited.names) > 1000 else 1, allow_nan=False)


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None


def assert_objective(
    path: str | Path,
    *,
    at_most: float,
    wanted: Wanted | None = None,
    aggregation: Aggregation = "ratio",
    epochs: float | None = None,
    batch_size: int | None = None,
    assume: Assumed | None = None,
) -> Audit:
    """Raise AssertionError if what a federation optimised is surely further from what was wanted than it may be (L1).

    The low end of the 90 % interval decides: chance alone raises in 1 log of 20. The largest distance, ``at_most``, is
    from 0 to 2; all but the path of the log and this is as in :func:`fl_lightning.audit.audit`.
    """
    found = audit(
        read_log(path), wanted=wanted, aggregation=aggregation, epochs=epochs, batch_size=batch_size, assume=assume
    )
    if too_far(found, at_most, assume):
        raise AssertionError(" ".join(verdict(found)))
    return found


def too_far(audited: Audit, at_most: float, assume: Assumed | None) -> bool:
    """Return whether the low end of the distance is above a limit; refuse where that hangs on what nobody knows."""
    if not 0 <= at_most <= 2:
        raise ValueError(f"the largest distance must be from 0 to 2, but is {at_most:g}")
    if not audited.certain and assume is None:
        raise ValueError("the distance hangs on local steps, which the log lacks: add them, or say what to assume")
    return audited.distance.low > at_most
