"""What clients meet: their clock, who can be drawn, what a round costs, recorded traces."""

from fl_lightning.system.availability import AvailabilityTrace, DayNight, OnOff, Phones
from fl_lightning.system.clock import Clock
from fl_lightning.system.pace import Between, LogNormal, Share, Traffic

__all__ = ["AvailabilityTrace", "Between", "Clock", "DayNight", "LogNormal", "OnOff", "Phones", "Share", "Traffic"]
