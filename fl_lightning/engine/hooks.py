"""Which hooks of a module are called, and by whom batches are moved to the device."""

from collections.abc import Callable
from typing import Any

from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from lightning.pytorch.trainer.states import TrainerFn

from fl_lightning.engine.evaluation import evaluation_step, silent_logs
from fl_lightning.engine.stand_in import StandInTrainer, attached

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
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
)
RUN = ("setup", "configure_model", "on_fit_start", "on_fit_end", "teardown")
_EVALUATION = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end", "model_eval", "model_train")
_STAGES = {"test_step": "test", "validation_step": "validation"}
_OF_MODULE = (
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
)


def overrides(owner: Any, name: str, base: Any = LightningModule) -> bool:
    """Return whether a module or data module has a hook of its own."""
    return name in vars(owner) or getattr(type(owner), name, None) is not getattr(base, name, None)


def training_hooks(module: LightningModule, datamodule: LightningDataModule | None = None) -> list[str]:
    """Return the hooks that something happens in while a client trains; mostly none."""
    found = [name for name in (*TRANSFER, *TRAINING) if overrides(module, name)]
    if datamodule is not None:
        found += [name for name in TRANSFER if overrides(datamodule, name, DataHooks) and name not in found]
    return found


def stage_of(module: LightningModule) -> str:
    """Return ``test`` or ``validation``, whichever evaluates the module; nothing if it cannot be evaluated."""
    return _STAGES.get(evaluation_step(module) or "", "")


def all_hooks() -> list[str]:
    """Return every hook of a LightningModule; those of prediction have no meaning in a run and are left out."""
    names = {name for kind in (ModelHooks, DataHooks, CheckpointHooks) for name in vars(kind) if name[0] != "_"}
    return sorted(name for name in names.union(_OF_MODULE) if "predict" not in name)


def uncalled_hooks(
    module: LightningModule, datamodule: LightningDataModule | None, module_optimizer: bool = False
) -> list[str]:
    """Return the hooks that a module overrides though nobody calls them.

    Args:
        module: The module.
        datamodule: Whose hooks of the same name take precedence, as in a Trainer.
        module_optimizer: Whether the module's own optimizer and scheduler run.
    """
    called = {*TRANSFER, *TRAINING, *RUN}
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
) -> Callable[[Any], Any]:
    """Return what moves a batch to the device: with the hooks of the data module, else of the module, else plainly."""
    before, move, after = (_owned(name, module, datamodule) for name in TRANSFER)
    if before is None and move is None and after is None:
        return fabric.to_device

    def moved(batch: Any) -> Any:
        if before is not None:
            batch = before(batch, 0)
        batch = fabric.to_device(batch) if move is None else move(batch, fabric.device, 0)
        return batch if after is None else after(batch, 0)

    return moved


def _owned(name: str, module: LightningModule, datamodule: LightningDataModule | None) -> Callable[..., Any] | None:
    if datamodule is not None and overrides(datamodule, name, DataHooks):
        return getattr(datamodule, name)
    return getattr(module, name) if overrides(module, name) else None


def start_run(module: LightningModule, fabric: Fabric, datamodule: LightningDataModule | None) -> StandInTrainer:
    """Give a module its stand-in of a Trainer and let it set itself up, as before a fit and before a test."""
    position = attached(module, fabric.global_rank, fabric.world_size)
    if datamodule is not None:
        trainer: Any = position
        datamodule.trainer = trainer
    with silent_logs(module):
        module.setup(stage=TrainerFn.FITTING)
        if stage_of(module) == "test":
            module.setup(stage=TrainerFn.TESTING)
        module.configure_model()
    return position


def end_run(module: LightningModule, datamodule: LightningDataModule | None) -> None:
    """Let a module end its run, and take the stand-in away."""
    with silent_logs(module):
        module.on_fit_end()
        module.teardown(stage=TrainerFn.FITTING)
        if stage_of(module) == "test":
            module.teardown(stage=TrainerFn.TESTING)
    module.trainer = None
    if datamodule is not None:
        datamodule.trainer = None
