"""Flower: our configurations on real machines, and an audit and a cure for federations that run Flower's strategies.

Needs ``pip install -e '.[flower]'``; nothing else of the package imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_lightning.flower.auditing import Reported as Reported
    from fl_lightning.flower.auditing import audited as audited
    from fl_lightning.flower.curing import heterogeneity_aware as heterogeneity_aware

_HOMES = {"audited": "auditing", "Reported": "auditing", "heterogeneity_aware": "curing"}


def __getattr__(name: str) -> object:
    """Import what is asked for: a node needs neither."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
