"""What an algorithm would really optimise on a system of clients, and at what price: no training, numpy only.

A diagnosis looks at typical rounds of a system. Each :class:`TypicalRound` holds what a round of the algorithm would be
made of; :func:`diagnose` turns them into the long-run objective and its cost; :func:`recommend` chooses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_lightning import theory
from fl_lightning.theory.checks import Vector, columns

CONSISTENT = 0.02  # L1 distance of Omega from w up to which an objective counts as the one that was asked for
_TIE = 1.02  # costs within 2 % of each other are alike


@dataclass(frozen=True, kw_only=True)
class TypicalRound:
    """One round of an algorithm before anybody trains."""

    failure_rates: Vector  # q, (M,)
    accumulation: Vector  # A, (M,)
    probabilities: Vector  # p, (M,)
    coefficients: Vector  # c, (M,)
    scale: float = 1.0  # calibrated learning rate times server scale over the base learning rate
    num_draws: int = 1  # K
    work: float = 0.0  # expected local steps of all who train because they are drawn
    questions: float = 0.0  # local steps spent before the draw by clients that were asked and not drawn
    noise: float = 0.0  # expected squared length of the noise on the sum of all uploads, for gradients of length 1
    seconds: float = float("nan")  # on the clock
    uplink_bytes: float = float("nan")
    downlink_bytes: float = float("nan")
    presence: Vector | None = None  # how often clients are there, where w is divided by it; None: it is not, (M,)
    offered_accumulation: Vector | None = None  # A of all they could do, where asked for less; None: accumulation, (M,)


@dataclass(frozen=True)
class Needs:
    """What an algorithm must know or keep, apart from the target weights."""

    before_draw: tuple[str, ...] = ()  # of every client, before anybody is drawn: "q", "work", "presence"
    with_upload: tuple[str, ...] = ()  # of who arrives: "q", "work", "name"
    memory: str = ""  # what is remembered from round to round, in words
    stale: bool = False  # that memory is only old models or steps, and leaves the variance of a draw as it is
    anonymous: bool = False  # that memory is of what all clients did together, and of nobody

    @property
    def count(self) -> int:
        """How many things these are."""
        return len(self.before_draw) + len(self.with_upload) + bool(self.memory)

    @property
    def knowledge(self) -> bool:
        """Whether q or something else of clients must be known beforehand."""
        return bool(self.before_draw) or "q" in self.with_upload

    def __str__(self) -> str:
        parts = [f"{' and '.join(self.before_draw)} of all"] if self.before_draw else []
        parts += [f"{' and '.join(self.with_upload)} of uploads"] if self.with_upload else []
        return "; ".join([*parts, self.memory] if self.memory else parts) or "nothing"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What an algorithm optimises in the long run, and what it costs."""

    name: str
    weights: Vector  # w, the objective that was asked for, (M,)
    effective_weights: Vector  # Omega, the objective that is optimised, averaged over the rounds, (M,)
    chi_square: float  # distance of Omega from w
    round_chi_square: float  # mean distance of a single round's Omega from w
    step_length: float  # relative to FedAvg's at the same learning rate, before calibration divides it out
    work: float  # expected local steps in a round
    variance: float  # variance factor of a draw; NaN where memory changes it
    needs: Needs = Needs()
    seconds: float = float("nan")  # of a round on the clock
    uplink_bytes: float = float("nan")  # in a round
    downlink_bytes: float = float("nan")
    step_variance: float = float("nan")  # of a step over its squared length: V over the draws, and absence
    absence: float = 0.0  # what of it absence adds, which draws do not average out
    unlimited: float = 0.0  # the same if nobody's absence were limited, so that Omega were w
    bounded: tuple[str, ...] = ()  # parts with which Omega is a limit, or lacks what a run measures
    votes: str = ""  # why the effective weights are shares of the votes: the solver has no A

    def rounds(self, share: float = 1.0) -> float:
        """Return how many rounds make the progress of one round without variance: 1 + share V / K.

        The best step along a noisy direction is shorter by this factor than along the exact one (smooth losses), and
        so is the progress. It holds for gradients of clients that differ by as much as their mean is long. ``share`` is
        what averaging the model over rounds keeps of the variance.
        """
        return 1 + share * self.step_variance

    @property
    def distance(self) -> float:
        """L1 distance of Omega from w: twice the share of the objective that is in the wrong place."""
        return float(np.abs(self.effective_weights - self.weights).sum())

    @property
    def consistent(self) -> bool:
        """Whether the objective is, for practical purposes, the one that was asked for."""
        return self.distance < CONSISTENT

    @property
    def ratios(self) -> Vector:
        """Omega / w; 1 for a client that neither has, (M,)."""
        w, omega = self.weights, self.effective_weights
        return np.divide(omega, w, out=np.where(omega > 0, np.inf, 1.0), where=w > 0)

    @property
    def favoured(self) -> int:
        """The client whose share is inflated most."""
        return int(np.argmax(self.ratios))

    @property
    def forgotten(self) -> int:
        """The client whose share is reduced most."""
        return int(np.argmin(self.ratios))


