"""Channels: whose upload arrives."""

from fl_lightning.callbacks.channels.bursts import GilbertElliott
from fl_lightning.callbacks.channels.groups import GroupFailures
from fl_lightning.callbacks.channels.independent import ChannelFailures
from fl_lightning.callbacks.channels.observed import Observed
from fl_lightning.callbacks.channels.radio import RayleighOutage, rayleigh_outage
from fl_lightning.callbacks.channels.trace import TraceChannel

__all__ = [
    "ChannelFailures",
    "GilbertElliott",
    "GroupFailures",
    "Observed",
    "RayleighOutage",
    "TraceChannel",
    "rayleigh_outage",
]
