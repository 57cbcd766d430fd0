r"""How far what a log shows may be from what is: objectives that could have left it.

A client's part is :math:`\Omega_m \propto p_m (1-q_m) v_m T_m`, times :math:`\mathrm{E}[1 / (v_m + S_m)]` where weights
are divided by the sum of what arrived, S being that of the others. Each of p, q and T is taken to be spread over
clients in a way that the log itself shows (Beta for the rates, log-normal around a power of the examples for the
steps); drawn from what is plausible after the log was seen, they give plausible objectives. A sum of absolute errors,
as the L1 distance of an estimate is, grows with the errors; the distance of plausible objectives does not, as who was
seen a few times only is taken to be much like the others.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import betaln

from fl_lightning.audit.log import Log
from fl_lightning.theory.checks import Vector

Matrix: TypeAlias = npt.NDArray[np.float64]
LEVEL = 0.9  # of all bands
_DRAWN = 0.93  # share of plausible objectives in it: the common rate and spread are taken as known, which they are not
_LARGEST = 20_000_000  # numbers in all objectives
_PLAYED = 10_000  # rounds times clients that are played to see what arrives together
_SPREADS = np.geomspace(1e-5, 0.7, 20)  # of rates: variance over that of a coin, log-uniform
_TAUS = np.geomspace(0.01, 1.5, 14)  # of steps: deviation of the logarithm, log-uniform
_SLOPES = ((0.0, 0.05), (1.0, 0.05), (0.5, 0.7))  # power of the examples with its error: fixed steps, epochs, any
_BLOCKS = 4_000_000  # blocks of rounds times clients
_INDEPENDENT, _DEPENDENT = 20.0, 0.5  # uploads of a client for which independent rounds count
_APART = 4.0  # mean square of what the log shows of others, in errors, from which on clients depend on each other
_COMMON = 4.0  # uploads for which the mean spread of all clients counts


class Interval(NamedTuple):
    """A number with its 90 % interval."""

    value: float
    low: float
    high: float


def distances(log: Log, pulls: Vector, steps: Vector, sizes: Vector, ratio: bool, *to: Vector) -> list[Interval]:
    """Return the L1 distance of the objective from each of some weights.

    Args:
        log: Who was asked.
        pulls: Weight of what arrived in each row, before a division by the sum of the round, (N,).
        steps: Of each row, (N,).
        sizes: Examples of each client, (M,).
        ratio: Whether weights are divided by the sum of what arrived in the round.
        to: Weights to compare with, (M,) each.
    """
    if log.num_rounds == 1:
        shares = np.bincount(log.clients, pulls * steps, minlength=len(log.names)) / (pulls @ steps)
        return [Interval(float(np.abs(shares - each).sum()), 0.0, 2.0) for each in to]
    objectives = _plausible_objectives(log, pulls, steps, sizes, ratio)
    return [_distance(objectives, each) for each in to]


def _distance(objectives: Matrix, weights: Vector) -> Interval:
    r"""Return the L1 distance from some weights: median and quantiles over plausible objectives, (S, M).

    The low end is 0 where the weights are no less plausible, by :math:`\sum_m (x_m - \mu_m)^2/\sigma_m^2`, than one
    in twenty of the objectives.
    """
    tail = (1 - _DRAWN) / 2
    low, middle, high = np.quantile(np.abs(objectives - weights).sum(axis=1), [tail, 0.5, 1 - tail]).tolist()
    mean, scale = objectives.mean(axis=0), np.maximum(objectives.std(axis=0), 1e-12)
    usual = np.quantile((((objectives - mean) / scale) ** 2).sum(axis=1), (1 + LEVEL) / 2)
    return Interval(middle, 0.0 if (((weights - mean) / scale) ** 2).sum() <= usual else low, high)


def _plausible_objectives(log: Log, pulls: Vector, steps: Vector, sizes: Vector, ratio: bool) -> Matrix:
    """Return objectives that could have left a log, (S, M)."""
    num = len(log.names)
    rng = np.random.default_rng(0)
    there = pulls * steps > 0
    asked = np.bincount(log.clients, log.asked > 0, minlength=num).astype(np.float64)
    arrived = np.bincount(log.clients, there, minlength=num).astype(np.float64)
    weights = np.bincount(log.clients[there], pulls[there], minlength=num) / np.maximum(arrived, 1)
    weights = np.where(arrived > 0, weights, sizes * weights.sum() / sizes[arrived > 0].sum())
    shape = int(np.clip(_LARGEST // num, 24, 300)), num
    kept = _rates(arrived, asked, shape, rng)
    found = kept * _rates(asked, np.full(num, float(log.num_rounds)), shape, rng)
    found *= _Amounts(log.clients[there], (pulls * steps)[there], np.log(weights), np.log(sizes)).draw(shape, rng)
    if ratio:
        others = _Others(log, pulls, weights, kept.mean(axis=0), rng)
        for row, arrives in zip(found, kept, strict=True):
            row *= others.draw(arrives, rng)
    return found / found.sum(axis=1, keepdims=True)


def _picks(logs: Vector, number: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return so many places by the logarithms of their chances."""
    chances = np.exp(logs - logs.max())
    return rng.choice(len(logs), number, p=chances / chances.sum())


