"""Callbacks of the federated loop, for any Lightning project."""

from fl_lightning.callbacks.channels import ChannelFailures, GilbertElliott, GroupFailures, TraceChannel
from fl_lightning.callbacks.checkpoint import RoundCheckpoint
from fl_lightning.callbacks.monitors import ComputationTime, RoundProgress, StopAtTarget, TensorBoardMetrics
from fl_lightning.callbacks.observed import DeliveryRecorder, Observed, ObservedConditions, ParticipationLog
from fl_lightning.callbacks.recorder import RunRecorder
from fl_lightning.callbacks.rounds import SamplerSelection
from fl_lightning.callbacks.schedule import Group, HeterogeneitySchedule, Ramp, RayleighOutage
from fl_lightning.callbacks.wandb import WandbMetrics

__all__ = [
    "ChannelFailures",
    "ComputationTime",
    "DeliveryRecorder",
    "GilbertElliott",
    "Group",
    "GroupFailures",
    "HeterogeneitySchedule",
    "Observed",
    "ObservedConditions",
    "ParticipationLog",
    "Ramp",
    "RayleighOutage",
    "RoundCheckpoint",
    "RoundProgress",
    "RunRecorder",
    "SamplerSelection",
    "StopAtTarget",
    "TensorBoardMetrics",
    "TraceChannel",
    "WandbMetrics",
]
