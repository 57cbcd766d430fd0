"""Making again what a finished run lost, from its last checkpoint and its metrics."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from lightning.pytorch import LightningModule

from fl_lightning.engine.model import FlatModel
from fl_lightning.runs.records import CONFIG, FINAL_FILES, METRICS, MODEL, SUMMARY, num_rounds, sound_summary
from fl_lightning.runs.storage import Checkpoint

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

_RECORDER = "callback RunRecorder 1"  # the recorder's name in a checkpoint


class Recorder(Protocol):
    """Writes the files of a finished run."""

    run_dir: Path
    versions: dict[str, str]

    def load_state_dict(self, state: Checkpoint) -> None:
        """Take back what it knew when a checkpoint was saved."""

    def write(self, name: str, loop: "FederatedLoop", num_rounds: int, module: LightningModule) -> None:
        """Write one file."""


def rebuild(
    recorder: Recorder, loop: "FederatedLoop", module: LightningModule, checkpoint: Checkpoint | None
) -> list[str]:
    """Write the files that a finished run lacks, and return what was made again and what cannot be.

    Args:
        recorder: Of the run.
        loop: Of the run, not started.
        module: What the run trained; gets the weights of the checkpoint.
        checkpoint: The newest sound checkpoint of the run, if there is one.
    """
    folder = recorder.run_dir
    missing = [name for name in FINAL_FILES if not _is_whole(folder, name, loop.seed)]
    lost = [name for name in (METRICS, CONFIG) if not (folder / name).is_file()]
    if checkpoint is None:
        return _notes(folder, [], [*missing, *lost, "its checkpoints, so that it cannot be prolonged"])
    made = []
    for name in missing:
        try:
            _write(name, recorder, loop, module, checkpoint)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
            continue  # another checkpoint, no metrics, or a folder that cannot be written
        made.append(name)
    return _notes(folder, made, [name for name in [*missing, *lost] if name not in made])


def _is_whole(folder: Path, name: str, seed: int) -> bool:
    return (folder / name).is_file() if name != SUMMARY else sound_summary(folder, seed) is not None


def _write(
    name: str, recorder: Recorder, loop: "FederatedLoop", module: LightningModule, checkpoint: Checkpoint
) -> None:
    state = checkpoint["loop"]
    summary = sound_summary(recorder.run_dir, loop.seed)
    if state["round"] != (summary.rounds if summary else num_rounds(recorder.run_dir)):
        raise ValueError("the checkpoint is not that of the last round")
    if name.startswith("model"):
        averaged = state["parts"].get("averaging", {})
        is_averaged = name == MODEL and averaged.get("weights") is not None
        _load(module, {**state, **averaged} if is_averaged else state)
    else:
        recorder.load_state_dict(state["parts"][_RECORDER])
        recorder.versions = checkpoint.get("versions", {})
    recorder.write(name, loop, state["round"], module)


def _load(module: LightningModule, state: Checkpoint) -> None:
    """Give a module the weights, buffers and counters of a checkpoint."""
    FlatModel(module).load(state["weights"], state["buffers"])
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if not buffer.is_floating_point():
                buffer.copy_(state["counters"][name])


def _notes(run_dir: Path, made: list[str], lost: list[str]) -> list[str]:
    notes = [f"{run_dir}: {', '.join(made)} made again from the checkpoint"] if made else []
    return [*notes, f"{run_dir}: what is missing cannot be made again: {', '.join(lost)}"] if lost else notes
