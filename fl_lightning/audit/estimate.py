"""From a log of participation to the objective that was optimised, with bands.

Rounds are the independent unit: all bands come from how much rounds differ.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from fl_lightning import theory
from fl_lightning.audit.chance import LEVEL, Interval, distances
from fl_lightning.audit.log import Log
from fl_lightning.theory.checks import Vector, one_of

Aggregation: TypeAlias = Literal["ratio", "sum"]
Wanted: TypeAlias = Literal["examples", "equal"]
Assumed: TypeAlias = Literal["equal", "epochs"]


@dataclass(frozen=True, kw_only=True)
class Band:
    """A number of each client with its 90 % interval, (M,) each; NaN where nothing is known."""

    value: Vector
    low: Vector
    high: Vector


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What a federation optimised, as far as its log shows."""

    names: tuple[str, ...]
    num_rounds: int
    weights: Vector  # w, what was wanted, sums to 1, (M,)
    wanted: Wanted
    examples: Vector | None  # of each client on average, (M,)
    objective: Band  # Omega
    asked: Band  # p, share of the draws
    lost: Band  # q, share of what was asked that did not arrive
    steps: Band  # T of an upload; all 1 where nobody knows
    applied: Band  # c, share of an upload in the average of its round
    num_draws: float  # K, asked in a round on average
    num_arrived: float  # in a round on average
    distance: Interval  # L1 of Omega from w: twice the share of the objective that is in the wrong place
    distance_from_equal: Interval  # L1 of Omega from equal weights
    steps_from: Literal["log", "examples, epochs and batch size", "assumed"]
    otherwise: "Audit | None" = None  # where steps are not known: the same if they grew with the examples
    pull: Vector | None = None  # share in the sum of the updates' lengths, where these are known, (M,)
    staleness: Vector | None = None  # mean of each client, (M,)
    notes: tuple[str, ...] = ()

    @property
    def certain(self) -> bool:
        """Whether nothing had to be assumed that decides about the objective."""
        return self.steps_from != "assumed"

    @property
    def outside(self) -> Vector:
        """How far Omega is above (positive) or below what was wanted, where the band excludes that; else 0, (M,)."""
        band, w = self.objective, self.weights
        slack = 1e-9 * w  # of rounding
        return np.where((band.low > w + slack) | (band.high < w - slack), band.value - w, 0.0)


def audit(
    log: Log,
    *,
    wanted: Wanted | None = None,
    aggregation: Aggregation = "ratio",
    epochs: float | None = None,
    batch_size: int | None = None,
    assume: Assumed | None = None,
) -> Audit:
    r"""Return what a federation optimised.

    .. math::
        \Omega_m \propto \frac1R \sum_r g_{rm} T_{rm}, \qquad
        g_{rm} = \frac{v_{rm}}{\sum_{j \text{ arrived in } r} v_{rj}}

    with v the weight of an upload (``weight``, else ``examples``, else 1) and T its local steps. With
    ``aggregation="sum"`` g is v itself, as for rules that divide by the number of draws K, whoever arrives; a column
    ``applied`` is g as it was and takes the place of both.

    Args:
        log: Who was asked, and who arrived.
        wanted: The objective to compare with; by default the shares of examples where they are known, else equal ones.
        aggregation: What weights are divided by.
        epochs: Local epochs, where steps are not in the log.
        batch_size: Likewise.
        assume: Where nobody knows the steps: all alike (``equal``), or proportional to examples (``epochs``).
    """
    one_of("aggregation", aggregation, Aggregation)
    notes: list[str] = []
    steps, steps_from = _steps(log, epochs, batch_size, assume, notes)
    ratio = aggregation == "ratio" and "applied" not in log.known
    weights = _weights(log, notes)
    pulls = weights * log.arrived
    totals = np.bincount(log.rounds, pulls, minlength=log.num_rounds)[log.rounds]
    applied = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0) if ratio else weights
    examples = client_means(log, log.known["examples"]) if "examples" in log.known else None
    chosen: Wanted = wanted or ("equal" if examples is None else "examples")
    one_of("wanted", chosen, Wanted)
    shares = applied * log.arrived
    arrivals = log.arrived > 0
    objective = _shares(log, shares * steps)
    target, equal = _wanted(log, chosen, examples, notes), np.full(len(log.names), 1 / len(log.names))
    from_wanted, from_equal = distances(log, pulls, steps, _sizes(log, examples), ratio, target, equal)
    otherwise = None
    if steps_from == "assumed" and assume is None and examples is not None:
        otherwise = audit(log, wanted=chosen, aggregation=aggregation, assume="epochs")
    norms, ages = log.known.get("update_norm"), log.known.get("staleness")
    return Audit(
        names=log.names,
        num_rounds=log.num_rounds,
        weights=target,
        wanted=chosen,
        examples=examples,
        objective=objective,
        asked=_shares(log, log.asked),
        lost=_lost(log),
        steps=_means(log, steps, arrivals),
        applied=_means(log, applied, arrivals),
        num_draws=float(log.asked.sum() / log.num_rounds),
        num_arrived=float(log.arrived.sum() / log.num_rounds),
        distance=from_wanted,
        distance_from_equal=from_equal,
        steps_from=steps_from,
        otherwise=otherwise,
        pull=None if norms is None else _shares(log, np.nan_to_num(shares * norms)).value,
        staleness=None if ages is None else client_means(log, ages),
        notes=tuple(notes),
    )