def diagnose(
    name: str, weights: npt.ArrayLike, rounds: Sequence[TypicalRound], needs: Needs | None = None
) -> Diagnosis:
    r"""Return what an algorithm optimises over typical rounds.

    .. math::
        \Omega \propto \mathrm{E}[s\, p (1-q) c A], \qquad
        V = \sum_m \frac{\Omega_m^2}{p_m (1-q_m)} + \frac{\mathrm{E}\|\nu\|^2}{K (\sum_m p_m (1-q_m) c_m A_m)^2}

    with s the calibration, nu the noise of the uploads and, in V, the Omega of the single round: for a consistent
    algorithm without noise V is :func:`fl_lightning.theory.variance_factor`.

    >>> w, t = np.array([0.5, 0.5]), np.array([1.0, 9.0])
    >>> clients = {"accumulation": t, "failure_rates": np.zeros(2), "coefficients": np.ones(2)}
    >>> fedavg = diagnose("fedavg", w, [TypicalRound(probabilities=w, **clients)])
    >>> fedavg.effective_weights.tolist(), round(fedavg.distance, 6), fedavg.forgotten, fedavg.step_length
    ([0.1, 0.9], 0.8, 0, 1.0)
    """
    (w,) = columns(weights=weights)
    if not rounds:
        raise ValueError("a diagnosis needs at least one typical round, but got none")
    needs = needs or Needs()

    def table(name: str) -> Vector:
        return np.stack([vars(each)[name] for each in rounds])

    p, q = table("probabilities"), table("failure_rates")
    num_draws, questions = table("num_draws"), table("questions")
    raw = p * (1 - q) * table("coefficients") * table("accumulation")
    omega = theory.effective_weights((table("scale")[:, None] * raw).mean(axis=0))
    with np.errstate(invalid="ignore"):  # a round in which no sum can succeed has neither Omega nor variance
        in_rounds = raw / raw.sum(axis=1, keepdims=True)
        variances = _ratio_sums(in_rounds**2, p * (1 - q)) + table("noise") / num_draws / raw.sum(axis=1) ** 2
    if needs.memory and not needs.stale:
        variances = np.full(len(rounds), np.nan)
    offered = [each.accumulation if each.offered_accumulation is None else each.offered_accumulation for each in rounds]
    presence = rounds[0].presence
    absence = 0.0 if presence is None else theory.absence_variance(omega, presence)
    return Diagnosis(
        name=name,
        weights=w,
        effective_weights=omega,
        chi_square=theory.chi_square(w, omega),
        round_chi_square=float(_ratio_sums((w - in_rounds) ** 2, in_rounds).mean()),
        step_length=float(raw.sum() / (w * (1 - q) * offered).sum()),
        work=float((table("work") + questions).mean()),
        variance=float(variances.mean()),
        needs=needs,
        seconds=float(table("seconds").mean()),
        uplink_bytes=float(table("uplink_bytes").mean()),
        downlink_bytes=float(table("downlink_bytes").mean()),
        step_variance=float((variances / num_draws).mean()) + absence,
        absence=absence,
        unlimited=0.0 if presence is None else theory.absence_variance(w, presence),
    )


def soonest(diagnoses: Sequence[Diagnosis], share: float = 1.0) -> list[Diagnosis]:
    """Return the consistent algorithms of known time and variance by their time on the clock for equal progress."""
    known = [each for each in diagnoses if each.consistent and np.isfinite(each.seconds * each.step_variance)]
    return sorted(known, key=lambda each: each.seconds * each.rounds(share))


def _ratio_sums(above: Vector, below: Vector) -> Vector:
    """Return the sum of ratios in each row; 0/0 adds nothing, anything else over 0 makes it infinite, (R,)."""
    ratios = np.divide(above, below, out=np.where(above > 0, np.inf, 0.0), where=below > 0)
    return np.asarray(ratios.sum(axis=1), dtype=np.float64)


def number_ranges(numbers: npt.ArrayLike) -> str:
    """Return whole numbers as ranges.

    >>> number_ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    values = np.unique(np.asarray(numbers, dtype=np.int64))
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs if len(run))


def neglected(weights: npt.ArrayLike, effective: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the clients (or classes) whose share of the objective is below two thirds of what was asked for.

    >>> neglected([0.5, 0.5], [0.1, 0.9]).tolist()
    [0]
    """
    w, omega = columns(weights=weights, effective=effective)
    return np.flatnonzero(omega < w * 2 / 3)


