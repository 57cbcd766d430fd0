"""Samplers: the probabilities p with which clients are drawn."""

from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.base import Sampler
from fl_lightning.samplers.clustered import ClusteredBySimilarity, ClusteredBySize
from fl_lightning.samplers.consistent import Consistent, VarianceOptimal, WorkAware
from fl_lightning.samplers.delta import DiversityBased
from fl_lightning.samplers.divfl import SubmodularSelection
from fl_lightning.samplers.drawing import (
    Certain,
    Drawing,
    Independent,
    Systematic,
    WithoutReplacement,
    WithReplacement,
)
from fl_lightning.samplers.fedacs import HeterogeneityAware
from fl_lightning.samplers.hics import EntropyClusters
from fl_lightning.samplers.optimal import NormProportional
from fl_lightning.samplers.plain import FullParticipation, Importance, Uniform
from fl_lightning.samplers.power_of_choice import PowerOfChoice

__all__ = [
    "Certain",
    "ClusteredBySimilarity",
    "ClusteredBySize",
    "Consistent",
    "DiversityBased",
    "Drawing",
    "EntropyClusters",
    "FullParticipation",
    "HeterogeneityAware",
    "Importance",
    "Independent",
    "NormProportional",
    "PowerOfChoice",
    "Sampler",
    "SamplerTraits",
    "SubmodularSelection",
    "Systematic",
    "Uniform",
    "VarianceOptimal",
    "WithReplacement",
    "WithoutReplacement",
    "WorkAware",
]