def client_means(log: Log, values: Vector) -> Vector:
    """Return the mean of each client over the rows in which a value is known; NaN where none is, (M,)."""
    known = ~np.isnan(values)
    count = np.bincount(log.clients[known], minlength=len(log.names)).astype(np.float64)
    total = np.bincount(log.clients[known], values[known], minlength=len(log.names))
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


def _steps(
    log: Log, epochs: float | None, batch_size: int | None, assume: Assumed | None, notes: list[str]
) -> tuple[Vector, Literal["log", "examples, epochs and batch size", "assumed"]]:
    """Return the local steps of each row, and where they come from; only those of arrived uploads have a meaning."""
    if (epochs is None) != (batch_size is None):
        raise ValueError("epochs and batch size make steps together: give both or neither")
    examples = _filled(log, "examples")
    reported = _filled(log, "steps")
    if epochs is not None and batch_size is not None:
        if "steps" in log.known:
            raise ValueError("the log has steps: leave epochs and batch size out")
        if examples is None or not (epochs > 0 and batch_size >= 1):
            raise ValueError("steps of epochs > 0 and a batch size >= 1 need the examples of every client that arrived")
        return epochs * np.ceil(examples / batch_size), "examples, epochs and batch size"
    if reported is not None:
        number = int((np.isnan(log.known["steps"]) & (log.arrived > 0)).sum())
        if number:
            notes.append(f"{number:,} uploads came without steps: they count as their client's others did on average.")
        return reported, "log"
    if assume == "epochs":
        if examples is None:
            raise ValueError("steps that grow with the examples need the examples of every client that arrived")
        return examples, "assumed"
    if assume is not None:
        one_of("assume", assume, Assumed)
    return np.ones(len(log.clients)), "assumed"


def _filled(log: Log, name: str) -> Vector | None:
    """Return a column with the client's mean where it is blank; None where a client that arrived never told it."""
    if name not in log.known:
        return None
    values = log.known[name]
    filled = np.where(np.isnan(values), client_means(log, values)[log.clients], values)
    return None if np.isnan(filled[log.arrived > 0]).any() else np.nan_to_num(filled)


def _weights(log: Log, notes: list[str]) -> Vector:
    """Return v, the weight of one upload of each row, or the factor that it really had; 0 where none arrived, (N,)."""
    arrived = log.arrived > 0
    for name in ("applied", "weight"):
        if name in log.known:
            if np.isnan(log.known[name][arrived]).any():
                raise ValueError(f"{name} is blank for some uploads that arrived: fill it in, or leave the column out")
            return np.where(arrived, log.known[name], 0.0)
    weights = _filled(log, "examples")
    told = "examples" if weights is not None else "1 each"
    notes.append(f"The log has no weights: uploads are taken to weigh {told}.")
    return np.where(arrived, 1.0 if weights is None else weights, 0.0)


def _sizes(log: Log, examples: Vector | None) -> Vector:
    """Return the examples of all clients, the mean where they are not known, none of them 0, (M,)."""
    if examples is None or not np.nansum(examples) > 0:
        return np.ones(len(log.names))
    mean = np.nanmean(examples)
    return np.maximum(np.where(np.isnan(examples), mean, examples), 1e-6 * mean)