def _rates(hits: Vector, trials: Vector, shape: tuple[int, int], rng: np.random.Generator) -> Matrix:
    """Return plausible rates: Beta around the common one, with a spread that the counts show."""
    misses, common = trials - hits, hits.sum() / trials.sum()
    if common == 1:
        return np.ones(shape)
    pairs, counts = np.unique(np.stack([hits, misses]), axis=1, return_counts=True)
    prior = np.maximum((1 / _SPREADS - 1)[:, None] * [[common, 1 - common]], 1e-300)  # (spreads, 2)
    after = betaln(pairs[0] + prior[:, :1], pairs[1] + prior[:, 1:]) - betaln(*prior.T)[:, None]
    hit, miss = prior[_picks(after @ counts, shape[0], rng)].T[..., None]
    return rng.beta(hit + hits, miss + misses)


class _Amounts:
    """Plausible amounts of an upload of all clients: log-normal around a line in the logarithm of the examples."""

    def __init__(self, clients: npt.NDArray[np.int64], amounts: Vector, offset: Vector, sizes: Vector) -> None:
        num = len(offset)
        count = np.bincount(clients, minlength=num).astype(np.float64)
        seen = count > 0
        mean = np.where(seen, np.bincount(clients, amounts, minlength=num) / np.maximum(count, 1), 1.0)
        squares = np.bincount(clients, (amounts / mean[clients] - 1) ** 2, minlength=num)
        self.freedom = np.maximum(count - 1, 0) + _COMMON
        common = squares.sum() / max(1.0, float(np.maximum(count - 1, 0).sum()))
        self.error = np.where(seen, (squares + _COMMON * common) / self.freedom / np.maximum(count, 1), np.inf)
        self.offset, self.seen = offset + (np.log(mean) - offset)[seen].mean(), seen
        self.own = np.log(mean) - self.offset
        self.line = np.stack([np.ones(num), sizes - sizes.mean()], axis=1)

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> Matrix:
        """Return amounts, (S, M)."""
        grid = [(tau, slope) for tau in _TAUS for slope in _SLOPES]
        fits = [self._fit(tau, *slope) for tau, slope in grid]
        places = _picks(np.array([log for log, *_ in fits]), shape[0], rng)
        tau = np.array([grid[place][0] for place in places])[:, None]
        lines = np.stack([fits[place][1] + fits[place][2] @ rng.standard_normal(2) for place in places])
        trust = tau**2 / (tau**2 + self.error)  # 0 of a client that was never seen
        noise = np.where(self.seen, rng.standard_t(self.freedom, shape), rng.standard_normal(shape))
        expected = lines @ self.line.T
        return np.exp(self.offset + trust * self.own + (1 - trust) * expected + tau * np.sqrt(1 - trust) * noise)

    def _fit(self, tau: float, slope: float, slope_error: float) -> tuple[float, Vector, Matrix]:
        """Return the log-likelihood of a spread, the line's coefficients and a root of their covariance."""
        weight, line, own = 1 / (tau**2 + self.error[self.seen]), self.line[self.seen], self.own[self.seen]
        prior, before = np.diag([1e-4, slope_error**-2]), np.array([0.0, slope])
        precision = (line.T * weight) @ line + prior
        fit = np.linalg.solve(precision, (line.T * weight) @ own + prior @ before)
        misfit = (weight * own**2).sum() + before @ prior @ before - fit @ precision @ fit
        size = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1]
        log = (np.log(weight).sum() + size - misfit) / 2
        return float(log), fit, np.linalg.cholesky(np.linalg.inv(precision))


