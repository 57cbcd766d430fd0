"""Making again what a finished run lost, from its last checkpoint and its metrics."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fl_lightning.callbacks.recorder import FINAL_FILES, RunRecorder
from fl_lightning.engine.flat import FlatModel
from fl_lightning.runs.resuming import num_rounds, sound_summary

if TYPE_CHECKING:
    from fl_lightning.config.building import Run

_RECORDER = "callback RunRecorder 1"  # the recorder's name in a checkpoint


def rebuild(run: "Run", checkpoint: dict[str, Any] | None) -> list[str]:
    """Write the files that a finished run lacks, and return what was made again and what cannot be.

    Args:
        run: The run, not started.
        checkpoint: Its newest sound checkpoint, if there is one.
    """
    missing = [name for name in FINAL_FILES if not _is_whole(run.run_dir, name, run.loop.seed)]
    lost = [name for name in ("metrics.csv", "config.yaml") if not (run.run_dir / name).is_file()]
    if checkpoint is None:
        return _told(run.run_dir, [], [*missing, *lost, "its checkpoints, so that it cannot be prolonged"])
    made = [name for name in missing if _is_written(run, name, checkpoint)]
    return _told(run.run_dir, made, [name for name in [*missing, *lost] if name not in made])


def _is_whole(run_dir: Path, name: str, seed: int) -> bool:
    if name == "summary.json":
        return sound_summary(run_dir, seed) is not None
    return (run_dir / name).is_file()


def _is_written(run: "Run", name: str, checkpoint: dict[str, Any]) -> bool:
    try:
        _write(run, name, checkpoint)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, StopIteration):
        return False  # an older or another checkpoint, no metrics, or a folder that cannot be written
    return True


def _write(run: "Run", name: str, checkpoint: dict[str, Any]) -> None:
    state = checkpoint["loop"]
    recorder = next(callback for callback in run.loop.callbacks if isinstance(callback, RunRecorder))
    summary = sound_summary(run.run_dir, run.loop.seed)
    if state["round"] != (summary["rounds"] if summary else num_rounds(recorder.path)):
        raise ValueError("the checkpoint is not that of the last round")
    if name.startswith("model"):
        averaged = state["parts"].get("averaging", {})
        is_averaged = name == "model.ckpt" and averaged.get("weights") is not None
        _load(run.module, {**state, **averaged} if is_averaged else state)
    else:
        recorder.load_state_dict(state["parts"][_RECORDER])
        recorder.versions = checkpoint.get("versions", {})
    recorder.write(name, run.loop, state["round"], run.module)


def _load(module: nn.Module, state: dict[str, Any]) -> None:
    """Give a module the weights, buffers and counters of a checkpoint."""
    model: Any = module
    FlatModel(model).load(state["weights"], state["buffers"])
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if not buffer.is_floating_point():
                buffer.copy_(state["counters"][name])


def _told(run_dir: Path, made: list[str], lost: list[str]) -> list[str]:
    notes = [f"{run_dir}: {', '.join(made)} made again from the checkpoint"] if made else []
    return [*notes, f"{run_dir}: what is missing cannot be made again: {', '.join(lost)}"] if lost else notes
