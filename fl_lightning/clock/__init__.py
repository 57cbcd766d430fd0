"""The virtual clock: how long clients take, who can be drawn, and what a round costs."""

from fl_lightning.clock.availability import AvailabilityTrace, DayNight, OnOff
from fl_lightning.clock.clock import Clock
from fl_lightning.clock.costs import Traffic
from fl_lightning.clock.values import Between, LogNormal, Share

__all__ = [
    "AvailabilityTrace",
    "Between",
    "Clock",
    "DayNight",
    "LogNormal",
    "OnOff",
    "Share",
    "Traffic",
]