class _Others:
    r"""Plausible :math:`\mathrm{E}[1 / (v_m + S_m)]`: over the log's rounds, and over some that are played.

    Those are as large as the log's, and each upload arrives or not by itself; they count as much as so many uploads of
    a client. The log's own rounds, in which clients may depend on each other, count for the rest, with random weights
    (a Bayesian bootstrap of blocks).
    """

    def __init__(self, log: Log, pulls: Vector, weights: Vector, usual: Vector, rng: np.random.Generator) -> None:
        self.weights = weights
        self._play(log, rng)
        num, there = len(weights), pulls > 0
        blocks = int(np.clip(_BLOCKS // num, 4, 400))
        cells = log.rounds[there] * min(blocks, log.num_rounds) // log.num_rounds * num + log.clients[there]
        totals = np.bincount(log.rounds, pulls, minlength=log.num_rounds)
        self.inverse = np.bincount(cells, 1 / totals[log.rounds[there]], minlength=blocks * num).reshape(-1, num)
        self.number = np.bincount(cells, minlength=blocks * num).reshape(-1, num)
        played = self._played(usual)
        self.usual, number = played.mean(axis=0), self.number.sum(axis=0)
        spread = np.maximum(played.var(axis=0) / self.usual**2, 1e-12)
        apart = (self.inverse.sum(axis=0) / self.usual - number) ** 2 / np.maximum(number, 1) / spread
        self.independent = _INDEPENDENT if apart[number > 0].mean() < _APART else _DEPENDENT

    def _play(self, log: Log, rng: np.random.Generator) -> None:
        """Draw who is asked in rounds of the same sizes, as often as the log shows, without replacement."""
        num = len(self.weights)
        sizes = np.bincount(log.rounds, log.asked > 0, minlength=log.num_rounds).astype(np.int64)
        sizes = rng.choice(sizes[sizes > 0], int(np.clip(_PLAYED // num, 8, 2000)))
        rates = np.bincount(log.clients, log.asked > 0, minlength=num) + 1.0
        order = np.argsort(rng.exponential(size=(len(sizes), num)) / rates, axis=1)[:, : sizes.max()]
        self.rounds, places = np.nonzero(np.arange(sizes.max()) < sizes[:, None])
        self.clients, self.last = order[self.rounds, places], np.cumsum(sizes) - 1
        self.luck = rng.random(len(self.clients))

    def draw(self, arrives: Vector, rng: np.random.Generator) -> Vector:
        """Return the mean of 1 over the sum of what arrives if a client does, by the rates of arrival, (M,)."""
        chance = rng.exponential(size=len(self.inverse))
        own = (chance @ self.inverse / self.usual + self.independent) / (chance @ self.number + self.independent)
        return np.asarray(own * self._played(arrives).mean(axis=0))

    def _played(self, arrives: Vector) -> Matrix:
        """Return the same of each round that is played, (rounds, M)."""
        own = self.weights[self.clients] * (self.luck < arrives[self.clients])
        total = np.bincount(self.rounds, own)
        inverse = 1 / ((total - own[self.last])[:, None] + self.weights)  # who was not asked takes the last one's place
        beside = np.maximum(total[self.rounds] - own, 0)
        inverse[self.rounds, self.clients] = 1 / (beside + self.weights[self.clients])
        return inverse
