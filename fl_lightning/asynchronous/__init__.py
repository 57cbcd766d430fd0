"""Asynchronous algorithms: a round is one step of the server, made of uploads that did not wait for each other."""

from fl_lightning.asynchronous.aggregator import StaleMean
from fl_lightning.asynchronous.rates import ArrivalRates
from fl_lightning.asynchronous.selection import AsynchronousSelection

__all__ = ["ArrivalRates", "AsynchronousSelection", "StaleMean"]
