"""What the server does besides aggregating: step length, averaging over rounds, rates, budget."""

from fl_lightning.server.averaging import Averaging, ExponentialAverage, NoAverage, TailAverage
from fl_lightning.server.budget import Budget, Spent
from fl_lightning.server.faults import FaultPolicy
from fl_lightning.server.rates import Calibration, CosineRate, RateSchedule, StepRate, TorchRate

__all__ = [
    "Averaging",
    "Budget",
    "Calibration",
    "CosineRate",
    "ExponentialAverage",
    "FaultPolicy",
    "NoAverage",
    "RateSchedule",
    "Spent",
    "StepRate",
    "TailAverage",
    "TorchRate",
]
