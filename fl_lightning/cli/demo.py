"""``fl-lightning demo``: what FedAvg would optimise on the digits, and FedAvg against what is recommended."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning.cli.main import OneLineParser
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.figures.style import BLUE, INK, MUTED, ORANGE, bare, blank, draw, whole_ticks
from fl_lightning.output import loading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fl_lightning.diagnosis.objective import Diagnosis
    from fl_lightning.runs.reading import Run
    from fl_lightning.runs.records import Vector

_DATA = "digits.yaml"
_NAMES = ("fedavg", configs.RECOMMENDED)
_LAST = 0.8  # of the computation, after which accuracies are averaged


def mean_before(budget: float, steps: "Vector", accuracy: "Vector") -> float:
    """Return the mean accuracy over the last fifth of a number of local steps.

    >>> import numpy as np
    >>> mean_before(10, np.array([1, 8, 9, 20]), np.array([0.1, 0.4, 0.6, 0.9]))
    0.6
    """
    found = accuracy[(steps > _LAST * budget) & (steps <= budget)]
    return float(found.mean() if len(found) else accuracy[-1])


def _curve(run: "Run") -> tuple["Vector", "Vector"]:
    """Return the local steps so far and the accuracy at each evaluation."""
    import numpy as np

    evaluated = ~np.isnan(run.metrics["test_accuracy"])
    return run.metrics["local_steps"][evaluated], run.metrics["test_accuracy"][evaluated]


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning demo", description=__doc__, allow_abbrev=False)
    parser.add_system()
    parser.add_argument("--out", default="runs/demo", help="folder of everything (default: runs/demo)")
    parser.add_argument("--rounds", type=int, default=150, help="rounds of FedAvg (default: 150)")
    parser.add_argument("--seed", type=int, default=0, help="of every random stream (default: 0)")
    return parser


def main(arguments: list[str]) -> int:
    """Diagnose, train both, and show a table, a picture and a page."""
    options, overrides = make_parser().parse_known_args(arguments)
    if options.rounds < 1:
        raise configs.ConfigError(f"--rounds {options.rounds} must be at least 1")
    merged = configs.compose([_DATA], options.system)
    early.check(merged, overrides, (), ("out", "rounds", "seed", "system"))
    with loading():
        from rich.console import Console

        import fl_lightning.diagnosis.systems  # noqa: F401  heavy: torch, lightning
        from fl_lightning.cli.report import warn
        from fl_lightning.report.outcome import load
    out = Path(options.out)
    console = Console(highlight=False)
    found, advice = _diagnosed(merged, overrides)
    console.print("[bold]Before anybody trains[/]", *(f"  {line}" for line in advice), "", sep="\n")
    rounds = {each.name: max(1, round(options.rounds * found[0].work / each.work)) for each in found}
    runs = [_train(each.name, rounds[each.name], out, options, overrides) for each in found]
    budget = min(_curve(run)[0][-1] for run in runs)
    console.print(_table(runs, rounds, budget))
    missing = draw(lambda: _figure(found, runs, budget), out / "demo.png")
    console.print(missing or f"picture: {out / 'demo.png'}", markup=False, soft_wrap=True)
    load([out], warn, configs.RECOMMENDED).write(out / "report", figures=False)
    page = out / "report" / "index.html"
    if page.is_file():  # as a link that a terminal opens
        print(f"page: {page.resolve().as_uri()}")
    console.print(f"next: fl-lightning train --config digits_{_NAMES[1]}.yaml", soft_wrap=True)
    return 0


def _diagnosed(merged: dict[str, Any], overrides: list[str]) -> tuple[list["Diagnosis"], list[str]]:
    """Return what both would optimise, and the same in words."""
    from fl_lightning.config import algorithm_parts as parts
    from fl_lightning.diagnosis.objective import recommend
    from fl_lightning.diagnosis.systems import diagnosed, planner_of_config
    from fl_lightning.diagnosis.words import verdict

    outer, inner = parts.split_overrides(overrides)
    planner, label_counts, _ = planner_of_config(parts.environment(merged, outer), parts.model_bytes(merged))
    found, _ = diagnosed(parts.algorithms(merged, list(_NAMES), inner), planner)
    return found, verdict(found, recommend(found), label_counts)[:2]


def _train(name: str, rounds: int, out: Path, options: Namespace, overrides: list[str]) -> "Run":
    """Train one of the two, or take what is there from before."""
    from fl_lightning.config import building
    from fl_lightning.runs import reading

    print(f"training {name}: {rounds} rounds", file=sys.stderr, flush=True)
    settings = [*overrides, "--loop.rounds", str(rounds), "--seed", str(options.seed), "--logger", "none"]
    parsed = building.parse(configs.compose([f"digits_{name}.yaml"], options.system), settings)
    parsed.run_dir = str(out / name / f"seed_{options.seed}")
    run = building.build(parsed, f"digits_{name}")
    run.execute("auto")
    return reading.load(run.run_dir)


def _table(runs: list["Run"], rounds: dict[str, int], budget: float) -> Any:
    from rich import box
    from rich.table import Table

    note = f"Accuracy: mean over the last fifth of the first {budget:,.0f} local steps, so at equal computation."
    table = Table(caption=note, caption_justify="left", box=box.SIMPLE_HEAD, header_style="bold")
    for name in ("algorithm", "rounds", "local steps", "test accuracy", "worst digit"):
        table.add_column(name, justify="left" if name == "algorithm" else "right", no_wrap=True)
    for run in runs:
        steps, accuracy = _curve(run)
        worst = f"{min(run.summary.per_class_accuracy):.2f}" if run.summary.per_class_accuracy else "-"
        mean = f"{mean_before(budget, steps, accuracy):.3f}"
        table.add_row(run.algorithm, str(rounds[run.algorithm]), f"{steps[-1]:,.0f}", mean, worst)
    return table


def _figure(found: list["Diagnosis"], runs: list["Run"], budget: float) -> "Figure":
    """Draw both objectives beside the one that was asked for, and both accuracies against the local steps."""
    import numpy as np

    figure = blank(10, 3.8)
    left, right = figure.subplots(1, 2)
    clients = np.arange(len(found[0].weights))
    for each, shift, colour in zip(found, (-0.2, 0.2), (ORANGE, BLUE), strict=True):
        left.bar(clients + shift, each.effective_weights, width=0.4, color=colour, label=each.name)
    edges = np.r_[-0.5, clients + 0.5]
    left.step(edges, np.r_[found[0].weights[:1], found[0].weights], where="pre", color=INK, label="asked for")
    left.set(xlabel="client", title="share of the objective", xlim=(-0.6, len(clients) - 0.4))
    whole_ticks(left, 10)
    for run, colour in zip(runs, (ORANGE, BLUE), strict=True):
        right.plot(*_curve(run), color=colour, label=run.algorithm, linewidth=1.2)
    right.axvline(budget, color=MUTED, linewidth=0.8, linestyle=":")
    right.set(xlabel="local steps of all clients", title="test accuracy", ylim=(0, 1))
    right.set_xlim(0, max(_curve(run)[0][-1] for run in runs))
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
        bare(axes)
    return figure
