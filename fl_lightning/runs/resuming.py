"""Whether a run starts, resumes or is finished already, and making again what a finished one lost."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from fl_lightning.engine.model import FlatModel
from fl_lightning.loop.results import load_module_state
from fl_lightning.runs import records, safe_yaml
from fl_lightning.runs.folder import marker, refuse_foreign
from fl_lightning.runs.identity import about, changed_files, differences, other_versions
from fl_lightning.runs.records import CHECKPOINTS, METRICS, REPLACE, RunError, num_rounds, sound_summary, stored_config
from fl_lightning.runs.storage import Checkpoint, DamagedFileError, load_latest, read_checkpoint

if TYPE_CHECKING:
    from fl_lightning.callbacks import RunRecorder
    from fl_lightning.loop import FederatedLoop

_RECORDER = "callback RunRecorder 1"  # the recorder's name in a checkpoint
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """How a run begins."""

    checkpoint: Checkpoint | None = None  # what it resumes from
    finished: bool = False  # nothing is left to do
    stored: Checkpoint | None = None  # the whole checkpoint file
    notes: list[str] = field(default_factory=list)  # what the user should know


def begin(run_dir: Path, config: str, resume: str) -> Beginning:
    """Decide how the run of a complete configuration begins in its folder, or raise RunError if it holds another.

    It may ``resume`` ``never``: start anew; ``auto``: what is in the folder; otherwise from a checkpoint, or from the
    folder of a run, and only then may the number of rounds differ.
    """
    if resume == "never":
        return Beginning()
    settings = safe_yaml.load(config, "the config")
    summary = sound_summary(run_dir, settings.get("seed")) if resume == "auto" else None
    checkpoint, notes = _checkpoint(run_dir, resume, needed=summary is None)
    there = _stored(run_dir) if checkpoint is None else checkpoint
    rounds = num_rounds(run_dir)
    if not there and rounds:
        raise RunError(f"{run_dir} has {rounds} rounds in {METRICS}, but nothing says of which config: {REPLACE}")
    if not there:
        return Beginning()
    here = about(config)
    _refuse_another(run_dir, there, here, resume)
    if resume != "auto" and (around := _stored(run_dir)):  # a copy of a checkpoint may be resumed in its run alone
        _refuse_another(run_dir, around, here, resume)
    finished_round = checkpoint["loop"].get("round") if checkpoint and isinstance(checkpoint.get("loop"), dict) else 0
    if summary is not None and (not isinstance(finished_round, int) or finished_round <= summary.rounds):
        return Beginning(finished=True, stored=checkpoint, notes=notes)
    if checkpoint is None:
        return _without_checkpoint(run_dir, rounds)
    notes += [f"{text}: later rounds may differ in their last digits" for text in other_versions(there.get("versions"))]
    beginning = _continuation(checkpoint, settings["loop"]["rounds"], notes, resume)
    wanted = 0 if beginning.checkpoint is None else beginning.checkpoint["round"]
    if rounds < wanted:
        raise RunError(
            f"{run_dir / METRICS} does not have the rounds 1 to {wanted} that come before the checkpoint: "
            "bring the file back, or start anew with --resume never"
        )
    return beginning


def _checkpoint(run_dir: Path, resume: str, needed: bool) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to resume from, and what is wrong with newer ones."""
    path = Path(resume)
    try:
        if resume != "auto" and path.is_file():
            return read_checkpoint(path), []
        checkpoint, notes = load_latest(run_dir / CHECKPOINTS)
    except DamagedFileError as error:
        if not needed:
            return None, [str(error).partition(": no checkpoint")[0]]
        raise RunError(str(error)) from None
    if checkpoint is None and resume != "auto":
        raise RunError(f"--resume {resume}: there is no checkpoint")
    return checkpoint, notes


def _stored(run_dir: Path) -> dict[str, object]:
    """Return what a folder without a checkpoint says of its run."""
    config = stored_config(run_dir)
    return marker(run_dir) | ({} if config is None else {"config": config})


def _without_checkpoint(run_dir: Path, rounds: int) -> Beginning:
    """Start over what never had a checkpoint, and nothing else."""
    if rounds and marker(run_dir).get("saved", True):
        raise RunError(
            f"{run_dir} has {rounds} round{'s' * (rounds > 1)} in {METRICS}, but no checkpoint in "
            f"{run_dir / CHECKPOINTS}: bring the checkpoints back (is their disk mounted?), "
            "or start anew with --resume never"
        )
    return Beginning(notes=[f"{run_dir} holds an interrupted run without a checkpoint: it starts anew"])


def _continuation(checkpoint: Checkpoint, rounds: int, notes: list[str], resume: str) -> Beginning:
    state = _field(checkpoint, "loop", dict, resume)
    number = _field(state, "round", int, resume)
    finished = _field(checkpoint, "finished", bool, resume)
    if finished and (resume == "auto" or number >= rounds):
        return Beginning(finished=True, stored=checkpoint, notes=notes)
    if number > rounds:
        raise RunError(f"--resume {resume}: the checkpoint is of round {number}, but loop.rounds={rounds}")
    notes = [*notes, f"continuing after round {number} of {rounds}"]
    if finished:  # it is prolonged, though somebody had ended it
        state = {**state, "stopped": False}
    return Beginning(checkpoint=state, stored=checkpoint, notes=notes)


def _field(checkpoint: Checkpoint, name: str, kind: type[T], resume: str) -> T:
    value = checkpoint.get(name)
    if not isinstance(value, kind):
        raise RunError(f"--resume {resume}: the checkpoint has no {name!r} and is not one of a run")
    return value


