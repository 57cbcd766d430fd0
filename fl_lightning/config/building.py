"""From settings to a run: its objects, its callbacks, and how it is executed."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Literal

import torch
import yaml
from jsonargparse import Namespace
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks import (
    ComputationTime,
    DeliveryRecorder,
    ParticipationLog,
    RoundCheckpoint,
    RoundProgress,
    RunRecorder,
)
from fl_lightning.callbacks.monitors import TensorBoardMetrics
from fl_lightning.callbacks.observed import PARTICIPATION
from fl_lightning.callbacks.wandb import WandbMetrics
from fl_lightning.config import loggers
from fl_lightning.config.compose import ConfigError, Settings
from fl_lightning.config.parsing import instantiate, make_parser, objects_of, parse_config, split_loop
from fl_lightning.config.processes import launch
from fl_lightning.data import ValidationSplit
from fl_lightning.loop import FederatedLoop
from fl_lightning.parts.bases import DataSource
from fl_lightning.parts.protocols import Engine, Federation
from fl_lightning.runs.folder import RunFolder
from fl_lightning.runs.identity import about
from fl_lightning.runs.records import CHECKPOINTS
from fl_lightning.runs.resuming import Beginning, begin, rebuild, shared
from fl_lightning.seeding import Purpose, client_seed

_LOST_PROCESS = ("Connection closed", "Connection reset", "Broken pipe", "gloo", "NCCL")  # in what the backends say
_UNSET = signature(WandbMetrics).parameters["save_dir"].default


Outcome = Literal["finished", "kept", "paused"]  # kept: finished before; paused: by a signal, after a checkpoint


@dataclass(kw_only=True)
class Run:
    """A federation ready to start."""

    loop: FederatedLoop
    module: LightningModule
    data: DataSource
    run_dir: Path
    config: str  # complete, as YAML
    named_loggers: list[Namespace] = field(default_factory=list)  # by class; some write when they are made
    _starting: bool = field(default=True, init=False)  # there is nothing to save yet

    def pause(self) -> bool:
        """Ask for a pause after this round, and return whether there will be one; a signal handler may call this."""
        self.loop.interrupted = not self._starting
        return not self._starting

    def execute(self, resume: str = "never") -> Outcome:
        """Load the data, train, and leave the outputs in the run's folder; see ``begin`` for when it resumes."""
        fabric = self.loop.fabric
        folder = RunFolder(self.run_dir)

        def decide() -> Beginning:
            folder.claim()
            return begin(self.run_dir, self.config, resume)

        try:
            beginning = shared(fabric, decide)
            if beginning.finished and fabric.global_rank == 0:
                recorder = next(each for each in self.loop.callbacks if isinstance(each, RunRecorder))
                notes = rebuild(recorder, self.loop, self.module, beginning.stored)
                beginning = replace(beginning, notes=[*beginning.notes, *notes])
            self._say(*beginning.notes)
            if beginning.finished:
                return "kept"
            federation = self.data.load(self.loop.seed)
            self._starting = False
            if fabric.global_rank == 0:
                self._prepare(folder, beginning)
                resumed = beginning.checkpoint is not None
                fabric.loggers.extend(loggers.made(self.named_loggers, yaml.safe_load(self.config), resumed))
            self._train(federation, beginning.checkpoint)
        finally:
            if folder.close() and resume == "never":
                self._say(f"the earlier run in {self.run_dir} is kept")
        return "finished" if self.loop.finished else "paused"

    def _say(self, *lines: str) -> None:
        if self.loop.fabric.global_rank == 0:
            for line in lines:
                print(line, file=sys.stderr)

    def _prepare(self, folder: RunFolder, beginning: Beginning) -> None:
        """Make the folder ready, and let checkpoints and folder describe the same run."""
        saver = next(callback for callback in self.loop.callbacks if isinstance(callback, RoundCheckpoint))
        files = (beginning.stored or {}).get("files")
        if isinstance(files, dict):
            saver.about["files"] = files  # as they were when the run started
        identity = {name: saver.about[name] for name in ("config_hash", "files", "versions")}
        folder.prepare(self.config, identity, anew=beginning.checkpoint is None)
        self.loop.callbacks.append(folder)

    def _train(self, federation: Federation, checkpoint: dict[str, object] | None) -> None:
        try:
            self.loop.run(self.module, federation, checkpoint)
        except RuntimeError as error:
            if self.loop.fabric.world_size > 1 and any(word in str(error) for word in _LOST_PROCESS):
                raise ConnectionError(
                    f"another training process ended unexpectedly in round {self.loop.round_index + 1}; "
                    "the last checkpoint is intact, the same command resumes from there"
                ) from error
            raise
        finally:
            for callback in self.loop.callbacks:
                if isinstance(callback, RoundProgress):
                    callback.close()


