"""``fl-lightning diagnose RUN``: the objective of a run that has begun, with the factors that it measured."""

import copy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_lightning.cli.arguments import OneLineParser
from fl_lightning.cli.waiting import loading
from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.diagnosis import words

if TYPE_CHECKING:
    from fl_lightning.diagnosis.dry_run import Algorithm
    from fl_lightning.diagnosis.objective import Diagnosis
    from fl_lightning.types import Vector

PLANNED, MEASURED = "as planned", "as measured"


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning diagnose", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="folder of a run with a checkpoint, finished or not")
    parser.add_trust()
    return parser


def main(arguments: list[str]) -> int:
    """Show the objective of a run as it was planned and as what it measured makes it."""
    options = make_parser().parse_args(arguments)
    folder = Path(options.run)
    if not (folder / "config.yaml").is_file():
        raise configs.ConfigError(f"{folder} is not the folder of a run: it has no config.yaml")
    merged = configs.compose([str(folder / "config.yaml")])
    early.check(merged, [], options.trust)
    with loading():
        import torch

    torch.set_num_threads(1)
    _show(folder, merged, options.trust)
    return 0


def _show(folder: Path, merged: dict[str, Any], trusted: list[str]) -> None:
    from rich.console import Console

    from fl_lightning.cli.diagnose import diagnosed, system_of_config
    from fl_lightning.config import algorithms as parts
    from fl_lightning.diagnosis.objective import Recommendation

    system, label_counts, notes = system_of_config(merged, [], trusted)
    algorithm = parts.algorithm(merged, [], trusted)
    finished, factors, loaded = _measured(folder, algorithm, len(system.weights))
    known = [(PLANNED, algorithm)] if factors is None else [(PLANNED, algorithm), (MEASURED, loaded)]
    found, unknown = diagnosed(known, system)
    console = Console(width=None if sys.stdout.isatty() else words.WIDE)
    heading = f"What this run really optimises: {folder}, {len(system.weights)} clients, {finished} rounds"
    if found:
        console.print(words.table_of(found, unknown, heading, console.width, Recommendation(found[0], (), None)))
    else:
        console.print(f"{heading}\nThe objective depends on the data: the aggregator or the sampler is not linear.")
    for line in [*notes, *in_words(factors, found, label_counts)]:
        console.print(line, highlight=False)


def _measured(folder: Path, algorithm: "Algorithm", num_clients: int) -> tuple[int, "Vector | None", "Algorithm"]:
    """Return the rounds that were made, the factors measured in them, and the algorithm as it was then."""
    from fl_lightning.runs.records import CHECKPOINTS
    from fl_lightning.runs.storage import DamagedFileError, load_latest

    try:
        checkpoint, _ = load_latest(folder / CHECKPOINTS)
    except DamagedFileError as error:
        raise configs.ConfigError(str(error)) from None
    if checkpoint is None:
        raise configs.ConfigError(f"{folder} has no checkpoint yet, which holds what was measured: train some rounds")
    loaded = copy.deepcopy(algorithm)
    try:
        state = checkpoint["loop"]
        loaded.uploads.setup(num_clients, state["weights"])
        loaded.uploads.load_state_dict(state["parts"].get("uploads", {}))
        factors, finished = loaded.uploads.measured_factors(), int(state["round"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise configs.ConfigError(f"the checkpoint in {folder} is not one of its config: {error}") from None
    if factors is not None and len(factors) != num_clients:
        raise configs.ConfigError(f"the checkpoint in {folder} knows {len(factors)} clients, its config {num_clients}")
    return finished, factors, loaded


def in_words(factors: "Vector | None", found: list["Diagnosis"], label_counts: Any = None) -> list[str]:
    """Return what the factors do, in plain words.

    Args:
        factors: Measured factor of each client; None where nothing was measured.
        found: What is known of the run as planned and as measured.
        label_counts: How many examples of each class each client has, if known.
    """
    from fl_lightning.diagnosis.objective import class_shares, distortion

    if factors is None:
        ending = ": the objective is the planned one." if found else "."
        return [f"Nothing on the way of the updates measured a factor{ending}"]
    least, most = int(np.argmin(factors)), int(np.argmax(factors))
    lines = [
        f"Clipping left x{factors.mean():.2f} of what clients sent on average: least of client {least} "
        f"(x{factors[least]:.2f}), most of client {most} (x{factors[most]:.2f})."
    ]
    by_name = {each.name: each for each in found}
    if len(by_name) < 2:
        return lines
    planned, measured = by_name[PLANNED], by_name[MEASURED]
    lines.append(
        f"That moves the objective: its distance (L1) from yours is {planned.distance:.3f} as planned and "
        f"{measured.distance:.3f} as measured."
    )
    wrong = [distortion("clients", measured.weights, measured.effective_weights)]
    if label_counts is not None:
        shares = [class_shares(each, label_counts) for each in (measured.weights, measured.effective_weights)]
        wrong.append(distortion("classes", *shares))
    return [*lines, *(f"As measured, {sentence}." for sentence in wrong if sentence)]
