"""``fl-lightning demo``: what FedAvg would optimise on the digits, and FedAvg against what is recommended."""

import sys
from argparse import Namespace
from dataclasses import dataclass
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

_DATA = "digits.yaml"
_NAMES = ("fedavg", configs.RECOMMENDED)
_LAST = 0.8  # of the computation, after which accuracies are averaged


@dataclass(frozen=True, kw_only=True)
class Curve:
    """How a run went."""

    name: str
    steps: list[float]  # local steps so far, at each evaluation
    accuracy: list[float]
    class_accuracy: tuple[float, ...]

    def mean_before(self, budget: float) -> float:
        """Return the mean accuracy over the last fifth of a number of local steps.

        >>> Curve(name="x", steps=[1, 8, 9, 20], accuracy=[0.1, 0.4, 0.6, 0.9], class_accuracy=()).mean_before(10)
        0.6
        """
        pairs = zip(self.steps, self.accuracy, strict=True)
        found = [value for steps, value in pairs if _LAST * budget < steps <= budget]
        return sum(found) / len(found) if found else self.accuracy[-1]


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
    curves = [_train(each.name, rounds[each.name], out, options, overrides) for each in found]
    budget = min(curve.steps[-1] for curve in curves)
    console.print(_table(curves, rounds, budget))
    missing = draw(lambda: _figure(found, curves, budget), out / "demo.png")
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


def _train(name: str, rounds: int, out: Path, options: Namespace, overrides: list[str]) -> Curve:
    """Train one of the two, or take what is there from before."""
    import numpy as np

    from fl_lightning.config import building
    from fl_lightning.runs import reading

    print(f"training {name}: {rounds} rounds", file=sys.stderr, flush=True)
    settings = [*overrides, "--loop.rounds", str(rounds), "--seed", str(options.seed), "--logger", "none"]
    parsed = building.parse(configs.compose([f"digits_{name}.yaml"], options.system), settings)
    parsed.run_dir = str(out / name / f"seed_{options.seed}")
    run = building.build(parsed, f"digits_{name}")
    run.execute("auto")
    finished = reading.load(run.run_dir)
    accuracy = finished.metrics["test_accuracy"]
    evaluated = ~np.isnan(accuracy)
    return Curve(
        name=name,
        steps=finished.metrics["local_steps"][evaluated].tolist(),
        accuracy=accuracy[evaluated].tolist(),
        class_accuracy=finished.summary.per_class_accuracy,
    )


def _table(curves: list[Curve], rounds: dict[str, int], budget: float) -> Any:
    from rich import box
    from rich.table import Table

    note = f"Accuracy: mean over the last fifth of the first {budget:,.0f} local steps, so at equal computation."
    table = Table(caption=note, caption_justify="left", box=box.SIMPLE_HEAD, header_style="bold")
    for name in ("algorithm", "rounds", "local steps", "test accuracy", "worst digit"):
        table.add_column(name, justify="left" if name == "algorithm" else "right", no_wrap=True)
    for curve in curves:
        worst = f"{min(curve.class_accuracy):.2f}" if curve.class_accuracy else "-"
        accuracy = f"{curve.mean_before(budget):.3f}"
        table.add_row(curve.name, str(rounds[curve.name]), f"{curve.steps[-1]:,.0f}", accuracy, worst)
    return table


def _figure(found: list["Diagnosis"], curves: list[Curve], budget: float) -> "Figure":
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
    for curve, colour in zip(curves, (ORANGE, BLUE), strict=True):
        right.plot(curve.steps, curve.accuracy, color=colour, label=curve.name, linewidth=1.2)
    right.axvline(budget, color=MUTED, linewidth=0.8, linestyle=":")
    right.set(xlabel="local steps of all clients", title="test accuracy", xlim=(0, max(c.steps[-1] for c in curves)))
    right.set_ylim(0, 1)
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
        bare(axes)
    return figure
