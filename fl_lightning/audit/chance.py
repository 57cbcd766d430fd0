r"""How far what a log shows may be from what is: objectives that could have left it.

A client's part is :math:`\Omega_m \propto p_m (1-q_m) \alpha_m` with :math:`\alpha` the mean of what an upload amounts
to. Each of the three is taken to be spread over clients in a way that the log itself shows (Beta for the rates,
log-normal around a power of the examples for the amounts); drawn from what is plausible after the log was seen, they
give plausible objectives. A sum of absolute errors, as the L1 distance of an estimate is, grows with the errors; the
distance of plausible objectives does not, as who was seen a few times only is taken to be much like the others.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import betaln

from fl_lightning.audit.log import Log
from fl_lightning.theory.checks import Vector

Matrix: TypeAlias = npt.NDArray[np.float64]
LEVEL = 0.9  # of all bands
_LARGEST = 20_000_000  # numbers in all objectives
_SPREADS = np.geomspace(1e-5, 0.7, 20)  # of rates: variance over that of a coin, log-uniform
_TAUS = np.geomspace(0.01, 1.5, 14)  # of amounts: deviation of the logarithm, log-uniform
_SLOPE, _SLOPE_ERROR = 0.5, 0.7  # by which power of the examples local steps grow, before anything was seen
_COMMON = 4.0  # uploads for which the mean spread of all clients counts


class Interval(NamedTuple):
    """A number with its 90 % interval."""

    value: float
    low: float
    high: float


def distances(log: Log, amounts: Vector, factors: Vector, sizes: Vector, *to: Vector) -> list[Interval]:
    """Return the L1 distance of the objective from each of some weights.

    Args:
        log: Who was asked.
        amounts: What each row added, (N,).
        factors: Expected part of an upload of each client in its round, up to a common factor, (M,).
        sizes: Examples of each client, (M,).
        to: Weights, (M,) each.
    """
    if log.num_rounds == 1:
        shares = np.bincount(log.clients, amounts, minlength=len(log.names)) / amounts.sum()
        return [Interval(float(np.abs(shares - weights).sum()), 0.0, 2.0) for weights in to]
    objectives = _plausible_objectives(log, amounts, factors, sizes)
    return [_distance(objectives, weights) for weights in to]


def _distance(objectives: Matrix, weights: Vector) -> Interval:
    r"""Return the L1 distance from some weights: median and quantiles over plausible objectives, (S, M).

    The low end is 0 where the weights are no less plausible, by :math:`\sum_m (x_m - \mu_m)^2/\sigma_m^2`, than one
    in twenty of the objectives.
    """
    tail = (1 - LEVEL) / 2
    low, middle, high = np.quantile(np.abs(objectives - weights).sum(axis=1), [tail, 0.5, 1 - tail]).tolist()
    mean, scale = objectives.mean(axis=0), np.maximum(objectives.std(axis=0), 1e-12)
    usual = np.quantile((((objectives - mean) / scale) ** 2).sum(axis=1), 1 - tail)
    return Interval(middle, 0.0 if (((weights - mean) / scale) ** 2).sum() <= usual else low, high)


def _plausible_objectives(log: Log, amounts: Vector, factors: Vector, sizes: Vector) -> Matrix:
    """Return objectives that could have left a log, (S, M)."""
    num = len(log.names)
    rng = np.random.default_rng(0)
    there = amounts > 0
    asked = np.bincount(log.clients, log.asked > 0, minlength=num).astype(np.float64)
    arrived = np.bincount(log.clients, there, minlength=num).astype(np.float64)
    drawn, kept = _Rates(asked, np.full(num, float(log.num_rounds))), _Rates(arrived, asked)
    parts = _Amounts(log.clients[there], amounts[there], np.log(factors), np.log(sizes))
    found = np.empty((int(np.clip(_LARGEST // num, 24, 400)), num))
    for row in found:
        row[:] = drawn(rng) * kept(rng) * parts(rng)
        row /= row.sum()
    return found


def _pick(rng: np.random.Generator, logs: Vector) -> int:
    chances = np.exp(logs - logs.max())
    return int(rng.choice(len(logs), p=chances / chances.sum()))


class _Rates:
    """Plausible rates of all clients: Beta around the common one, with a spread that the counts show."""

    def __init__(self, hits: Vector, trials: Vector) -> None:
        self.hits, self.misses = hits, trials - hits
        common = hits.sum() / trials.sum()
        pairs, counts = np.unique(np.stack([self.hits, self.misses]), axis=1, return_counts=True)
        strength = (1 / _SPREADS - 1)[:, None]
        self.always = common == 1
        self.prior = np.maximum(strength * [[common, 1 - common]], 1e-300)  # (spreads, 2)
        after = betaln(pairs[0] + self.prior[:, :1], pairs[1] + self.prior[:, 1:])
        self.logs = (after - betaln(*self.prior.T)[:, None]) @ counts

    def __call__(self, rng: np.random.Generator) -> Vector:
        if self.always:
            return np.ones(len(self.hits))
        hit, miss = self.prior[_pick(rng, self.logs)]
        return rng.beta(hit + self.hits, miss + self.misses)


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
        self.fits = [self._fit(tau) for tau in _TAUS]

    def _fit(self, tau: float) -> tuple[float, Vector, Matrix]:
        """Return the log-likelihood of a spread, the line's coefficients and a root of their covariance."""
        weight, line, own = 1 / (tau**2 + self.error[self.seen]), self.line[self.seen], self.own[self.seen]
        prior, before = np.diag([1e-4, _SLOPE_ERROR**-2]), np.array([0.0, _SLOPE])
        precision = (line.T * weight) @ line + prior
        fit = np.linalg.solve(precision, (line.T * weight) @ own + prior @ before)
        misfit = (weight * own**2).sum() - fit @ precision @ fit
        log = (np.log(weight).sum() - np.linalg.slogdet(precision)[1] - misfit) / 2
        return float(log), fit, np.linalg.cholesky(np.linalg.inv(precision))

    def __call__(self, rng: np.random.Generator) -> Vector:
        place = _pick(rng, np.array([log for log, *_ in self.fits]))
        _, fit, root = self.fits[place]
        tau = _TAUS[place]
        expected = self.line @ (fit + root @ rng.standard_normal(2))
        trust = tau**2 / (tau**2 + self.error)  # 0 of a client that was never seen
        noise = np.where(self.seen, rng.standard_t(self.freedom), rng.standard_normal(len(trust)))
        return np.exp(self.offset + trust * self.own + (1 - trust) * expected + tau * np.sqrt(1 - trust) * noise)
