"""The tables of a report, for people (Markdown, LaTeX) and for programs (CSV with all digits)."""

import csv
import html
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from fl_lightning.report.comparison import COSTS, Comparison, Entry
from fl_lightning.report.statistics import Paired, Spread, paired, spread

NEVER = "–"
_COSTS = {"round": "rounds", "local_steps": "local steps", "computation_time": "computation time"}
_TEX = {letter: f"\\{letter}" for letter in "&%_#${}"} | {
    "±": r"$\pm$",
    "–": "--",
    "×": r"$\times$",
    "−": "$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",  # two of them and a number stand for any character
    "~": r"\textasciitilde{}",
    "Ω": r"$\Omega$",
    "ε": r"$\varepsilon$",
}
_RECOMPUTABLE = " The noise has a fixed key and can be recomputed: ε is what a secret key would give."
_LATEX = r"""\begin{table}
\centering
\caption{%s. %s}
\begin{tabular}{%s}
\toprule
%s
\midrule
%s
\bottomrule
\end{tabular}
\end{table}
"""


class Column(NamedTuple):
    """A cell with its heading, for people, and the same in numbers, for programs."""

    heading: str
    cell: str
    numbers: Mapping[str, float]


Columns = Callable[[Comparison, Entry], Iterable[Column]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its words for people and its numbers for programs."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Mapping[str, str | float], ...] = ()
    note: str = ""

    def to_csv(self) -> str:
        """Return the numbers."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.records[0]) if self.records else [], lineterminator="\n")
        writer.writerow({key: _csv(key) for key in writer.fieldnames})
        writer.writerows({key: _csv(value) for key, value in row.items()} for row in self.records)
        return text.getvalue()

    def to_markdown(self) -> str:
        """Return the words as a Markdown table."""
        lines = [self.header, tuple("---" for _ in self.header), *self.rows]
        body = "\n".join("| " + " | ".join(map(_markdown, row)) + " |" for row in lines)
        return f"**{_markdown(self.title)}**\n\n{body}\n\n{_markdown(self.note)}\n"

    def to_latex(self) -> str:
        """Return the words as a LaTeX table (needs the package booktabs)."""
        header, *rows = (" & ".join(map(_tex, row)) + r" \\" for row in (self.header, *self.rows))
        columns = "l" + "r" * (len(self.header) - 1)
        return _LATEX % (_tex(self.title), _tex(self.note), columns, header, "\n".join(rows))


def _table(comparison: Comparison, name: str, title: str, note: str, columns: Columns) -> Table:
    made = [(entry.name, list(columns(comparison, entry))) for entry in comparison.entries]
    longest = max((cells for _, cells in made), key=len)
    return Table(
        name=name,
        title=title,
        header=("algorithm", *(column.heading for column in longest)),
        rows=tuple((algorithm, *(column.cell for column in cells)) for algorithm, cells in made),
        records=tuple(
            {"algorithm": algorithm, **{key: value for column in cells for key, value in column.numbers.items()}}
            for algorithm, cells in made
        ),
        note=note,
    )


def _csv(value: str | float) -> str | float:
    """Return a cell: empty for NaN, and a text that no spreadsheet takes for a formula."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return "" if math.isnan(value) else value


def _markdown(text: str) -> str:
    """Return a text as Markdown shows it: no HTML, no links or pictures, no ends of cells."""
    plain = html.escape(text, quote=False).replace("\\", "\\\\").replace("|", "\\|")
    return " ".join(plain.splitlines()).replace("](", "]\\(")


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter if letter.isprintable() or letter == "\u00a0" else " ") for letter in text)


def number(value: float, digits: int = 3, sign: bool = False) -> str:
    """Return a number for people, with a real minus; a dash when there is none.

    >>> number(-0.0123), number(0.5, sign=True), number(float("nan"))
    ('−0.012', '+0.500', '–')
    """
    if math.isnan(value):
        return NEVER
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def count(value: float) -> str:
    """Return a rounded count with thin groups of thousands.

    >>> count(12345.6), count(37.0)
    ('12 346', '37')
    """
    return NEVER if math.isnan(value) else f"{value:,.0f}".replace(",", " ")


def plus_minus(values: Spread) -> str:
    """Return mean ± standard deviation; the mean alone for a single seed.

    >>> plus_minus(Spread(0.5, 0.01, 3)), plus_minus(Spread(0.5, float("nan"), 1))
    ('0.500 ± 0.010', '0.500')
    """
    return number(values.mean) + ("" if math.isnan(values.deviation) else f" ± {number(values.deviation)}")


def _interval(pair: Paired, unknown: str = NEVER) -> str:
    return unknown if math.isnan(pair.low) else f"[{number(pair.low, sign=True)}, {number(pair.high, sign=True)}]"


def final_table(comparison: Comparison) -> Table:
    """Return the final metric of each algorithm with its paired difference to the reference."""
    note = (
        ("" if comparison.maximised else "Lower is better. ")
        + f"Mean ± standard deviation over seeds: last round, mean of the {comparison.late_words}. "
        "Differences of the last round are paired by seed; the interval is Student's, for one "
        "comparison at a time, not corrected for their number; p is the exact two-sided sign test, "
        f"which with {len(comparison.seeds)} seeds cannot go below {min(1.0, 2.0 ** (1 - len(comparison.seeds))):.2g}."
        + (f" ε: client-level differential privacy, largest of all seeds; {NEVER}: none." if comparison.private else "")
        + (_RECOMPUTABLE if any(run.summary.noise_key not in (None, "secret") for run in comparison.runs) else "")
    )
    return _table(comparison, "final", f"Final {comparison.metric_name}", note, _final_columns)


