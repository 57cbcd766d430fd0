"""Samplers: the probabilities p with which clients are drawn."""

from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.clustered import ClusteredBySimilarity, ClusteredBySize
from fl_lightning.samplers.consistent import Consistent, VarianceOptimal, WorkAware
from fl_lightning.samplers.delta import DiversityBased
from fl_lightning.samplers.divfl import SubmodularSelection
from fl_lightning.samplers.fedacs import HeterogeneityAware
from fl_lightning.samplers.hics import EntropyClusters
from fl_lightning.samplers.optimal import NormProportional
from fl_lightning.samplers.power_of_choice import PowerOfChoice
from fl_lightning.samplers.sampler import (
    Certain,
    Drawing,
    FullParticipation,
    Importance,
    Independent,
    Sampler,
    Systematic,
    Uniform,
    WithoutReplacement,
    WithReplacement,
)
from fl_lightning.samplers.successive import Successive

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
    "Successive",
    "Systematic",
    "Uniform",
    "VarianceOptimal",
    "WithReplacement",
    "WithoutReplacement",
    "WorkAware",
]
