"""What ``configure_optimizers`` of a LightningModule returns, in one form."""

from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_INTERVALS = ("step", "epoch")


@dataclass(frozen=True, kw_only=True)
class Configured:
    """A module's own optimizer and, if it has one, the scheduler of its learning rate."""

    optimizer: Optimizer
    scheduler: LRScheduler | None = None
    interval: str = "epoch"  # step: after local steps; epoch: after rounds
    frequency: int = 1

    @property
    def base_rate(self) -> float:
        """The rate of the first parameter group before any scheduler touched it."""
        group = self.optimizer.param_groups[0]
        return float(group.get("initial_lr", group["lr"]))


def configured(module: LightningModule) -> Configured:
    """Make the module's optimizer and scheduler, fresh.

    Raises:
        ValueError: If there is none, or more than one solver can stand for.
    """
    name = f"{type(module).__name__}.configure_optimizers"
    optimizers, schedulers = _split(module.configure_optimizers())
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        kinds = ", ".join(type(entry).__name__ for entry in optimizers) or "nothing"
        raise ValueError(f"{name} must return one optimizer to be used in a federation, but returned {kinds}")
    if len(schedulers) > 1:
        raise ValueError(
            f"{name} returns {len(schedulers)} schedulers, but one is wanted: combine them by "
            "torch.optim.lr_scheduler.ChainedScheduler or SequentialLR"
        )
    if not schedulers:
        return Configured(optimizer=optimizers[0])
    return _with_scheduler(name, optimizers[0], schedulers[0])


def _with_scheduler(name: str, optimizer: Optimizer, entry: Any) -> Configured:
    settings = entry if isinstance(entry, dict) else {"scheduler": entry}
    scheduler = settings["scheduler"]
    if isinstance(scheduler, ReduceLROnPlateau) or settings.get("reduce_on_plateau"):
        raise ValueError(
            f"{name} returns a scheduler that waits for a metric ({type(scheduler).__name__}), which no client knows: "
            "use one that depends on steps or epochs alone"
        )
    interval, frequency = settings.get("interval", "epoch"), settings.get("frequency", 1)
    if interval not in _INTERVALS or not isinstance(frequency, int) or frequency < 1:
        raise ValueError(
            f"{name} returns a scheduler with interval={interval!r} and frequency={frequency!r}: "
            "the interval must be 'step' or 'epoch', the frequency an integer from 1"
        )
    return Configured(optimizer=optimizer, scheduler=scheduler, interval=interval, frequency=frequency)


def _split(returned: object) -> tuple[list[Any], list[Any]]:
    """Return the optimizers and the schedulers of each form that Lightning takes."""
    if returned is None:
        return [], []
    if isinstance(returned, dict):
        scheduler = returned.get("lr_scheduler")
        return [returned.get("optimizer")], [] if scheduler is None else [scheduler]
    if isinstance(returned, (list, tuple)):
        if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
            schedulers = returned[1] if isinstance(returned[1], (list, tuple)) else [returned[1]]
            return list(returned[0]), list(schedulers)
        pairs = [_split(entry) for entry in returned]
        return [one for first, _ in pairs for one in first], [one for _, second in pairs for one in second]
    return [returned], []


def has_optimizer(module: LightningModule) -> bool:
    """Return whether the module says how it wants to be optimized."""
    return is_overridden("configure_optimizers", module)
