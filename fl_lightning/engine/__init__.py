"""How a cohort is trained fast."""

from fl_lightning.engine.local import Engine

__all__ = ["Engine"]
