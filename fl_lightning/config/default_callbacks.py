"""The callbacks that every run of the command line has, unless the configuration brings its own."""

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks import ComputationTime, RoundCheckpoint, RoundProgress, RunRecorder
from fl_lightning.config.compose import ConfigError


def with_defaults(
    given: Sequence[Callback], run_dir: Path, target: float | None, labels: dict[str, str], loggers: Sequence[Callback]
) -> list[Callback]:
    """Return the callbacks of a configuration completed by the defaults, each where none of its type is there.

    Args:
        given: ``loop.callbacks``.
        run_dir: The run's folder.
        target: The accuracy whose first crossing the summary reports.
        labels: What the summary calls the run.
        loggers: The callbacks of ``--logger``.

    Raises:
        ConfigError: If the run's files would not be where the other commands look for them.
    """
    for callback in given:
        if isinstance(callback, RoundCheckpoint):
            raise ConfigError(
                "loop.callbacks holds a RoundCheckpoint, but each run has one: set it by the key checkpoint "
                "(every_n_rounds, min_seconds, keep)"
            )
        if isinstance(callback, RunRecorder):
            _adopt(callback, run_dir, target, labels)
    first = [ComputationTime()]
    last = [RunRecorder(str(run_dir), target, labels), RoundProgress(), *loggers]
    return [*_missing(first, given), *given, *_missing(last, given)]


def _missing(defaults: Sequence[Callback], given: Sequence[Callback]) -> list[Callback]:
    return [each for each in defaults if not any(isinstance(callback, type(each)) for callback in given)]


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