def parse(merged: Settings, overrides: list[str], trusted: Sequence[str] = ()) -> Namespace:
    """Return the settings of a run, see :func:`fl_lightning.config.parsing.parse_config`."""
    return parse_config(make_parser(), *loggers.complete(merged, overrides), trusted)


def dump(settings: Namespace) -> str:
    """Return the complete config as YAML; what was parsed is valid."""
    return make_parser().dump(settings, skip_unset=False, skip_validation=True)


def instantiate_data(settings: Namespace) -> DataSource:
    """Make the data source alone."""
    return make_parser().instantiate(Namespace(data=settings.data)).data


def instantiate_data_of(merged: Settings, trusted: Sequence[str] = ()) -> DataSource:
    """Make the data source of a configuration of which nothing else is used."""
    if "data" not in merged:
        raise ConfigError("there is no key data: say which data, as in configs/data/digits.yaml")
    return instantiate(merged, ("data",), trusted=trusted).data


def instantiate_loop(settings: Namespace) -> FederatedLoop:
    """Make the loop alone, without loggers and files, to look at what a configuration asks for."""
    objects = _instantiate(settings)
    algorithm, system, rest = split_loop(objects.loop)
    return FederatedLoop(algorithm, system, **rest, fabric=Fabric(**vars(objects.fabric)), seed=settings.seed)


def _instantiate(settings: Namespace) -> Namespace:
    """Make the objects of a configuration but for its loggers."""
    wanted = settings.clone()
    wanted.logger = "none"
    return objects_of(make_parser(), wanted)


def build(settings: Namespace, name: str, labels: dict[str, str] | None = None) -> Run:
    """Make the objects. The module's initial weights depend on the seed alone.

    The labels say what ``data`` and ``algorithm`` are called, where the name ``<data>_<algorithm>`` does not.
    """
    if settings.seed < 0:
        raise ConfigError(f"seed={settings.seed} must not be negative")
    target = settings.target_accuracy
    is_share = settings.loop.monitor.endswith("accuracy")
    if target is not None and not (math.isfinite(target) and (not is_share or 0 <= target <= 1)):
        wanted = "between 0 and 1" if is_share else "a finite number"
        raise ConfigError(f"target_accuracy={target} must be {wanted}, as loop.monitor is {settings.loop.monitor}")
    settings.run_dir = settings.run_dir or f"runs/{name}/seed_{settings.seed}"
    config = dump(settings)
    torch.manual_seed(client_seed(settings.seed, Purpose.INITIAL_WEIGHTS, 0, 0))
    objects = _instantiate(settings)
    data_name, _, algorithm_name = name.partition("_")
    labels = {"data": data_name, "algorithm": algorithm_name or name, "config": name} | (labels or {})
    callbacks = _with_defaults(objects.loop.callbacks, settings, config, labels)
    fabric = Fabric(**vars(objects.fabric))
    launch(fabric, settings.start_timeout)
    algorithm, system, rest = split_loop(objects.loop)
    loop = FederatedLoop(algorithm, system, **(rest | {"callbacks": callbacks}), fabric=fabric, seed=settings.seed)
    data = objects.data if settings.validation is None else ValidationSplit(objects.data, settings.validation)
    return Run(
        loop=loop,
        module=objects.model,
        data=data,
        run_dir=Path(settings.run_dir),
        config=config,
        named_loggers=loggers.placed(settings.logger, Path(settings.run_dir)),
    )


def elsewhere(run: Run, engine: Engine, data: DataSource) -> Run:
    """Return a run whose clients train on other machines, asked by an engine, and record what they answered."""
    place = next(i for i, each in enumerate(run.loop.callbacks) if isinstance(each, RoundCheckpoint))
    run.loop.callbacks[place:place] = [DeliveryRecorder(str(run.run_dir))]
    run.loop.engine = engine
    return replace(run, data=data)


