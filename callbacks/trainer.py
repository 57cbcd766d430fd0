"""What our callbacks do in a plain ``lightning.Trainer``, where there is one client and an epoch is a round."""

import os

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback


def refuse_trainer(callback: Callback, reason: str, instead: str) -> None:
    """Say why a callback has no meaning in a Trainer, and what has."""
    raise MisconfigurationException(
        f"{type(callback).__name__} has no meaning in a plain Trainer: {reason}; use {instead}, or run it in "
        "fl_lightning.FederatedLoop"
    )


def global_seed() -> int:
    """Return the seed that ``seed_everything`` has set; 0 without one."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))