def _wanted(log: Log, wanted: Wanted, examples: Vector | None, notes: list[str]) -> Vector:
    if wanted == "equal":
        return np.full(len(log.names), 1 / len(log.names))
    if examples is None or _filled(log, "examples") is None:
        raise ValueError("a client that arrived never told its examples: fill them in, or compare with equal weights")
    silent = np.isnan(examples)
    if silent.any():
        notes.append(f"{silent.sum():,} clients never told their examples: they are taken to have the mean number.")
    counts = np.where(silent, np.nanmean(examples), examples)
    return theory.effective_weights(counts)


def _shares(log: Log, amounts: Vector) -> Band:
    r"""Return each client's share of all amounts.

    The variance of a share s is that of its linearisation over rounds, :math:`\sum_r (x_{rm} - s_m x_r)^2 / x^2`; the
    band is symmetric in :math:`\log s/(1-s)`, which keeps its coverage where a client arrived a few times only.
    """
    num = len(log.names)
    in_rounds = np.bincount(log.rounds, amounts, minlength=log.num_rounds)
    total = in_rounds.sum()
    if not total > 0:
        raise ValueError("all uploads that arrived have weight or steps 0: nothing was optimised")
    share = np.bincount(log.clients, amounts, minlength=num) / total
    if log.num_rounds == 1:
        return Band(value=share, low=np.zeros(num), high=np.ones(num))
    squares = np.bincount(log.clients, amounts**2, minlength=num)
    products = np.bincount(log.clients, amounts * in_rounds[log.rounds], minlength=num)
    variance = squares - 2 * share * products + share**2 * (in_rounds**2).sum()
    variance[variance < 1e-12 * squares] = 0.0  # what rounding leaves of a share that never changes
    error = np.sqrt(variance * log.num_rounds / (log.num_rounds - 1)) / total
    inner = (share > 0) & (share < 1)
    middle = np.where(inner, share, 0.5)
    logit = np.log(middle / (1 - middle))
    half = stats.t.ppf(0.5 + LEVEL / 2, log.num_rounds - 1) * error / (middle * (1 - middle))
    low, high = (np.where(inner, 1 / (1 + np.exp(-(logit + sign * half))), share) for sign in (-1, 1))
    rare = 1 - ((1 - LEVEL) / 2) ** (1 / log.num_rounds)  # arrives as often, and is never seen in 1 log of 20
    usual = total / max(1.0, float((amounts > 0).sum())) * log.num_rounds / total
    return Band(value=share, low=low, high=np.where(share > 0, high, min(1.0, rare * usual)))


def _lost(log: Log) -> Band:
    """Return the share of what was asked that did not arrive, by Clopper and Pearson."""
    asked = np.bincount(log.clients, log.asked, minlength=len(log.names))
    lost = asked - np.bincount(log.clients, log.arrived, minlength=len(log.names))
    tail = (1 - LEVEL) / 2
    rate = np.divide(lost, asked, out=np.full(len(asked), np.nan), where=asked > 0)
    low = np.where(lost > 0, stats.beta.ppf(tail, np.maximum(lost, 1), asked - lost + 1), 0.0)
    high = np.where(lost < asked, stats.beta.ppf(1 - tail, lost + 1, np.maximum(asked - lost, 1)), 1.0)
    return Band(value=rate, low=low, high=high)


def _means(log: Log, every: Vector, counted: npt.NDArray[np.bool_]) -> Band:
    """Return each client's mean over some rows, by Student."""
    clients, values = log.clients[counted], every[counted]
    number = np.bincount(clients, minlength=len(log.names)).astype(np.float64)
    mean = client_means(log, np.where(counted, every, np.nan))
    squares = np.bincount(clients, (values - mean[clients]) ** 2, minlength=len(number))
    few = number < 2
    spread = np.sqrt(squares / np.maximum(number * (number - 1), 1))
    half = np.where(few, np.inf, stats.t.ppf(0.5 + LEVEL / 2, np.maximum(number - 1, 1)) * spread)
    return Band(value=mean, low=np.maximum(0.0, mean - half), high=mean + half)
