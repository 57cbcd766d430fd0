"""Federated learning on PyTorch Lightning for clients that differ in work and in reach."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fl_lightning import _torchvision

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop
    from fl_lightning.module import FederatedModule

_torchvision.install()  # here, because every import of the package passes here

__version__ = "0.1.0"
__all__ = ["FederatedLoop", "FederatedModule"]

_HOMES = {"FederatedLoop": "fl_lightning.loop", "FederatedModule": "fl_lightning.module"}


def __getattr__(name: str) -> Any:
    """Import torch and Lightning only when they are needed: the command line's help must not wait for them."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
