"""Fabric's precisions: what becomes of the module and the batches, and around what its context stands."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

_CONVERTING = ("64-true", "16-true", "bf16-true")
_OTHERS = ("32-true", "16-mixed", "bf16-mixed")


class TrainingPrecision:
    """Trains in the precision that Fabric was given.

    ``64-true``, ``16-true`` and ``bf16-true`` convert the module and the batches, so that weights, updates and the
    global model have that type, and set torch's default type. That default belongs to the whole process, so it is set
    around a whole round and not by single threads. ``16-mixed`` and ``bf16-mixed`` leave the weights in 32 bits and
    choose a type for each operation, in each thread.

    Args:
        fabric: Knows the precision.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric, self._plugin = fabric, fabric.strategy.precision
        name = str(self._plugin.precision)
        if name not in (*_CONVERTING, *_OTHERS):
            raise ValueError(f"fabric.precision={name} is not supported: use one of {', '.join(_OTHERS + _CONVERTING)}")
        self._converts = name in _CONVERTING

    def module(self, module: LightningModule) -> LightningModule:
        """Return the module on its device, converted."""
        placed = cast(LightningModule, self._fabric.to_device(module))
        return cast(LightningModule, self._plugin.convert_module(placed)) if self._converts else placed

    def batch(self, batch: Any) -> Any:
        """Return a batch on its device, converted."""
        placed = self._fabric.to_device(batch)
        return self._plugin.convert_input(placed) if self._converts else placed

    def of_step(self) -> AbstractContextManager[Any]:
        """Return the context of a single step, which threads enter on their own."""
        return nullcontext() if self._converts else self._fabric.autocast()

    def of_round(self) -> AbstractContextManager[Any]:
        """Return the context around all that is done with the module in a round."""
        return self._fabric.autocast() if self._converts else nullcontext()
