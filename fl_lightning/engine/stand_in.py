"""What ``self.trainer`` is for a module that no Trainer trains."""

from typing import Any, Literal

from lightning.pytorch import LightningModule

Stage = Literal["training", "testing", "validating"]


class StandInTrainer:
    """Knows where the run stands; anything else of a Trainer raises an error that says so.

    Args:
        module: The module whose ``self.trainer`` this is.
        global_rank: Number of this process.
        world_size: Number of processes.

    Attributes:
        current_epoch: The round, counted from 0 as Lightning counts epochs.
        global_step: Steps that the client at hand has done in this round.
    """

    logger = progress_bar_callback = None
    predicting = sanity_checking = fast_dev_run = False

    def __init__(self, module: LightningModule, global_rank: int = 0, world_size: int = 1) -> None:
        self.model = self.lightning_module = module
        self.global_rank = self.local_rank = global_rank
        self.world_size, self.is_global_zero = world_size, global_rank == 0
        self.loggers: list[Any] = []
        self.current_epoch = self.global_step = 0
        self.training = self.testing = self.validating = False

    def begin(self, round_index: int) -> None:
        """Stand at the beginning of a client's training."""
        self.current_epoch, self.global_step = round_index - 1, 0
        self.enter("training")

    def enter(self, stage: Stage) -> None:
        """Say what is going on."""
        self.training, self.testing, self.validating = stage == "training", stage == "testing", stage == "validating"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"self.trainer.{name} is not there: a federation has no Trainer. Use self.current_epoch (the round), "
            "self.global_step, self.device and self.trainer.training/validating/testing, or pass what you need to the "
            "module's constructor"
        )


def attached(module: LightningModule, global_rank: int = 0, world_size: int = 1) -> StandInTrainer:
    """Return the stand-in of a module, which gets one if it has none (a copy of a module has none)."""
    present: Any = module._trainer
    if not isinstance(present, StandInTrainer) or present.model is not module:
        present = StandInTrainer(module, global_rank, world_size)
        module.trainer = present
    return present
