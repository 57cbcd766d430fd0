"""How much a run has told about any one client: epsilon at a delta, for draws that prefer some clients."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fl_lightning.parts.memory import Remembers
from fl_lightning.theory import privacy
from fl_lightning.types import Cohort, IntVector, Vector

EXACT = "exact to the grid of privacy losses, rounded up"
BOUND = "upper bound: draws count as known"
MANY = "upper bound: by moments, for many clients are nearly alike"
_STEP = 0.005  # between the logarithms of rates and ratios, which are rounded up
_ZERO = -(2**20)  # the logarithm of 0, in steps
_CELLS = 1024  # rounds at most that are told apart; fewer where there are many clients
_ENTRIES = 2**24  # of the table of clients and cells
_ORDERS = np.array([8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256], dtype=np.float64)  # of moments, over the reach
_TAIL = 1e-9  # of delta: so improbable are the many draws of one client that count as an infinite loss
_BEYOND = 1e-3  # of delta: so improbable are losses beyond the reach of a grid
_AT_ONCE = 64  # clients or cells that are worked on at once
_LOOKED_AT = 1024  # clients at most whose losses are convolved in a round
_TOLERANCE = 1e-3  # of a noise multiplier, relative; on the safe side


class Accountant(Remembers):
    r"""Counts for each client which kinds of rounds it met, and reports the epsilon of the worst one.

    A round is, for a client, the probabilities of its counts and its ratio of sensitivity to noise. Both are rounded up
    to the next :math:`e^{0.005 i}`; delta rises with both, so that this is sound. Where too many kinds of rounds would
    have to be told apart, every second i is left out. The memory is the table of how often each client met each kind.
    Epsilon is that of the sum of the privacy losses of all rounds, whose distributions Fourier transforms convolve.

    Args:
        delta: Of the guarantee.
    """

    memory = ("cells", "counts", "level")

    def __init__(self, delta: float) -> None:
        if not 0 < delta < 1:
            raise ValueError(f"delta={delta} must be between 0 and 1: well below 1 over the number of clients")
        self.delta = delta
        self.cells: IntVector = np.empty((0, 3), dtype=np.int64)  # kinds of rounds, as told_by_round has them
        self.counts: Any = np.empty((0, 0), dtype=np.int32)  # rounds of each client and kind
        self.level = 0  # how often every second step was left out
        self._coarse: dict[tuple[float, int], _Grid] = {}
        self._fine = _Grid(1.0, 2)
        self._by_moments = False
        self._last = (self.cells, self.counts, self.level, 0.0)  # the next round is asked for twice

    def add(self, told: IntVector, times: int = 1) -> None:
        """Add a round, or several of the same kind, as :func:`told_by_round` has it."""
        self.cells, self.counts, self.level = self._with(told, times)

    @property
    def epsilon(self) -> float:
        """Epsilon of the client about whom most was told."""
        return self._known(self.cells, self.counts, self.level)

    def epsilon_with(self, told: IntVector) -> float:
        """Return what epsilon would be after one more round."""
        return self._known(*self._with(told, 1))

    def _known(self, cells: IntVector, counts: IntVector, level: int) -> float:
        last = self._last
        if level != last[2] or not (np.array_equal(cells, last[0]) and np.array_equal(counts, last[1])):
            self._last = (cells, counts, level, self._worst(cells, counts, level))
        return self._last[-1]

    @property
    def kind(self) -> str:
        """Whether epsilon is that of the mechanism itself, or a bound."""
        if self._by_moments:
            return MANY
        return EXACT if self.cells[:, 0].all() else BOUND

    def _with(self, told: IntVector, times: int) -> tuple[IntVector, IntVector, int]:
        level, width = self.level, max(told.shape[1], self.cells.shape[1])
        both = np.concatenate([_padded(self.cells, width, level), _padded(_coarser(told, level), width, level)])
        counts = self.counts if len(self.counts) else np.zeros((len(told), 0), dtype=np.int32)
        cells, places = np.unique(both, axis=0, return_inverse=True)
        places = places.reshape(-1)
        merged = _merged(counts, places[: len(self.cells)], len(cells))
        merged[np.arange(len(told)), places[len(self.cells) :]] += times
        while len(cells) > max(64, min(_CELLS, _ENTRIES // len(told))):
            cells, places = np.unique(_coarser(cells, 1), axis=0, return_inverse=True)
            merged, level = _merged(merged, places.reshape(-1), len(cells)), level + 1
        return cells, merged, level

    def _worst(self, cells: IntVector, counts: IntVector, level: int) -> float:
        """Return epsilon of the worst client; who is shown by moments to be below another is not looked at closely."""
        if not counts.any():
            return 0.0
        different = np.unique(counts, axis=0).astype(np.float64)
        num_rounds = different.sum(axis=1).max()
        num_points = 2 ** int(np.clip(np.ceil(np.log2(256 * num_rounds**0.5)), 11, 14))
        reach, moments, beyond = self._reach(cells, different, level, num_points // 8)
        orders = _ORDERS / reach
        factors = orders * np.log(orders) - (orders + 1) * np.log1p(orders)  # of Canonne, Kamath and Steinke 2020
        bounds = ((moments + factors - np.log(self.delta - beyond.max())) / orders).min(axis=-1).max(axis=0)
        if (self._fine.reach, 2 * self._fine.half) != (reach, num_points):
            self._fine = _Grid(reach, num_points)
        self._by_moments = False
        order, worst = np.argsort(-bounds, kind="stable"), 0.0
        for first in range(0, len(order), _AT_ONCE):
            some = order[first : first + _AT_ONCE]
            if bounds[some[0]] <= worst:
                break
            if first >= _LOOKED_AT:  # the moments of the others must do
                self._by_moments = True
                return float(bounds[some[0]])
            spectra, infinite = self._fine.composed(cells, level, different[some])
            infinite = infinite + num_rounds * _TAIL * self.delta
            closer = (self._fine.deltas(spectra, worst) + infinite > self.delta * (1 - 1e-6)).any(axis=0)
            if closer.any():
                found = self._fine.epsilons(spectra[:, closer], infinite[:, closer], self.delta)
                worst = max(worst, float(found.max()))
        return float(f"{worst * (1 + 1e-8):.9g}")  # the same on every machine, whose sums differ in their last bits

    def _reach(self, cells: IntVector, counts: Vector, level: int, num_points: int) -> tuple[float, Vector, Vector]:
        """Return a reach of the losses of all clients, their moments, and P(beyond it) in both directions."""
        reach = 2.0 ** np.floor(np.log2((_values(cells[:, 1], level) * _values(cells[:, 3], level)).max() + 1e-9))
        while True:
            if (reach, num_points) not in self._coarse:
                self._coarse[reach, num_points] = _Grid(reach, num_points)
            grid = self._coarse[reach, num_points]
            moments, beyond = grid.beyond(grid.rows(cells, level), counts)
            if beyond.max() <= _BEYOND * self.delta:
                return reach, moments, beyond
            reach *= 2**0.5


class _Grid:
    """The privacy losses of kinds of rounds on a grid from -reach to reach, and what adds up of them."""

    def __init__(self, reach: float, num_points: int) -> None:
        self.reach, self.half = reach, num_points // 2
        self.spacing = reach / self.half
        self.infinite: Vector = np.empty((2, 0))  # P(loss is infinite), in both directions
        self.moments: Vector = np.empty((2, 0, len(_ORDERS)))  # log E[e^(order loss / reach)]
        self._logs: Any = np.empty((2, 0, self.half + 1), dtype=np.complex128)  # of the Fourier transforms
        self._edges = np.unique((self.half / 2 ** np.arange(0, 6, 0.5)).astype(np.int64))
        self._peaks: Vector = np.empty((2, 0, len(self._edges)))  # largest logarithm from there on
        self._known: dict[bytes, int] = {}
        self._powers = np.exp(np.outer(np.fft.fftfreq(num_points, 0.5), _ORDERS))

    def rows(self, cells: IntVector, level: int) -> IntVector:
        """Return where the kinds are; those that are not known yet are made."""
        keys = [bytes([level]) + cell.tobytes() for cell in cells]
        new = [place for place, key in enumerate(keys) if key not in self._known]
        if new:
            made = [self._made(cells[new[i : i + _AT_ONCE]], level) for i in range(0, len(new), _AT_ONCE)]
            old = (self.infinite, self.moments, self._peaks, self._logs)
            joined = [np.concatenate(parts, axis=1) for parts in zip(old, *made, strict=True)]
            self.infinite, self.moments = joined[:2]
            self._peaks, self._logs = joined[2:]
            self._known |= {keys[place]: len(self._known) + number for number, place in enumerate(new)}
        return np.array([self._known[key] for key in keys], dtype=np.int64)

    def _made(self, cells: IntVector, level: int) -> tuple[Vector, Vector, Vector, Any]:
        losses = self.spacing * np.arange(self.half + 1.0)
        masses, infinite = privacy.loss_masses(_deltas(losses, cells, level), self.spacing)
        transforms = np.fft.rfft(masses)
        logs = np.log(np.where(np.abs(transforms) < 1e-300, 1e-300, transforms))
        peaks = np.stack([logs[..., edge:].real.max(axis=-1) for edge in self._edges], axis=-1)
        moments = np.log(np.maximum(masses @ self._powers, 1e-300))
        return np.minimum(infinite, 1 - 1e-15), moments, peaks, logs

    def composed(self, cells: IntVector, level: int, counts: Vector) -> tuple[Any, Vector]:
        """Return Fourier transforms of all losses of clients, as far as they are not 0, and P(beyond the reach)."""
        used = counts.any(axis=0)
        rows, counts = self.rows(cells[used], level), counts[:, used]
        negligible = (counts @ self._peaks[:, rows]).max(axis=(0, 1)) < -45
        num_kept = self._edges[negligible].min(initial=self.half + 1)
        sums = counts @ self._logs[:, rows, :num_kept].view(np.float64)
        return np.exp(sums.view(np.complex128)), self.beyond(rows, counts)[1]

    def beyond(self, rows: IntVector, counts: Vector) -> tuple[Vector, Vector]:
        """Return the moments of all losses of clients, and P(infinite or beyond the reach), both ways."""
        moments = counts @ self.moments[:, rows]
        infinite = -np.expm1(np.log1p(-self.infinite[:, rows]) @ counts.T)
        return moments, infinite + np.exp(np.minimum((moments - _ORDERS).min(axis=-1), 0.0))

    def deltas(self, spectra: Any, epsilon: float) -> Vector:
        """Return delta at an epsilon, without infinite losses, (2, n)."""
        losses = self.spacing * np.arange(self.half)
        weights = np.fft.rfft(np.maximum(-np.expm1(epsilon - np.maximum(losses, epsilon)), 0.0), 2 * self.half)
        weights[1:-1] *= 2
        return np.asarray((spectra @ weights[: spectra.shape[-1]].conj()).real / (2 * self.half))

    def epsilons(self, spectra: Any, infinite: Vector, delta: float) -> Vector:
        """Return epsilon, (2, n)."""
        masses = np.fft.irfft(spectra, 2 * self.half)[..., : self.half]
        return privacy.epsilon_of(np.maximum(masses, 0.0), infinite, self.spacing * np.arange(float(self.half)), delta)


def _deltas(losses: Vector, cells: IntVector, level: int) -> Vector:
    """Return delta of kinds of rounds at each loss, in both directions, (2, n, losses)."""
    ratios, fixed = _values(cells[:, 1], level), _values(cells[:, 2], level)
    tails = np.minimum(_values(cells[:, 3:], level), 1.0)
    counts = -np.diff(tails, axis=1, prepend=1.0, append=0.0)
    deltas = np.empty((2, len(cells), len(losses)))
    secret = cells[:, 0] == 1
    deltas[:, secret] = privacy.secret_deltas(losses, tails[secret, 0], np.sqrt(ratios**2 + fixed)[secret])
    deltas[:, ~secret] = privacy.shown_deltas(losses, counts[~secret], ratios[~secret], fixed[~secret])
    return deltas


def _steps(values: Vector) -> IntVector:
    """Return the least i with e^(0.005 i) at or above each value."""
    with np.errstate(divide="ignore"):
        steps = np.ceil(np.log(values) / _STEP - 1e-9)  # equal numbers stay equal despite rounding
    return np.maximum(steps, _ZERO).astype(np.int64)


def _values(steps: IntVector, level: int) -> Vector:
    return np.asarray(np.exp(steps * (_STEP * 2**level)) * (1 + 1e-10))


def _coarser(cells: IntVector, levels: int) -> IntVector:
    """Round steps up to multiples of 2, so many times."""
    return np.concatenate([cells[:, :1], -(-cells[:, 1:] >> levels)], axis=1)


def _padded(cells: IntVector, width: int, level: int) -> IntVector:
    missing = np.full((len(cells), width - cells.shape[1]), _ZERO >> level)
    return np.concatenate([cells, missing], axis=1)


def _merged(counts: Any, places: IntVector, size: int) -> Any:
    """Add up columns that have the same place."""
    merged = np.zeros((size, len(counts)), dtype=np.int32)
    np.add.at(merged, places, counts.T)
    return merged.T


def told_by_round(
    drawing: Any,
    cohort: Cohort,
    ratios: Vector,
    delta: float,
    fixed: float = 0.0,
    shown: bool = False,
    once: bool = False,
) -> IntVector:
    """Return what a round tells about each client: whether its draws are secret, ratio, fixed, P(n >= k), in steps.

    Where clients join independently of each other, at most once, and the sum is all that anybody sees, their own
    probability amplifies privacy: :func:`fl_lightning.theory.privacy.secret_deltas` at rate K p. Else the draws
    count as known: :func:`fl_lightning.theory.privacy.shown_deltas`.

    Args:
        drawing: How the draws are made; has ``distribution``.
        cohort: p and K.
        ratios: Sensitivity of one draw of each client over the standard deviation of the noise, (M,).
        delta: Of the guarantee; draws of a client that are less probable than a billionth of it count as an infinite
            loss.
        fixed: Squared ratio of what a drawn client tells besides.
        shown: Whether somebody knows who was drawn, however the draws are made.
        once: Whether a client sends once, however often it was drawn.
    """
    counts = drawing.distribution(cohort.probabilities, cohort.num_draws)
    counts = np.pad(counts, ((0, 0), (0, max(0, 2 - counts.shape[1]))))
    tails = counts[:, :0:-1].cumsum(axis=1)[:, ::-1]  # P(n >= k) for k = 1, 2, ...
    num_kept = 1 if once else max(1, int((tails > _TAIL * delta).any(axis=0).sum()))
    secret = np.full(len(tails), not shown and drawing.independent) & ~tails[:, 1:].any(axis=1)
    steps = _steps(np.minimum(tails[:, :num_kept], 1.0))
    steps[:, 1:] = -(-steps[:, 1:] // 16) * 16  # more than one draw is rare and need not be told apart so finely
    steps = np.maximum.accumulate(steps[:, ::-1], axis=1)[:, ::-1]  # P(n >= k) falls with k
    columns = [secret, _steps(ratios), _steps(np.full(len(tails), fixed)), *steps.T]
    return np.stack(columns, axis=1).astype(np.int64)


def noise_for(epsilon: float, reached: Callable[[float], float]) -> float:
    """Return the least noise multiplier with which a run stays within epsilon.

    Args:
        epsilon: Of the whole run.
        reached: Returns the epsilon of the whole run at a multiplier.
    """
    from scipy.optimize import brentq  # imported here: few runs need it

    def excess(log_noise: float) -> float:
        return float(np.log(max(reached(float(np.exp(log_noise))), 1e-12) / epsilon))

    low, high = np.log(0.05), np.log(4.0)
    if excess(low) <= 0:
        return float(np.exp(low))
    while excess(high) > 0:
        low, high = high, high + 2.0
        if high > np.log(1e9):
            raise ValueError(
                f"epsilon={epsilon} is out of reach with any noise: raise epsilon, delta or count_noise, "
                "or make fewer rounds"
            )
    found = _TOLERANCE * np.ceil(brentq(excess, low, high, xtol=_TOLERANCE / 2) / _TOLERANCE)  # on every machine alike
    while excess(found) > 0:  # ratios are rounded, so that epsilon moves in small jumps
        found += _TOLERANCE
    return float(np.exp(found))
