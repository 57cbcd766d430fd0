"""Callbacks of the federated loop, for any Lightning project."""

from fl_lightning.callbacks.channels import ChannelFailures, GilbertElliott, GroupFailures, TraceChannel
from fl_lightning.callbacks.checkpoint import RoundCheckpoint
from fl_lightning.callbacks.deliveries import DeliveryRecorder
from fl_lightning.callbacks.observed import Observed, ObservedConditions
from fl_lightning.callbacks.progress import RoundProgress
from fl_lightning.callbacks.radio import RayleighOutage
from fl_lightning.callbacks.recorder import RunRecorder
from fl_lightning.callbacks.sampling import SamplerSelection
from fl_lightning.callbacks.schedule import Group, HeterogeneitySchedule, Ramp
from fl_lightning.callbacks.stopping import StopAtTarget
from fl_lightning.callbacks.tensorboard import TensorBoardMetrics
from fl_lightning.callbacks.timing import ComputationTime
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
