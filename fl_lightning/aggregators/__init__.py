"""Aggregators: the factor c on a delivered update, and memory where an algorithm has one."""

from fl_lightning.aggregators.aggregator import Aggregator
from fl_lightning.aggregators.cafedavg import CommunicationAware, CommunicationAwareNormalizedMean
from fl_lightning.aggregators.client_rows import RowStorage
from fl_lightning.aggregators.fedar import RectifiedMean
from fl_lightning.aggregators.fedau import EstimatedParticipation, ParticipationIntervals
from fl_lightning.aggregators.fedavg import AnonymousMean
from fl_lightning.aggregators.fednova import IncompleteWork, NormalizedMean
from fl_lightning.aggregators.fedpbc import EchoedInnovations, PostponedBroadcast, ReweightedProgress
from fl_lightning.aggregators.fedvarp import LastKnownUpdates, MemorizedMean, RecentMean, StaleMixture
from fl_lightning.aggregators.focus import DynamicRegularizer, PushPull, UplinkMerge
from fl_lightning.aggregators.robust import (
    CoordinateMedian,
    GeometricMedian,
    Krum,
    NormBound,
    RobustAggregator,
    TrimmedMean,
)
from fl_lightning.aggregators.safa import LagTolerant
from fl_lightning.aggregators.scaffold import AdaptiveControlVariates, ControlVariates
from fl_lightning.aggregators.secure import SecureSum
from fl_lightning.aggregators.server_optimizers import (
    Amplified,
    Extrapolated,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
)
from fl_lightning.parts.traits import AggregatorTraits

__all__ = [
    "AdaptiveControlVariates",
    "Aggregator",
    "AggregatorTraits",
    "Amplified",
    "AnonymousMean",
    "CommunicationAware",
    "CommunicationAwareNormalizedMean",
    "ControlVariates",
    "CoordinateMedian",
    "DynamicRegularizer",
    "EchoedInnovations",
    "EstimatedParticipation",
    "Extrapolated",
    "GeometricMedian",
    "IncompleteWork",
    "Krum",
    "LagTolerant",
    "LastKnownUpdates",
    "MemorizedMean",
    "NormBound",
    "NormalizedMean",
    "ParticipationIntervals",
    "PostponedBroadcast",
    "PushPull",
    "RecentMean",
    "RectifiedMean",
    "ReweightedProgress",
    "RobustAggregator",
    "RowStorage",
    "SecureSum",
    "ServerAdam",
    "ServerMomentum",
    "ServerOptimizer",
    "ServerYogi",
    "StaleMixture",
    "TrimmedMean",
    "UplinkMerge",
]
