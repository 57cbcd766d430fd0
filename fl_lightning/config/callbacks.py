"""The callbacks that every run of the command line has, unless the configuration brings its own."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path

import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks import ComputationTime, DeliveryRecorder, RoundCheckpoint, RoundProgress, RunRecorder
from fl_lightning.callbacks.monitors import TensorBoardMetrics
from fl_lightning.callbacks.wandb import WandbMetrics
from fl_lightning.config.compose import ConfigError
from fl_lightning.runs.identity import about
from fl_lightning.runs.records import CHECKPOINTS

LOGGERS = ("wandb", "tensorboard")
_UNSET = signature(WandbMetrics).parameters["save_dir"].default


def with_defaults(
    given: Sequence[Callback], settings: Namespace, config: str, labels: dict[str, str]
) -> list[Callback]:
    """Return the callbacks of a configuration completed by the defaults, each where none of its type is there.

    Args:
        given: ``loop.callbacks``.
        settings: What was parsed, with the run's folder.
        config: The same, complete, as YAML.
        labels: What the summary calls the run.

    Raises:
        ConfigError: If the run's files would not be where the other commands look for them.
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
        if isinstance(callback, WandbMetrics | TensorBoardMetrics | DeliveryRecorder):
            _keep_inside(callback, run_dir)
    first = [ComputationTime()]
    last = [RunRecorder(str(run_dir), target, labels), RoundProgress(), *_loggers(settings, config, labels)]
    # The last of all, because it saves what the others know of a round.
    checkpoint = RoundCheckpoint(str(run_dir / CHECKPOINTS), about=about(config), **vars(settings.checkpoint))
    return [*_missing(first, given), *given, *_missing(last, given), checkpoint]


def _missing(defaults: Sequence[Callback], given: Sequence[Callback]) -> list[Callback]:
    return [each for each in defaults if not any(isinstance(callback, type(each)) for callback in given)]


def _keep_inside(callback: WandbMetrics | TensorBoardMetrics | DeliveryRecorder, run_dir: Path) -> None:
    """Let a configuration, which may be a stranger's, write into the run's folder alone."""
    if isinstance(callback, WandbMetrics) and callback.save_dir == _UNSET:
        callback.save_dir = str(run_dir)
    folder = callback.path.parent if isinstance(callback, DeliveryRecorder) else Path(callback.save_dir)
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
    names = wanted_loggers(settings.logger)
    run_dir = Path(settings.run_dir)
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
                save_dir=str(run_dir),
                config={**tree, **by_name, "data_source": tree.get("data")},
                target_accuracy=settings.target_accuracy,
            )
        )
    if "tensorboard" in names:
        callbacks.append(TensorBoardMetrics(str(run_dir / "tensorboard"), tree))
    return callbacks


def wanted_loggers(given: str | list[str]) -> list[str]:
    """Return the loggers that a setting names, each once.

    >>> wanted_loggers("wandb,tensorboard"), wanted_loggers(["none"])
    (['wandb', 'tensorboard'], [])
    """
    names = given.split(",") if isinstance(given, str) else given
    names = list(dict.fromkeys(name.strip() for name in names))
    unknown = sorted(set(names) - {*LOGGERS, "none"})
    if unknown:
        raise ConfigError(f"logger={', '.join(unknown)} is unknown: use wandb, tensorboard, both by a comma, or none")
    return [name for name in names if name != "none"]
