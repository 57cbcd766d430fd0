"""Asynchronous algorithms: a round is one step of the server, made of uploads that did not wait for each other."""

from fl_lightning.asynchronous.in_flight import ArrivalRates, AsynchronousSelection
from fl_lightning.asynchronous.stale_mean import Delayed, ExactAveraging, ExpectedStaleness, StaleMean

__all__ = ["ArrivalRates", "AsynchronousSelection", "Delayed", "ExactAveraging", "ExpectedStaleness", "StaleMean"]