def _final_columns(comparison: Comparison, entry: Entry) -> list[Column]:
    metric = comparison.metric
    averaged_metric = f"averaged_{metric.removeprefix('test_')}"  # which runs may lack
    final, late = comparison.spread(entry), spread(entry.late().values())
    averaged = spread(entry.final(averaged_metric).values())
    best = spread(entry.best().values()).mean
    is_averaged = any(averaged_metric in run.metrics for run in comparison.runs)
    return [
        Column(
            f"final {comparison.metric_name}",
            plus_minus(final),
            {"seeds": final.count, f"final_{metric}": final.mean, "standard_deviation": final.deviation},
        ),
        Column(
            comparison.late_words,
            plus_minus(late),
            {f"last_{metric}": late.mean, "last_standard_deviation": late.deviation, averaged_metric: averaged.mean},
        ),
        *([Column("averaged model", plus_minus(averaged), {})] if is_averaged else []),
        Column("best", number(best), {f"best_{metric}": best}),
        *([Column("ε", number(entry.epsilon, 2), {})] if comparison.private else []),
        *_against(comparison, entry),
    ]


def _against(comparison: Comparison, entry: Entry) -> list[Column]:
    """Return the final metric's difference to the reference, whose own cells are empty."""
    pair = comparison.paired(entry)
    above, below = int((pair.differences > 0).sum()), int((pair.differences < 0).sum())
    last = {"sign_test_p": pair.sign_test} | ({"epsilon": entry.epsilon} if comparison.private else {})
    columns = [
        Column(f"− {comparison.reference.name}", number(pair.mean, sign=True), {"difference": pair.mean}),
        Column("95 % interval", _interval(pair), {"interval_low": pair.low, "interval_high": pair.high}),
        Column("above\u00a0/\u00a0below", f"{above} / {below}", {"seeds_above": above, "seeds_below": below}),
        Column("p", number(pair.sign_test, 2), last),
    ]
    return [column._replace(cell="") for column in columns] if entry is comparison.reference else columns


def target_table(comparison: Comparison, target: float) -> Table:
    """Return what each algorithm spends to reach a target, with ratios to the reference."""
    base = comparison.reference_for(target).name
    other = "" if base == comparison.reference.name else f"{comparison.reference.name} never reached it. "

    def columns(comparison: Comparison, entry: Entry) -> Iterator[Column]:
        costs = {axis: comparison.cost(entry, target, axis) for axis in _COSTS}
        reached, seeds = costs["round"].reached, costs["round"].count
        yield Column("seeds", f"{reached}/{seeds}", {"reached": reached, "seeds": seeds})
        for axis, cost in costs.items():
            yield Column(_COSTS[axis], count(cost.mean), {f"{axis}_to_target": cost.mean})
            ratio = NEVER if math.isnan(cost.ratio) else f"{cost.ratio:.2f}×"
            yield Column(f"× {base}", ratio, {f"{axis}_ratio": cost.ratio})

    short, sign = comparison.metric_name.removeprefix("test "), "≥" if comparison.maximised else "≤"
    note = (
        f"Cost up to the first evaluation with {short} {sign} {target:g}, mean over the seeds that reached it; "
        f"{NEVER} for never. {other}Ratios to {base}, over the seeds on which both reached it. Lost clients' work "
        "counts."
    )
    name = f"target_{target:g}".replace(".", "_")
    return _table(comparison, name, f"Cost to reach {target:g} {comparison.metric_name}", note, columns)


def equal_cost_table(comparison: Comparison) -> Table | None:
    """Return the metric where every algorithm has spent the same, for each cost; None where no cost is counted."""
    note = (
        "The most that every run has spent; between two evaluations on the line through them. Mean over seeds, "
        "and the paired difference with its 95 % interval. Lost clients' work, time and bytes count."
    )
    title = f"{comparison.metric_name.capitalize()} at equal cost"
    return _table(comparison, "equal_cost", title, note, _equal_cost_columns) if comparison.equal_costs else None


def _equal_cost_columns(comparison: Comparison, entry: Entry) -> Iterator[Column]:
    for axis, cost in comparison.equal_costs.items():
        own, other = (each.at_cost(axis, comparison.metric, cost) for each in (entry, comparison.reference))
        values, pair = spread(own.values()), paired(own, other)
        numbers = {
            f"{axis}_spent": cost,
            f"at_equal_{axis}": values.mean,
            f"at_equal_{axis}_deviation": values.deviation,
            f"at_equal_{axis}_difference": pair.mean,
            f"at_equal_{axis}_low": pair.low,
            f"at_equal_{axis}_high": pair.high,
        }
        spent = count(cost).replace(" ", "\u00a0")  # a number is not broken
        yield Column(f"{spent} {COSTS[axis]}", number(values.mean), numbers)
        difference = f"{number(pair.mean, sign=True)} {_interval(pair, '')}".rstrip()
        yield Column(f"− {comparison.reference.name}", "" if entry is comparison.reference else difference, {})


def class_table(comparison: Comparison) -> Table | None:
    """Return the final accuracy of each class; None when the runs have no classes."""
    known = [entry for entry in comparison.entries if len(entry.class_accuracy)]
    if not known:
        return None

    def columns(comparison: Comparison, entry: Entry) -> Iterator[Column]:
        for index, value in enumerate(entry.class_accuracy.tolist()):
            yield Column(str(index), number(value, 2), {f"class_{index}": value})

    note = "Mean over seeds of the last evaluated round."
    return _table(replace(comparison, entries=tuple(known)), "classes", "Final accuracy of each class", note, columns)


def all_tables(comparison: Comparison) -> list[Table]:
    """Return every table of the report."""
    tables = [final_table(comparison), *(target_table(comparison, target) for target in comparison.targets)]
    others = (equal_cost_table(comparison), class_table(comparison))
    return [*tables, *(table for table in others if table is not None)]
