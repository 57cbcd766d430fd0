"""How a cohort is trained fast: one class per way of training, behind :class:`fl_lightning.parts.protocols.Trains`."""

from fl_lightning.engine.engine import Engine
from fl_lightning.engine.evaluation import ClientEvaluation
from fl_lightning.engine.replay import Replayed

__all__ = ["ClientEvaluation", "Engine", "Replayed"]
