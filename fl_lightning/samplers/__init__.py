"""Samplers: the probabilities p with which clients are drawn."""

from fl_lightning.parts.traits import SamplerTraits
from fl_lightning.samplers.cafed import CorrelationAware
from fl_lightning.samplers.clustered import ClusteredBySimilarity, ClusteredBySize
from fl_lightning.samplers.consistent import Consistent, VarianceOptimal, WorkAware
from fl_lightning.samplers.delta import DiversityBased
from fl_lightning.samplers.divfl import SubmodularSelection
from fl_lightning.samplers.f3ast import TrackedRates
from fl_lightning.samplers.fedacs import HeterogeneityAware
from fl_lightning.samplers.fedcote import LabelMatching
from fl_lightning.samplers.fedcs import FastestCandidates
from fl_lightning.samplers.hics import EntropyClusters
from fl_lightning.samplers.oort import UtilityBased
from fl_lightning.samplers.optimal import NormProportional
from fl_lightning.samplers.power_of_choice import PowerOfChoice
from fl_lightning.samplers.refl import LeastAvailable
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
from fl_lightning.samplers.separated import Separated
from fl_lightning.samplers.successive import Successive
from fl_lightning.samplers.tifl import Tiers

__all__ = [
    "Certain",
    "ClusteredBySimilarity",
    "ClusteredBySize",
    "Consistent",
    "CorrelationAware",
    "DiversityBased",
    "Drawing",
    "EntropyClusters",
    "FastestCandidates",
    "FullParticipation",
    "HeterogeneityAware",
    "Importance",
    "Independent",
    "LabelMatching",
    "LeastAvailable",
    "NormProportional",
    "PowerOfChoice",
    "Sampler",
    "SamplerTraits",
    "Separated",
    "SubmodularSelection",
    "Successive",
    "Systematic",
    "Tiers",
    "TrackedRates",
    "Uniform",
    "UtilityBased",
    "VarianceOptimal",
    "WithReplacement",
    "WithoutReplacement",
    "WorkAware",
]
