"""What a module finds in place of a Trainer: which of its hooks are called, ``self.trainer``, who moves its batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, cast

from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import GradClipAlgorithmType

from fl_lightning.engine.machine import PINNING, pinned
from fl_lightning.parts.protocols import Batch

TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
# Around the local training of one client in one round, which is a fit of one epoch.
TRAINING = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
)
CHECKPOINTS = ("on_save_checkpoint", "on_load_checkpoint")
RUN = ("setup", "configure_model", "on_fit_start", "on_fit_end", "teardown")
_EVALUATION = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end", "model_eval", "model_train")
Stage = Literal["training", "testing", "validating"]
_OF_MODULE = (
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
)


def overrides(owner: object, name: str, base: type = LightningModule) -> bool:
    """Return whether a module or data module has a hook of its own."""
    return name in vars(owner) or getattr(type(owner), name, None) is not getattr(base, name, None)


def training_hooks(module: LightningModule, datamodule: LightningDataModule | None = None) -> list[str]:
    """Return the hooks that something happens in while a client trains; mostly none."""
    found = [name for name in (*TRANSFER, *TRAINING) if overrides(module, name)]
    if datamodule is not None:
        found += [name for name in TRANSFER if overrides(datamodule, name, DataHooks) and name not in found]
    return found


def stage_of(module: LightningModule) -> str:
    """Return ``test`` or else ``validation``, whichever step the module has; nothing if it cannot be evaluated."""
    return next((stage for stage in ("test", "validation") if overrides(module, f"{stage}_step")), "")


def all_hooks() -> list[str]:
    """Return every hook of a LightningModule; those of prediction have no meaning in a run and are left out."""
    names = {name for kind in (ModelHooks, DataHooks, CheckpointHooks) for name in vars(kind) if name[0] != "_"}
    return sorted(name for name in names.union(_OF_MODULE) if "predict" not in name)


def uncalled_hooks(
    module: LightningModule, datamodule: LightningDataModule | None, module_optimizer: bool = False
) -> list[str]:
    """Return the hooks that a module overrides though nobody calls them.

    Hooks of the same name of a data module take precedence, as in a Trainer. ``module_optimizer``: whether the module's
    own optimizer and scheduler run.
    """
    called = {*TRANSFER, *TRAINING, *RUN, *CHECKPOINTS, "configure_callbacks"}
    called.update(f"on_{stage_of(module)}_{moment}" for moment in _EVALUATION)
    if stage_of(module) == "validation":
        called.add("on_validation_model_zero_grad")
    if module_optimizer:
        called.add("lr_scheduler_step")
    if datamodule is not None:
        called.difference_update(name for name in TRANSFER if overrides(datamodule, name, DataHooks))
    return [name for name in all_hooks() if name not in called and overrides(module, name)]


def transfer(
    fabric: Fabric, module: LightningModule, datamodule: LightningDataModule | None = None
) -> Callable[[Batch], Batch]:
    """Return what moves a batch to the device: with the hooks of the data module, else of the module, else plainly."""
    owners: list[tuple[object, type]] = [] if datamodule is None else [(datamodule, DataHooks)]
    owners.append((module, LightningModule))

    def owned(name: str) -> Callable[..., Batch] | None:
        return next((getattr(owner, name) for owner, base in owners if overrides(owner, name, base)), None)

    before, move, after = map(owned, TRANSFER)
    pins = fabric.device.type in PINNING

    def plainly(batch: Batch) -> Batch:
        return fabric.to_device(pinned(batch) if pins else batch)

    if before is None and move is None and after is None:
        return plainly

    def moved(batch: Batch) -> Batch:
        if before is not None:
            batch = before(batch, 0)
        batch = plainly(batch) if move is None else move(batch, fabric.device, 0)
        return batch if after is None else after(batch, 0)

    return moved


class StandInTrainer:
    """Knows where the run stands; anything else of a Trainer raises an error that says so.

    ``current_epoch`` is the round, counted from 0 as Lightning counts epochs; ``global_step`` the steps that the client
    at hand has done in this round.
    """

    logger = progress_bar_callback = None
    predicting = sanity_checking = fast_dev_run = False
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: GradClipAlgorithmType | None = None
    precision_plugin = Precision()  # clips for self.clip_gradients; gradients are never scaled when hooks see them

    def __init__(self, module: LightningModule, global_rank: int = 0, world_size: int = 1) -> None:
        self.model = self.lightning_module = module
        self.global_rank = self.local_rank = global_rank
        self.world_size = world_size
        self.is_global_zero = global_rank == 0
        self.loggers: list[object] = []
        self.current_epoch = self.global_step = 0
        self.training = self.testing = self.validating = False

    def begin(self, round_index: int) -> None:
        """Stand at the beginning of a client's training."""
        self.current_epoch = round_index - 1
        self.global_step = 0
        self.enter("training")

    def enter(self, stage: Stage) -> None:
        """Say what is going on."""
        self.training = stage == "training"
        self.testing = stage == "testing"
        self.validating = stage == "validating"

    def as_trainer(self) -> Trainer:
        """Return this as what Lightning declares ``self.trainer`` to be."""
        return cast(Trainer, self)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"self.trainer.{name} is not there: a federation has no Trainer. Use self.current_epoch (the round), "
            "self.global_step, self.device and self.trainer.training/validating/testing, or pass what you need to the "
            "module's constructor"
        )


def attached(module: LightningModule, global_rank: int = 0, world_size: int = 1) -> StandInTrainer:
    """Return the stand-in of a module, which gets one if it has none (a copy of a module has none)."""
    present: object = module._trainer
    if isinstance(present, StandInTrainer) and present.model is module:
        return present
    position = StandInTrainer(module, global_rank, world_size)
    module.trainer = position.as_trainer()
    return position


def _drop(*_: object, **__: object) -> None:
    pass


@contextmanager
def redirected_logs(
    module: LightningModule, log: Callable[..., None] = _drop, log_dict: Callable[..., None] = _drop
) -> Iterator[None]:
    """Drop what the module logs, for which there is no Trainer, or give it to somebody else."""
    module.log, module.log_dict = log, log_dict  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.log, module.log_dict


def start_run(module: LightningModule, fabric: Fabric, datamodule: LightningDataModule | None) -> StandInTrainer:
    """Give a module its stand-in of a Trainer and let it set itself up, as before a fit and before a test."""
    position = attached(module, fabric.global_rank, fabric.world_size)
    if datamodule is not None:
        datamodule.trainer = position.as_trainer()
    with redirected_logs(module):
        module.setup(stage=TrainerFn.FITTING)
        if stage_of(module) == "test":
            module.setup(stage=TrainerFn.TESTING)
        module.configure_model()
    return position


def end_run(module: LightningModule, datamodule: LightningDataModule | None) -> None:
    """Let a module end its run, and take the stand-in away."""
    with redirected_logs(module):
        module.on_fit_end()
        module.teardown(stage=TrainerFn.FITTING)
        if stage_of(module) == "test":
            module.teardown(stage=TrainerFn.TESTING)
    module.trainer = None
    if datamodule is not None:
        datamodule.trainer = None