def distortion(kind: str, weights: npt.ArrayLike, effective: npt.ArrayLike, whole: str = "objective") -> str:
    """Return in words whom an objective neglects; empty where it neglects nobody.

    >>> distortion("clients", [0.25, 0.25, 0.5], [0.02, 0.08, 0.9])
    'clients 0-1 carry 50 % of the weight but 10 % of the objective'
    """
    w, omega = columns(weights=weights, effective=effective)
    few = neglected(w, omega)
    if not len(few):
        return ""
    named = number_ranges(few)
    subject = f"{kind} {named} carry" if len(named) <= 40 else f"{len(few)} of {len(w)} {kind} carry"
    if len(few) == 1:
        subject = f"{kind.removesuffix('s').removesuffix('e')} {named} carries"
    return f"{subject} {w[few].sum():.0%} of the weight but {omega[few].sum():.0%} of the {whole}".replace("%", " %")


def class_shares(effective: npt.ArrayLike, label_counts: npt.ArrayLike) -> Vector:
    """Return the share of each class in an objective, given how many examples of it each client has, (C,).

    >>> class_shares([0.2, 0.8], [[3, 1], [0, 5]]).round(6).tolist()
    [0.15, 0.85]
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    shares: Vector = np.asarray(effective, dtype=np.float64) @ (counts / counts.sum(axis=1, keepdims=True))
    return shares


@dataclass(frozen=True)
class Recommendation:
    """Which algorithm to take, and which one if less is known."""

    best: Diagnosis
    consistent: tuple[Diagnosis, ...]  # all consistent ones without memory of clients, cheapest first
    unknowing: Diagnosis | None  # the first consistent one that needs neither q nor work before the draw, if another
    share: float = 1.0  # of the variance that averaging keeps
    remembering: tuple[Diagnosis, ...] = ()  # consistent ones that keep something of clients, where no other is

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return self.best.name

    def cost(self, each: Diagnosis) -> float:
        """Return the local steps of an algorithm for equal progress, over those of the recommended one."""
        return each.work * each.rounds(self.share) / (self.best.work * self.best.rounds(self.share))


def recommend(diagnoses: Sequence[Diagnosis], share: float = 1.0) -> Recommendation:
    """Choose the consistent algorithm without memory of clients that needs the fewest local steps for equal progress.

    That is work of a round x (1 + share V / K), see :meth:`Diagnosis.rounds`; all steps are calibrated to one length.
    Little variance leaves the work to decide, and much of it leaves V x work. Of algorithms within 2 %, the one that
    needs to know least is taken; where none is consistent, the one whose objective is nearest to the target.

    >>> w, t = np.array([0.5, 0.5]), np.array([1.0, 9.0])
    >>> clients = {"accumulation": t, "failure_rates": np.zeros(2), "coefficients": np.ones(2)}
    >>> fedavg = diagnose("fedavg", w, [TypicalRound(probabilities=w, **clients)])
    >>> fedacs = diagnose("fedacs", w, [TypicalRound(probabilities=np.array([0.9, 0.1]), **clients)])
    >>> recommend([fedavg, fedacs]).name
    'fedacs'
    """
    if not diagnoses:
        raise ValueError("there is nothing to choose from: no algorithm has an objective that is known beforehand")

    def steps(each: Diagnosis) -> float:
        return round(each.work * each.rounds(share), 9)

    known = [
        each
        for each in diagnoses
        if each.consistent and np.isfinite(each.step_variance) and (each.needs.anonymous or not each.needs.memory)
    ]
    ranked = tuple(sorted(known, key=steps))  # of equal ones the first stays first
    if not ranked:
        free = [each for each in diagnoses if each.needs.anonymous or not each.needs.memory] or diagnoses
        remembering = tuple(each for each in diagnoses if each.consistent)
        nearest = min(free, key=lambda each: (round(each.distance, 2), steps(each)))
        return Recommendation(nearest, (), None, share, remembering)
    alike = [each for each in ranked if steps(each) <= steps(ranked[0]) * _TIE]
    best = min(alike, key=lambda each: (each.needs.count, round(each.work, 9)))
    if not best.needs.knowledge:
        return Recommendation(best, ranked, None, share)
    free = [each for each in diagnoses if each.consistent and not each.needs.knowledge]
    unknowing = min(free, key=lambda each: (each.needs.count, each.work), default=None)
    return Recommendation(best, ranked, unknowing, share)
