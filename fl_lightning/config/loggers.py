"""The experiment loggers that ``--logger`` names: ``wandb``, ``tensorboard``, several of them, or ``none``."""

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.tensorboard import TensorBoardMetrics
from fl_lightning.callbacks.wandb import WandbMetrics
from fl_lightning.config.compose import ConfigError

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


def wandb_config(config: dict[str, Any], labels: dict[str, str], seed: int) -> dict[str, Any]:
    """Return the configuration as W&B's users group by it: algorithm, data set and seed by their names.

    >>> wandb_config({"data": {"class_path": "Digits"}}, {"data": "digits", "algorithm": "fedacs"}, 3)
    {'data': 'digits', 'algorithm': 'fedacs', 'seed': 3, 'data_source': {'class_path': 'Digits'}}
    """
    names = {"data": labels["data"], "algorithm": labels["algorithm"], "seed": seed}
    return {**config, **names, "data_source": config.get("data")}


def make_loggers(
    names: list[str], labels: dict[str, str], seed: int, run_dir: Path, config: dict[str, Any], target: float | None
) -> list[Callback]:
    """Return one callback for each logger; W&B groups runs by algorithm, and can do so by data and seed as well."""
    callbacks: list[Callback] = []
    if "wandb" in names:
        callbacks.append(
            WandbMetrics(
                name=f"{labels['config']}_seed_{seed}",
                group=labels["algorithm"],
                job_type="train",
                tags=[labels["data"], labels["algorithm"], f"seed_{seed}"],
                save_dir=str(run_dir),
                config=wandb_config(config, labels, seed),
                target_accuracy=target,
            )
        )
    if "tensorboard" in names:
        callbacks.append(TensorBoardMetrics(str(run_dir / "tensorboard"), config))
    return callbacks
