"""Aggregators: the factor c on a delivered update, and memory where an algorithm has one."""

from fl_lightning.aggregators.anonymous import AnonymousMean
from fl_lightning.aggregators.base import Aggregator
from fl_lightning.aggregators.communication import CommunicationAware
from fl_lightning.aggregators.consistent import CommunicationAwareNormalizedMean
from fl_lightning.aggregators.control import ControlVariates
from fl_lightning.aggregators.echo import EchoedInnovations
from fl_lightning.aggregators.incomplete import IncompleteWork
from fl_lightning.aggregators.intervals import ParticipationIntervals
from fl_lightning.aggregators.last_known import LastKnownUpdates
from fl_lightning.aggregators.memorized import MemorizedMean
from fl_lightning.aggregators.normalized import NormalizedMean
from fl_lightning.aggregators.postponed import PostponedBroadcast
from fl_lightning.aggregators.server import ServerOptimizer
from fl_lightning.aggregators.server_adam import ServerAdam
from fl_lightning.aggregators.server_momentum import ServerMomentum
from fl_lightning.aggregators.server_yogi import ServerYogi
from fl_lightning.aggregators.stale import StaleMixture

__all__ = [
    "Aggregator",
    "AnonymousMean",
    "CommunicationAware",
    "CommunicationAwareNormalizedMean",
    "ControlVariates",
    "EchoedInnovations",
    "IncompleteWork",
    "LastKnownUpdates",
    "MemorizedMean",
    "NormalizedMean",
    "ParticipationIntervals",
    "PostponedBroadcast",
    "ServerAdam",
    "ServerMomentum",
    "ServerOptimizer",
    "ServerYogi",
    "StaleMixture",
]