def _refuse_another(run_dir: Path, there: dict[str, object], here: dict[str, object], resume: str) -> None:
    """Raise RunError unless the stored run is that of the config here."""
    also_free = () if resume == "auto" else ("loop.rounds",)
    if isinstance(there.get("config"), str):
        different = differences(str(there["config"]), str(here["config"]), also_free)
    elif "config_hash" in there:  # only a marker is left
        different = ["their hashes differ"] if there["config_hash"] != here["config_hash"] else []
    else:
        raise RunError(f"--resume {resume}: the checkpoint has no 'config' and is not one of a run")
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise RunError(f"{run_dir} holds a run of another config ({'; '.join(different[:5])}{more}): {REPLACE}")
    changed = changed_files(there.get("files"), here["files"])
    if changed:
        raise RunError(
            f"{run_dir} holds a run with other inputs ({'; '.join(changed[:5])}): bring them back, {REPLACE}"
        )


def shared(fabric: Fabric, decide: Callable[[], Beginning]) -> Beginning:
    """Let the first process decide for all, which may not even see the same files; all of them fail if it fails."""
    if fabric.world_size == 1:
        return decide()
    decision: Beginning | RunError | None = None
    if fabric.global_rank == 0:
        try:
            decision = decide()
        except (ValueError, OSError) as error:
            decision = RunError(str(error))
    decision = fabric.broadcast(decision)
    if isinstance(decision, Beginning):
        return decision
    raise RunError(str(decision))


def folder_of(resume: str, given: str | None) -> Path | None:
    """Return the run's folder that ``--resume PATH`` means, or nothing for ``auto`` and ``never``.

    A checkpoint belongs to the run in whose folder ``checkpoints`` it lies. A copy elsewhere says nothing about where
    to write, so that ``--run_dir`` must be given.
    """
    if resume in ("auto", "never"):
        return None
    path = Path(os.path.abspath(resume))
    if not path.is_dir() and not path.is_file():
        raise RunError(f"--resume {resume} is neither auto, never, a checkpoint nor the folder of a run")
    folder = _home_of(path) if path.is_file() else path.parent if path.name == CHECKPOINTS else path
    if folder is None and given is None:
        raise RunError(
            f"--resume {resume} does not lie in the folder {CHECKPOINTS} of its run: "
            "say by --run_dir which run it continues"
        )
    if folder is None:
        return Path(str(given))
    if given is not None and Path(given).resolve() != folder.resolve():
        raise RunError(f"--resume {resume} resumes in {folder}: leave out --run_dir {given}")
    return folder


def _home_of(path: Path) -> Path | None:
    """Return the folder of the run that a checkpoint is part of."""
    folder = path.parent.parent
    if path.parent.name != CHECKPOINTS:
        return None
    try:
        refuse_foreign(folder)
        there = _stored(folder).get("config")
        own = read_checkpoint(path).get("config")
    except RunError:
        return None
    except DamagedFileError as error:
        raise RunError(str(error)) from None
    known = isinstance(there, str) and isinstance(own, str)
    return folder if known and not differences(str(there), str(own), also_free=("loop.rounds",)) else None


def rebuild(
    recorder: "RunRecorder", loop: "FederatedLoop", module: LightningModule, checkpoint: Checkpoint | None
) -> list[str]:
    """Write the files that a finished run lacks, and return what was made again and what cannot be.

    Nothing can without the newest sound checkpoint, whose weights the module gets.
    """
    folder = recorder.run_dir
    is_whole = {name: (folder / name).is_file() for name in (*records.FINAL_FILES, METRICS, records.CONFIG)}
    is_whole[records.SUMMARY] = sound_summary(folder, loop.seed) is not None
    lost = [name for name, whole in is_whole.items() if not whole]
    made: list[str] = []
    if checkpoint is None:
        lost.append("its checkpoints, so that it cannot be prolonged")
    else:
        for name in [each for each in records.FINAL_FILES if each in lost]:
            # Where it fails: another checkpoint, no metrics, or a folder that cannot be written.
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
                _write(name, recorder, loop, module, checkpoint)
                made.append(name)
    lost = [name for name in lost if name not in made]
    notes = [f"{folder}: {', '.join(made)} made again from the checkpoint"] if made else []
    return [*notes, f"{folder}: what is missing cannot be made again: {', '.join(lost)}"] if lost else notes


def _write(
    name: str, recorder: "RunRecorder", loop: "FederatedLoop", module: LightningModule, checkpoint: Checkpoint
) -> None:
    state = checkpoint["loop"]
    summary = sound_summary(recorder.run_dir, loop.seed)
    if state["round"] != (summary.rounds if summary else num_rounds(recorder.run_dir)):
        raise ValueError("the checkpoint is not that of the last round")
    if name.startswith("model"):
        averaged = state["parts"].get("averaging", {})
        is_averaged = name == records.MODEL and averaged.get("weights") is not None
        weights = {**state, **averaged} if is_averaged else state
        FlatModel(module).load(weights["weights"], weights["buffers"])
        with torch.no_grad():
            for buffer_name, buffer in module.named_buffers():
                if not buffer.is_floating_point():
                    buffer.copy_(weights["counters"][buffer_name])
        load_module_state(module, state["round"], state.get("module"))
    else:
        recorder.load_state_dict(state["parts"][_RECORDER])
        recorder.versions = checkpoint.get("versions", {})
    recorder.write(name, loop, state["round"], module)
