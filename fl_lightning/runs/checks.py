"""What the numbers of a run's files must be like, so that nothing later stumbles over them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_lightning.report.statistics import Vector

_LARGEST = 1e15
_CLIENTS = ("size", "weight", "expected_draws", "draws", "deliveries", "num_steps", "failure_rate")
_AXES = ("local_steps", "computation_time")


def check_metrics(metrics: Mapping[str, Vector]) -> None:
    """Refuse rounds out of order, accuracies that are none, and costs that shrink.

    >>> check_metrics({"round": np.array([1.0, 3.0])})
    Traceback (most recent call last):
        ...
    ValueError: metrics.csv does not have each round once, in order
    """
    rounds = metrics["round"]
    if not np.array_equal(rounds, np.arange(1, len(rounds) + 1)):
        raise ValueError("metrics.csv does not have each round once, in order")
    accuracy = metrics.get("test_accuracy", np.empty(0))
    if not ((np.isnan(accuracy)) | ((accuracy >= 0) & (accuracy <= 1))).all():
        raise ValueError("metrics.csv holds a test_accuracy that is not between 0 and 1")
    for name in _AXES:
        values = metrics.get(name)
        if values is None:
            raise ValueError(f"metrics.csv has no column {name}")
        if not ((values >= 0) & (values < _LARGEST)).all() or (np.diff(values) < 0).any():
            raise ValueError(f"metrics.csv holds a {name} that is no number or shrinks")


def check_clients(clients: Mapping[str, Vector]) -> None:
    """Refuse what no client can be: negative, infinite or missing numbers."""
    for name in _CLIENTS:
        values = clients.get(name)
        if values is not None and not ((values >= 0) & (values < _LARGEST)).all():
            raise ValueError(f"clients.csv holds a {name} that is no number from 0 up")
    effective = clients.get("effective_weight", np.empty(0))
    if not (np.isnan(effective) | ((effective >= 0) & (effective <= 1 + 1e-6))).all():
        raise ValueError("clients.csv holds an effective_weight that is not between 0 and 1")


def check_summary(summary: Mapping[str, Any]) -> None:
    """Refuse a summary whose fields are of another kind than a run writes."""
    kinds: dict[str, tuple[type, ...]] = {
        "seconds": (int, float, type(None)),
        "target_accuracy": (int, float, type(None)),
        "monitor": (str, type(None)),
        "mode": (str, type(None)),
        "versions": (dict, type(None)),
        "per_class_accuracy": (list, type(None)),
    }
    for name, wanted in kinds.items():
        if not isinstance(summary.get(name), wanted) or isinstance(summary.get(name), bool):
            raise ValueError(f"summary.json holds a {name} of the wrong kind")
    target = summary.get("target_accuracy")
    if target is not None and not 0 <= target <= 1:
        raise ValueError(f"summary.json holds target_accuracy {target}, which is not between 0 and 1")
    seconds = summary.get("seconds")
    if seconds is not None and not 0 <= seconds < _LARGEST:
        raise ValueError("summary.json holds seconds that are no number from 0 up")
    for value in summary.get("per_class_accuracy") or []:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (math.isnan(value) or 0 <= value <= 1):
            raise ValueError("summary.json holds a per_class_accuracy that is not between 0 and 1")
