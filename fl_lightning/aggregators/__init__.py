"""Aggregators: the factor c on a delivered update, and memory where an algorithm has one."""

from fl_lightning.aggregators.anonymous import AnonymousMean
from fl_lightning.aggregators.base import Aggregator

__all__ = ["Aggregator", "AnonymousMean"]
