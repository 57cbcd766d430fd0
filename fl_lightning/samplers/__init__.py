"""Samplers: the probabilities p with which clients are drawn."""

from fl_lightning.samplers.base import Sampler
from fl_lightning.samplers.drawing import Drawing, Independent, Systematic, WithoutReplacement, WithReplacement
from fl_lightning.samplers.heterogeneity import HeterogeneityAware
from fl_lightning.samplers.plain import FullParticipation, Importance, Uniform

__all__ = [
    "Drawing",
    "FullParticipation",
    "HeterogeneityAware",
    "Importance",
    "Independent",
    "Sampler",
    "Systematic",
    "Uniform",
    "WithReplacement",
    "WithoutReplacement",
]
