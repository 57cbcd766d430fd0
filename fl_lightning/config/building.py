"""From a merged configuration to objects, by jsonargparse."""

import contextlib
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import torch
from jsonargparse import ArgumentParser, Namespace
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks import DeliveryRecorder, RoundCheckpoint, RoundProgress, RunRecorder
from fl_lightning.config.callbacks import LOGGERS, with_defaults
from fl_lightning.config.compose import ConfigError, Settings
from fl_lightning.config.parsing import add_loop_arguments, loop_keys, parse_config, split_loop
from fl_lightning.config.starting import launch
from fl_lightning.data import ValidationSplit
from fl_lightning.loop import FederatedLoop
from fl_lightning.parts.bases import DataSource
from fl_lightning.parts.protocols import Engine, Federation
from fl_lightning.runs.folder import RunFolder
from fl_lightning.runs.rebuilding import rebuild
from fl_lightning.runs.resuming import Beginning, begin, shared
from fl_lightning.seeding import Purpose, client_seed

_LOST_PROCESS = ("Connection closed", "Connection reset", "Broken pipe", "gloo", "NCCL")  # in what the backends say
_OPTIONS = (  # name, type, default and help of the keys that are of no class
    ("seed", int, 0, "Of every random stream."),
    ("run_dir", str | None, None, "Folder of the run; runs/<config>/seed_<seed> by default."),
    ("target_accuracy", float | None, None, "A value of loop.monitor; the cost to reach it is in the summary."),
    ("validation", float | None, None,
        "Share of the training data to hold out and evaluate on instead of the test data, for tuning."),
    ("logger", list[str] | str, ["wandb"], f"{', '.join(LOGGERS)}, several separated by commas, or none."),
    ("start_timeout", float, 300.0, "Seconds to wait for other processes and nodes at the start."),
)  # fmt: skip


class Outcome(Enum):
    """What became of a run."""

    FINISHED = "finished"
    KEPT = "kept"  # it was finished already
    PAUSED = "paused"  # by a signal, after a checkpoint


@dataclass(kw_only=True)
class Run:
    """A federation ready to start."""

    loop: FederatedLoop
    module: LightningModule
    data: DataSource
    run_dir: Path
    config: str  # complete, as YAML
    _starting: bool = field(default=True, init=False)  # there is nothing to save yet

    def pause(self) -> bool:
        """Ask for a pause after this round, and return whether there will be one; a signal handler may call this."""
        self.loop.interrupted = not self._starting
        return not self._starting

    def execute(self, resume: str = "never") -> Outcome:
        """Load the data, train, and leave the outputs in the run's folder.

        Args:
            resume: ``never``, ``auto`` or a checkpoint, see :func:`fl_lightning.runs.resuming.begin`.
        """
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
                return Outcome.KEPT
            federation = self.data.load(self.loop.seed)
            self._starting = False
            if fabric.global_rank == 0:
                self._prepare(folder, beginning)
            self._train(federation, beginning.checkpoint)
        finally:
            if folder.close() and resume == "never":
                self._say(f"the earlier run in {self.run_dir} is kept")
        return Outcome.FINISHED if self.loop.finished else Outcome.PAUSED

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


def make_parser() -> ArgumentParser:
    """Return the parser whose keys are the arguments of the loop, the module, the data and Fabric."""
    parser = ArgumentParser(prog="train.py", exit_on_error=False, add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="config")
    for name, kind, default, text in _OPTIONS:
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    parser.add_subclass_arguments(LightningModule, "model", required=True, help="Any LightningModule.")
    parser.add_argument("--data", type=DataSource, required=True, help="The data set and how clients share it.")
    parser.add_class_arguments(Fabric, "fabric", skip={"callbacks", "loggers", "plugins"})
    parser.add_class_arguments(RoundCheckpoint, "checkpoint", skip={"folder", "about"}, instantiate=False)
    add_loop_arguments(parser, [key for key in loop_keys() if key not in ("fabric", "seed", "callbacks")])
    parser.add_argument("--loop.callbacks", type=list[Callback], default=[], help="More callbacks.")
    return parser


def parse(merged: Settings, overrides: list[str], trusted: Sequence[str] = ()) -> Namespace:
    """Return the settings of a run, see :func:`fl_lightning.config.parsing.parse_config`."""
    return parse_config(make_parser(), merged, overrides, trusted)


def dump(settings: Namespace) -> str:
    """Return the complete config as YAML."""
    return make_parser().dump(settings, skip_unset=False)


def instantiate_data(settings: Namespace) -> DataSource:
    """Make the data source alone."""
    return make_parser().instantiate(Namespace(data=settings.data)).data


def instantiate_data_of(merged: Settings, trusted: Sequence[str] = ()) -> DataSource:
    """Make the data source of a configuration of which nothing else is used."""
    if "data" not in merged:
        raise ConfigError("there is no key data: say which data, as in configs/data/digits.yaml")
    parser = ArgumentParser(prog="fl-lightning", exit_on_error=False, add_help=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--data", type=DataSource, required=True, help="The data set and how clients share it.")
    return parser.instantiate(parse_config(parser, {"data": merged["data"]}, [], trusted)).data


def instantiate_loop(settings: Namespace) -> FederatedLoop:
    """Make the loop alone, without loggers and files, to look at what a configuration asks for."""
    with contextlib.redirect_stderr(io.StringIO()):
        objects = make_parser().instantiate(settings)
    algorithm, system, rest = split_loop(objects.loop)
    return FederatedLoop(algorithm, system, **rest, fabric=objects.fabric, seed=settings.seed)


def build(settings: Namespace, name: str, labels: dict[str, str] | None = None) -> Run:
    """Make the objects. The module's initial weights depend on the seed alone.

    Args:
        settings: What was parsed.
        name: The run's name, ``<data>_<algorithm>``.
        labels: What ``data`` and ``algorithm`` are called, where the name does not say.
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
    with contextlib.redirect_stderr(io.StringIO()):
        objects = make_parser().instantiate(settings)
    data_name, _, algorithm_name = name.partition("_")
    labels = {"data": data_name, "algorithm": algorithm_name or name, "config": name} | (labels or {})
    callbacks = with_defaults(objects.loop.callbacks, settings, config, labels)
    fabric = objects.fabric
    launch(fabric, settings.start_timeout)
    algorithm, system, rest = split_loop(objects.loop)
    loop = FederatedLoop(algorithm, system, **(rest | {"callbacks": callbacks}), fabric=fabric, seed=settings.seed)
    data = objects.data if settings.validation is None else ValidationSplit(objects.data, settings.validation)
    return Run(loop=loop, module=objects.model, data=data, run_dir=Path(settings.run_dir), config=config)


def elsewhere(run: Run, engine: Engine, data: DataSource) -> Run:
    """Return a run whose clients train on other machines, and which records what they answered.

    Args:
        run: As it was built.
        engine: Asks the other machines.
        data: What is known of the data there.
    """
    place = next(i for i, each in enumerate(run.loop.callbacks) if isinstance(each, RoundCheckpoint))
    run.loop.callbacks[place:place] = [DeliveryRecorder(str(run.run_dir))]
    run.loop.engine = engine
    return replace(run, data=data)
