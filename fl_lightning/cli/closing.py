"""The last lines of a run: which objective it optimised, what it reached, and what to type next."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_lightning.aggregators import AnonymousMean
from fl_lightning.cli.waiting import only_planning
from fl_lightning.config import compose as configs
from fl_lightning.diagnosis.dry_run import Algorithm, System, typical_rounds
from fl_lightning.diagnosis.objective import CONSISTENT, diagnose, neglected, number_ranges
from fl_lightning.engine.batches import steps_per_epoch
from fl_lightning.runs.records import read_clients, read_summary
from fl_lightning.server.calibration import Calibration
from fl_lightning.system.defaults import fedavg_sampling
from fl_lightning.types import Vector

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

_MOST_ROUNDS = 96


def closing_lines(loop: "FederatedLoop", run_dir: Path, config_names: list[str]) -> list[str]:
    """Return what to say at the end of a finished run; what its files do not tell is left out.

    Args:
        loop: Of the run; it need not have been started.
        run_dir: Its folder.
        config_names: As they were given.
    """
    lines = []
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # a damaged file, a solver of no known A
        lines.append(_objective(loop, run_dir))
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # that was said before
        lines.append(_reached(run_dir))
    return [*lines, f"next: {next_command(config_names)}"]


def _objective(loop: "FederatedLoop", run_dir: Path) -> str:
    table = read_clients(run_dir)
    fedavg = fedavg_objective(loop, table["size"].astype(np.int64), table["weight"])
    return objective_line(table["weight"], fedavg, table["effective_weight"])


def fedavg_objective(loop: "FederatedLoop", sizes: Any, weights: Vector) -> Vector:
    """Return the objective that FedAvg would have optimised under the conditions of a run, as ``diagnose`` has it."""
    number = int(np.clip(1_000_000 // len(weights), 4, _MOST_ROUNDS))
    indices = np.unique(np.linspace(1, loop.rounds, min(number, loop.rounds)).round().astype(int))
    epoch = steps_per_epoch(sizes, loop.batch_size)
    conditions = [loop.schedule.configure_conditions(int(index), epoch, loop.seed) for index in indices]
    algorithm = Algorithm(fedavg_sampling(), AnonymousMean(), loop.solver, Calibration())
    with only_planning():
        rounds = typical_rounds(algorithm, System(weights, conditions, loop.channel, loop.lr or 1.0))
    return diagnose("fedavg", weights, rounds or []).effective_weights


def objective_line(weights: Vector, fedavg: Vector, own: Vector) -> str:
    """Return in one line what was asked for, what FedAvg would have optimised and what the run did.

    >>> w = np.array([0.25, 0.25, 0.5])
    >>> objective_line(w, np.array([0.02, 0.08, 0.9]), w)
    'objective: clients 0-1 should carry 50 %; FedAvg would have given them 10 %, this run gave them 50 %'
    """
    few = neglected(weights, fedavg)
    alike, faithful = (float(np.abs(own - other).sum()) < CONSISTENT for other in (fedavg, weights))
    if not len(few):
        told = "what you asked for" if faithful else "something else than you asked for"
        return f"objective: FedAvg would have optimised what you asked for; this run optimised {told}"
    named = number_ranges(few)
    subject = f"client{'s' * (len(few) > 1)} {named}" if len(named) <= 30 else f"{len(few)} of {len(weights)} clients"
    shares = [f"{float(values[few].sum()):.0%}".replace("%", " %") for values in (weights, fedavg, own)]
    others = (
        f"this run, like FedAvg, gave them {shares[2]}"
        if alike
        else f"FedAvg would have given them {shares[1]}, this run gave them {shares[2]}"
    )
    return f"objective: {subject} should carry {shares[0]}; {others}"


def _reached(run_dir: Path) -> str:
    summary = read_summary(run_dir)
    number = sum(1 for index in range(1, summary.rounds + 1) if index > 0.8 * summary.rounds)
    last = f"mean of the last {number} rounds" if number > 1 else "last round"
    monitor = (summary.monitor or "test_accuracy").replace("_", " ")
    parts = [f"{monitor} {summary.last:.4g} ({last}), best {summary.best:.4g}"]
    if summary.averaged is not None:
        parts[0] += f", averaged model {summary.averaged:.4g}"
    if summary.target is not None:
        needed = summary.rounds_to_target
        parts.append(f"target {summary.target:g} {'not reached' if needed is None else f'after round {needed}'}")
    return f"reached: {'; '.join(parts)}; files in {run_dir}"


def next_command(config_names: list[str]) -> str:
    """Return a command that goes on from a run.

    >>> next_command(["digits_fedacs.yaml"])
    'fl-lightning compare --config digits.yaml --algorithms fedacs,fedavg --seeds 0:3'
    >>> next_command(["digits.yaml", "mine.yaml"])
    'fl-lightning diagnose --config digits.yaml'
    """
    stem = Path(config_names[-1]).name.removesuffix(".yaml").removesuffix(".yml")
    data, _, algorithm = stem.partition("_")
    shipped = data in configs.names("data") and algorithm in configs.names("algorithms")
    if len(config_names) == 1 and shipped and not Path(config_names[0]).is_file():
        other = "fedavg" if algorithm != "fedavg" else "fedacs"
        both = ",".join(sorted((algorithm, other)))
        return f"fl-lightning compare --config {data}.yaml --algorithms {both} --seeds 0:3"
    return f"fl-lightning diagnose --config {config_names[0]}"
