"""The tables of a report, for people (Markdown, LaTeX) and for programs (CSV with all digits)."""

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fl_lightning.report.comparison import COSTS, Comparison, Entry
from fl_lightning.report.statistics import Paired, Spread, spread

NEVER = "–"
_COSTS = {"round": "rounds", "local_steps": "local steps", "computation_time": "computation time"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its words for people and its numbers for programs."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Mapping[str, Any], ...]
    note: str = ""

    def to_csv(self) -> str:
        """Return the numbers."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.records[0]) if self.records else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: "" if _is_nan(value) else value for key, value in row.items()} for row in self.records)
        return text.getvalue()

    def to_markdown(self) -> str:
        """Return the words as a Markdown table."""
        lines = [self.header, tuple("---" for _ in self.header), *self.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)
        return f"**{self.title}**\n\n{body}\n\n{self.note}\n"

    def to_latex(self) -> str:
        """Return the words as a LaTeX table (needs the package booktabs)."""
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(self.title)}. {_tex(self.note)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
            r"\toprule",
            " & ".join(map(_tex, self.header)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_tex, row)) + r" \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def _is_nan(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


_TEX = {letter: f"\\{letter}" for letter in "&%_#${}"} | {
    "±": r"$\pm$",
    "–": "--",
    "×": r"$\times$",
    "−": "$-$",
    "≥": r"$\geq$",
    "\\": r"\textbackslash{}",
    "Ω": r"$\Omega$",
    "ε": r"$\varepsilon$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)


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


def final_table(comparison: Comparison) -> Table:
    """Return the final metric of each algorithm with its paired difference to the reference."""
    made = [_final_row(comparison, entry) for entry in comparison.entries]
    name = comparison.metric_name
    header = (
        "algorithm",
        f"final {name}",
        *(words for words, _ in _more_values(comparison)),
        "best",
        *(["ε"] if comparison.private else []),
        f"− {comparison.reference.name}",
        "95 % interval",
        "above\u00a0/\u00a0below",
        "p",
    )
    rows, records = zip(*made, strict=True)
    return Table(
        name="final",
        title=f"Final {name}",
        header=header,
        rows=tuple(rows),
        records=tuple(records),
        note=_final_note(comparison),
    )


def _more_values(comparison: Comparison) -> list[tuple[str, Callable[[Entry], dict[int, float]]]]:
    """Return what stands beside the last round: its heading and the value of each seed of an algorithm."""
    metric, averaged = comparison.metric, comparison.averaged_metric
    columns: list[tuple[str, Callable[[Entry], dict[int, float]]]] = [
        (comparison.late_words, lambda entry: entry.late(metric))
    ]
    if any(averaged in run.metrics for run in comparison.runs):
        columns.append(("averaged model", lambda entry: entry.final(averaged)))
    return columns


def plus_minus(values: Spread) -> str:
    """Return mean ± standard deviation; the mean alone for a single seed.

    >>> plus_minus(Spread(0.5, 0.01, 3)), plus_minus(Spread(0.5, float("nan"), 1))
    ('0.500 ± 0.010', '0.500')
    """
    return number(values.mean) + ("" if math.isnan(values.deviation) else f" ± {number(values.deviation)}")


def _final_row(comparison: Comparison, entry: Entry) -> tuple[tuple[str, ...], dict[str, Any]]:
    metric, own = comparison.metric, entry is comparison.reference
    final, pair = comparison.spread(entry), comparison.paired(entry)
    late, averaged = (spread(list(entry.late(metric).values())), entry.final(comparison.averaged_metric))
    interval = NEVER if math.isnan(pair.low) else f"[{number(pair.low, sign=True)}, {number(pair.high, sign=True)}]"
    wins, losses = int((pair.differences > 0).sum()), int((pair.differences < 0).sum())
    against = (number(pair.mean, sign=True), interval, f"{wins} / {losses}", number(pair.sign_test, 2))
    cells = (
        entry.name,
        plus_minus(final),
        *(plus_minus(spread(list(values(entry).values()))) for _, values in _more_values(comparison)),
        number(spread(list(entry.best(metric).values())).mean),
        *([number(entry.epsilon, 2)] if comparison.private else []),
        *([""] * len(against) if own else against),
    )
    record = {
        "algorithm": entry.name,
        "seeds": final.count,
        f"final_{metric}": final.mean,
        "standard_deviation": final.deviation,
        f"last_{metric}": late.mean,
        "last_standard_deviation": late.deviation,
        comparison.averaged_metric: spread(list(averaged.values())).mean,
        f"best_{metric}": spread(list(entry.best(metric).values())).mean,
        "difference": pair.mean,
        "interval_low": pair.low,
        "interval_high": pair.high,
        "seeds_above": wins,
        "seeds_below": losses,
        "sign_test_p": pair.sign_test,
    }
    return cells, record | ({"epsilon": entry.epsilon} if comparison.private else {})


def _final_note(comparison: Comparison) -> str:
    smallest = 2.0 ** (1 - len(comparison.seeds))
    better = "" if comparison.maximised else "Lower is better. "
    return (
        f"{better}Mean ± standard deviation over seeds: last round, mean of the {comparison.late_words}. "
        "Differences of the last round are paired by seed; the interval is Student's, for one "
        "comparison at a time, not corrected for their number; p is the exact two-sided sign test, "
        f"which with {len(comparison.seeds)} seeds cannot go below {min(1.0, smallest):.2g}."
        + (f" ε: client-level differential privacy, largest of all seeds; {NEVER}: none." if comparison.private else "")
    )


def target_table(comparison: Comparison, target: float) -> Table:
    """Return what each algorithm spends to reach a target, with ratios to the reference."""
    rows, records = [], []
    for entry in comparison.entries:
        cells, record = _target_row(comparison, entry, target)
        rows.append(cells)
        records.append(record)
    base = comparison.reference_for(target)
    header = ("algorithm", "seeds", *(word for what in _COSTS.values() for word in (what, f"× {base.name}")))
    other = "" if base is comparison.reference else f"{comparison.reference.name} never reached it. "
    note = (
        f"Cost up to the first evaluation with accuracy ≥ {target:g}, mean over the seeds that reached it; {NEVER} for "
        f"never. {other}Ratios to {base.name}, over the seeds on which both reached it. Lost clients' work counts."
    )
    title = f"Cost to reach {target:g} test accuracy"
    return Table(
        name=f"target_{target:g}".replace(".", "_"),
        title=title,
        header=header,
        rows=tuple(rows),
        records=tuple(records),
        note=note,
    )


def _target_row(comparison: Comparison, entry: Entry, target: float) -> tuple[tuple[str, ...], dict[str, Any]]:
    costs = {axis: comparison.cost(entry, target, axis) for axis in _COSTS}
    reached = costs["round"]
    cells = [entry.name, f"{reached.reached}/{reached.count}"]
    record: dict[str, Any] = {"algorithm": entry.name, "reached": reached.reached, "seeds": reached.count}
    for axis, cost in costs.items():
        cells += [count(cost.mean), NEVER if math.isnan(cost.ratio) else f"{cost.ratio:.2f}×"]
        record |= {f"{axis}_to_target": cost.mean, f"{axis}_ratio": cost.ratio}
    return tuple(cells), record


def equal_cost_table(comparison: Comparison) -> Table | None:
    """Return the metric where every algorithm has spent the same, for each cost; None where no cost is counted."""
    axes, own = comparison.equal_costs, comparison.reference
    if not axes:
        return None
    rows, records = [], []
    for entry in comparison.entries:
        cells, record = [entry.name], dict[str, Any](algorithm=entry.name)
        for axis, cost in axes.items():
            spread, pair = comparison.at_equal_cost(entry, axis)
            cells += [number(spread.mean), "" if entry is own else _difference(pair)]
            record |= {
                f"{axis}_spent": cost,
                f"at_equal_{axis}": spread.mean,
                f"at_equal_{axis}_deviation": spread.deviation,
                f"at_equal_{axis}_difference": pair.mean,
                f"at_equal_{axis}_low": pair.low,
                f"at_equal_{axis}_high": pair.high,
            }
        rows.append(tuple(cells))
        records.append(record)
    heads = [word for axis, cost in axes.items() for word in (f"{count(cost)} {COSTS[axis]}", f"− {own.name}")]
    return Table(
        name="equal_cost",
        title=f"{comparison.metric_name.capitalize()} at equal cost",
        header=("algorithm", *heads),
        rows=tuple(rows),
        records=tuple(records),
        note="The most that every run has spent; between two evaluations on the line through them. Mean over seeds, "
        "and the paired difference with its 95 % interval. Lost clients' work, time and bytes count.",
    )


def _difference(pair: Paired) -> str:
    interval = "" if math.isnan(pair.low) else f" [{number(pair.low, sign=True)}, {number(pair.high, sign=True)}]"
    return f"{number(pair.mean, sign=True)}{interval}"


def class_table(comparison: Comparison) -> Table | None:
    """Return the final accuracy of each class; None when the runs have no classes."""
    known = [entry for entry in comparison.entries if len(entry.class_accuracy)]
    if not known:
        return None
    width = max(len(entry.class_accuracy) for entry in known)
    rows = [(entry.name, *(number(value, 2) for value in entry.class_accuracy)) for entry in known]
    records = [
        {"algorithm": entry.name}
        | {f"class_{index}": value for index, value in enumerate(entry.class_accuracy.tolist())}
        for entry in known
    ]
    header = ("algorithm", *map(str, range(width)))
    note = "Mean over seeds of the last evaluated round."
    return Table(
        name="classes",
        title="Final accuracy of each class",
        header=header,
        rows=tuple(rows),
        records=tuple(records),
        note=note,
    )


def all_tables(comparison: Comparison) -> list[Table]:
    """Return every table of the report."""
    tables = [final_table(comparison), *(target_table(comparison, target) for target in comparison.targets)]
    others = (equal_cost_table(comparison), class_table(comparison))
    return [*tables, *(table for table in others if table is not None)]
