"""Deciding whether a run starts, goes on where it was interrupted, or is finished already."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fl_lightning import safe_yaml
from fl_lightning.callbacks.checkpoint import checkpoints, load_latest
from fl_lightning.checkpointing.storage import DamagedFileError, read_checkpoint
from fl_lightning.cli import moved
from fl_lightning.cli.configs import ConfigError

CHECKPOINTS = "checkpoints"  # folder in a run's folder

# What may change between a run and its continuation, because it does not change a result.
FREE_KEYS = ("run_dir", "logger", "checkpoint", "fabric.devices", "fabric.strategy", "fabric.num_nodes")
_MISSING = object()


@dataclass(frozen=True)
class Beginning:
    """How a run begins."""

    checkpoint: dict[str, Any] | None = None  # what it goes on from
    finished: bool = False  # nothing is left to do
    notes: list[str] = field(default_factory=list)  # what the user should know


def about(config: str) -> dict[str, str]:
    """Return what a checkpoint carries of the configuration: its text, and the hash of what decides the results."""
    deciding = {key: value for key, value in flat(yaml.safe_load(config)).items() if not _is_free(key)}
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode()).hexdigest()
    return {"config": config, "config_hash": digest}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by their dotted paths; lists are leaves.

    >>> flat({"loop": {"lr": 0.1, "solver": {"init_args": {"momentum": 0.9}}}})
    {'loop.lr': 0.1, 'loop.solver.momentum': 0.9}
    """
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = prefix if key == "init_args" else f"{prefix}.{key}".lstrip(".")
        leaves |= flat(value, path)
    return leaves


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE_KEYS)


def differences(there: str, here: str, also_free: tuple[str, ...] = ()) -> list[str]:
    """Return what differs between two configurations, other than what does not change a result or has moved."""
    old, new = (flat(moved.current(safe_yaml.load(text, "the stored config"))) for text in (there, here))
    keys = [
        key
        for key in sorted({*old, *new})
        if not _is_free(key) and key not in also_free and old.get(key, _MISSING) != new.get(key, _MISSING)
    ]
    keys.sort(key=lambda key: key not in old or key not in new)  # arguments of a class that is not used there come last
    return [
        f"{key} is {_shown(old.get(key, _MISSING))} there and {_shown(new.get(key, _MISSING))} here" for key in keys
    ]


def _shown(value: Any) -> str:
    text = "absent" if value is _MISSING else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def begin(run_dir: Path, config: str, resume: str) -> Beginning:
    """Decide how the run of a configuration begins.

    Args:
        run_dir: Its folder.
        config: Its complete configuration.
        resume: ``never``: start anew. ``auto``: go on with what is in the folder. Otherwise a checkpoint to go on from,
            or the folder of a run; only then may the number of rounds differ.

    Raises:
        ConfigError: If the folder holds a run of another configuration, or no checkpoint of it can be used.
    """
    if resume == "never":
        return Beginning()
    path = Path(resume)
    by_file = resume != "auto" and path.is_file()
    try:
        checkpoint, notes = (read_checkpoint(path), []) if by_file else load_latest(run_dir / CHECKPOINTS)
    except DamagedFileError as error:
        raise ConfigError(str(error)) from None
    if checkpoint is None and resume != "auto":
        raise ConfigError(f"--resume {resume}: there is no checkpoint")
    there = _stored_config(run_dir) if checkpoint is None else _field(checkpoint, "config", str, resume)
    if there is None:
        return Beginning()
    _refuse_another(run_dir, there, config, explicit=resume != "auto")
    if checkpoint is None:
        return Beginning(notes=[f"{run_dir} holds an interrupted run without a checkpoint: it starts anew"])
    return _continuation(checkpoint, config, notes, resume)


def _continuation(checkpoint: dict[str, Any], config: str, notes: list[str], resume: str) -> Beginning:
    state = _field(checkpoint, "loop", dict, resume)
    number, rounds = _field(state, "round", int, resume), yaml.safe_load(config)["loop"]["rounds"]
    finished = _field(checkpoint, "finished", bool, resume)
    if finished and (resume == "auto" or number >= rounds):
        return Beginning(finished=True)
    if number > rounds:
        raise ConfigError(f"--resume {resume}: the checkpoint is of round {number}, but loop.rounds={rounds}")
    notes = [*notes, f"continuing after round {number} of {rounds}"]
    return Beginning(state, notes=notes)


def _field(checkpoint: dict[str, Any], name: str, kind: type, resume: str) -> Any:
    value = checkpoint.get(name)
    if not isinstance(value, kind):
        raise ConfigError(f"--resume {resume}: the checkpoint has no {name!r} and is not one of a run")
    return value


def _refuse_another(run_dir: Path, there: str, here: str, explicit: bool) -> None:
    different = differences(there, here, also_free=("loop.rounds",) if explicit else ())
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise ConfigError(
            f"{run_dir} holds a run of another config ({'; '.join(different[:5])}{more}): "
            "give another --run_dir, or --resume never to replace it"
        )


def _stored_config(run_dir: Path) -> str | None:
    """Return the configuration of a run that left no checkpoint."""
    try:
        text = (run_dir / "config.yaml").read_text(encoding="utf-8")
        return text if isinstance(safe_yaml.load(text, "the stored config"), dict) else None
    except (OSError, ValueError, yaml.YAMLError):
        return None


def forget(run_dir: Path) -> None:
    """Delete the checkpoints of an earlier run, which a new one in the same folder replaces."""
    for _, path in checkpoints(run_dir / CHECKPOINTS):
        path.unlink()


def shared(fabric: Any, decide: Callable[[], Beginning]) -> Beginning:
    """Let the first process decide for all, which may not even see the same files; all of them fail if it fails."""
    if fabric.world_size == 1:
        return decide()
    decision: Beginning | ConfigError | None = None
    if fabric.global_rank == 0:
        try:
            decision = decide()
        except ConfigError as error:
            decision = error
    decision = fabric.broadcast(decision)
    if isinstance(decision, Beginning):
        return decision
    raise ConfigError(str(decision))


def folder_of(resume: str) -> Path | None:
    """Return the run's folder that ``--resume PATH`` means, or nothing for ``auto`` and ``never``."""
    if resume in ("auto", "never"):
        return None
    path = Path(os.path.abspath(resume))
    if path.is_file():
        return path.parent.parent
    if path.is_dir():
        return path.parent if path.name == CHECKPOINTS else path
    raise ConfigError(f"--resume {resume} is neither auto, never, a checkpoint nor the folder of a run")