def _with_defaults(
    given: Sequence[Callback], settings: Namespace, config: str, labels: dict[str, str]
) -> list[Callback]:
    """Return the callbacks of a configuration completed by the defaults, each where none of its type is there.

    All files of a run must be where the other commands look for them.
    """
    run_dir = Path(settings.run_dir)
    target = settings.target_accuracy
    for callback in given:
        if isinstance(callback, RoundCheckpoint):
            raise ConfigError(
                "loop.callbacks holds a RoundCheckpoint, but each run has one: set it by the key checkpoint "
                "(every_n_rounds, min_seconds, keep)"
            )
        if isinstance(callback, RunRecorder):
            _adopt(callback, run_dir, target, labels)
        if isinstance(callback, WandbMetrics | TensorBoardMetrics | DeliveryRecorder | ParticipationLog):
            _keep_inside(callback, run_dir)
    last = [RunRecorder(str(run_dir), target, labels), RoundProgress(), *_loggers(settings, config, labels)]
    # The last of all, because it saves what the others know of a round.
    checkpoint = RoundCheckpoint(str(run_dir / CHECKPOINTS), about=about(config), **vars(settings.checkpoint))
    return [*_missing([ComputationTime()], given), *given, *_missing(last, given), checkpoint]


def _missing(defaults: Sequence[Callback], given: Sequence[Callback]) -> list[Callback]:
    return [each for each in defaults if not any(isinstance(callback, type(each)) for callback in given)]


def _keep_inside(
    callback: WandbMetrics | TensorBoardMetrics | DeliveryRecorder | ParticipationLog, run_dir: Path
) -> None:
    """Let a configuration, which may be a stranger's, write into the run's folder alone."""
    if isinstance(callback, WandbMetrics) and callback.save_dir == _UNSET:
        callback.save_dir = str(run_dir)
    if isinstance(callback, ParticipationLog) and callback.path == Path(PARTICIPATION):
        callback.path = run_dir / PARTICIPATION
    if isinstance(callback, DeliveryRecorder | ParticipationLog):
        folder = callback.path.parent
    else:
        folder = Path(callback.save_dir)
    if not folder.resolve().is_relative_to(run_dir.resolve()):
        raise ConfigError(
            f"loop.callbacks holds a {type(callback).__name__} that writes to {folder}, but a config may write into "
            f"the run's folder {run_dir} alone: give a folder in there"
        )


def _adopt(recorder: RunRecorder, run_dir: Path, target: float | None, labels: dict[str, str]) -> None:
    """Give a recorder of the configuration what it leaves open."""
    if recorder.run_dir.resolve() != run_dir.resolve():
        raise ConfigError(
            f"loop.callbacks holds a RunRecorder for {recorder.run_dir}, but the run's folder is {run_dir}: "
            f"use --run_dir {recorder.run_dir}, or leave the RunRecorder out"
        )
    recorder.labels = labels | recorder.labels
    if recorder.target_accuracy is None:
        recorder.target_accuracy = target


def _loggers(settings: Namespace, config: str, labels: dict[str, str]) -> list[Callback]:
    """Return a callback for each logger; in W&B, runs can be grouped by algorithm, data and seed under these names."""
    names = loggers.names(settings.logger)
    tree = yaml.safe_load(config)
    callbacks: list[Callback] = []
    if "wandb" in names:
        by_name = {"data": labels["data"], "algorithm": labels["algorithm"], "seed": settings.seed}
        callbacks.append(
            WandbMetrics(
                name=f"{labels['config']}_seed_{settings.seed}",
                group=labels["algorithm"],
                job_type="train",
                tags=[labels["data"], labels["algorithm"], f"seed_{settings.seed}"],
                save_dir=str(Path(settings.run_dir)),
                config={**tree, **by_name, "data_source": tree.get("data")},
                target_accuracy=settings.target_accuracy,
            )
        )
    if "tensorboard" in names:
        callbacks.append(TensorBoardMetrics(str(Path(settings.run_dir, "tensorboard")), tree))
    return callbacks
