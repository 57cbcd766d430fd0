"""Asynchronous rules as short loops, given the history of models; each returns what a step takes off the model.

``s`` is what the rule remembers, ``x`` all models so far, ``r`` the round: who arrived (z), the age of what they began
with, and Delta from a start.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Step:
    w: np.ndarray
    A: np.ndarray
    z: np.ndarray  # uploads that arrived
    started: np.ndarray  # the number of the model that each upload began with
    index: int
    lr: float
    buffer: int
    usual: float  # mean of M w a over uploads

    @property
    def arrived(self) -> list[int]:
        return np.flatnonzero(self.z).tolist()

    def delta(self, m: int, x: list[np.ndarray]) -> np.ndarray:
        return self.A[m] * 0.1 * (m + 1) * (x[self.started[m]] - m)


def ca2fl(s, r, x):
    y = s.setdefault("y", np.zeros((len(r.w), len(x[0]))))
    v = r.w @ y
    for m in r.arrived:
        v = v + (r.delta(m, x) - y[m]) / len(r.arrived)
    for m in r.arrived:
        y[m] = r.delta(m, x)
    return r.lr * v


def ace(s, r, x, max_age=None):
    rows = s.setdefault("rows", {})
    for m in r.arrived:
        rows[m] = (r.delta(m, x), r.started[m])
    young = [m for m in rows if max_age is None or r.index - 1 - rows[m][1] <= max_age]
    total = sum((r.w[m] * rows[m][0] for m in young), np.zeros(len(x[0])))
    return r.lr * (total if max_age is None else total / max(sum(r.w[m] for m in young), 1e-12))


def area(s, r, x):
    """The model is the mean of all clients' last models, made anew each time."""
    last = s.setdefault("last", dict.fromkeys(range(len(r.w)), x[0]))
    for m in r.arrived:
        last[m] = x[r.started[m]] - r.lr * r.delta(m, x)
    return x[-1] - sum(r.w[m] * last[m] for m in last)


def fedstaleweight(s, r, x, normalize="expected"):
    ages = s.setdefault("ages", {m: [] for m in range(len(r.w))})
    for m in r.arrived:
        ages[m] += [r.index - 1 - r.started[m]] * int(r.z[m])
    weight = {m: len(r.w) * r.w[m] * (np.mean(ages[m]) + 1 / r.buffer) for m in r.arrived}
    below = r.buffer * r.usual if normalize == "expected" else sum(r.z[m] * weight[m] for m in weight)
    return r.lr * sum((r.z[m] * weight[m] / below * r.delta(m, x) for m in weight), np.zeros(len(x[0])))
