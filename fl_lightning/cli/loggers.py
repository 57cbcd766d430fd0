"""The experiment loggers that ``--logger`` names: ``wandb``, ``tensorboard``, several of them, or ``none``."""

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.tensorboard import TensorBoardMetrics
from fl_lightning.callbacks.wandb import WandbMetrics
from fl_lightning.cli.configs import ConfigError

LOGGERS = ("wandb", "tensorboard")


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


def make_loggers(
    names: list[str], labels: dict[str, str], seed: int, run_dir: Path, config: dict[str, Any], target: float | None
) -> list[Callback]:
    """Return one callback for each logger; runs are grouped by algorithm and typed by seed."""
    callbacks: list[Callback] = []
    if "wandb" in names:
        callbacks.append(
            WandbMetrics(
                name=f"{labels['config']}_seed_{seed}",
                group=labels["algorithm"],
                job_type=f"seed_{seed}",
                tags=[labels["data"], labels["algorithm"], f"seed_{seed}"],
                save_dir=str(run_dir),
                config=config,
                target_accuracy=target,
            )
        )
    if "tensorboard" in names:
        callbacks.append(TensorBoardMetrics(str(run_dir / "tensorboard"), config))
    return callbacks
