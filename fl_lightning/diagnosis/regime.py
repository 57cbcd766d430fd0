"""When a consistent objective pays beyond a limit on local work: bias that stays against variance that it costs."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fl_lightning import theory
from fl_lightning.diagnosis.objective import Diagnosis, class_shares

Verdict = Literal["pays", "level", "costs"]
_PAYS, _COSTS = 0.1, 0.3  # margins from which on runs on digits differed by more than 0.02 in accuracy
_ROUNDS = 150  # of these runs
_WORDS = {
    "pays": "the bias of FedAvg outweighs it. Take what is recommended.",
    "level": "both are small. A limit on local work does most; consistency costs little and keeps the objective yours.",
    "costs": "it outweighs the bias. FedAvg with the same limit learns more in as many rounds (--loop.sampling.sampler "
    "Importance); draw more clients per round, or train longer, before you pay for consistency.",
}


@dataclass(frozen=True, kw_only=True)
class Regime:
    """What is left to gain once nobody is asked for long local work."""

    bias: float  # chi-square of what FedAvg with the same limit optimises: of the classes where they are known
    noise: float  # variance that consistent draws add to a step, over its squared length, by the rounds averaged
    labels_known: bool

    @property
    def verdict(self) -> Verdict:
        """Whether consistency pays, by the margin between the two."""
        if self.bias - self.noise > _PAYS:
            return "pays"
        return "costs" if self.noise - self.bias > _COSTS else "level"

    @property
    def line(self) -> str:
        """The same in words."""
        of = "classes" if self.labels_known else "clients, taken for different ones"
        return (
            f"Beyond a limit on work, consistency {'is level' if self.verdict == 'level' else self.verdict}: bias "
            f"{self.bias:.2f} (chi² of the {of}) against {self.noise:.2f} of added variance; {_WORDS[self.verdict]}"
        )


def regime(
    consistent: Diagnosis, biased: Diagnosis, label_counts: npt.ArrayLike | None = None, rounds: int = _ROUNDS
) -> Regime:
    r"""Return the regime of clients, given two algorithms that ask for the same work.

    .. math:: \beta = \sum_c \frac{(w L - \Omega L)_c^2}{(\Omega L)_c}, \qquad
        \nu = \frac{150}{R} \zeta \frac{V - V_\mathrm{biased}}{K}, \qquad
        \zeta = \sum_m w_m \tfrac12 \lVert L_m - w L \rVert_1

    with L the shares of the classes among each client's examples. Both multiply the squared difference of the clients'
    gradients: that of the bias stays, that of the variance goes down with the R rounds that are averaged (the margins
    come from runs of 150). Where labels are not known, each client counts as a class of its own.

    >>> from fl_lightning.diagnosis.objective import TypicalRound, diagnose
    >>> w, t = np.array([0.5, 0.5]), np.array([4.0, 4.0])
    >>> clients = {"accumulation": t, "failure_rates": np.array([0.8, 0.0]), "coefficients": np.ones(2)}
    >>> fedavg = diagnose("fedavg", w, [TypicalRound(probabilities=w, num_draws=4, **clients)])
    >>> fedacs = diagnose("fedacs", w, [TypicalRound(probabilities=np.array([5, 1]) / 6, num_draws=4, **clients)])
    >>> [regime(fedacs, fedavg, labels).verdict for labels in (None, [[9, 1], [9, 1]])]
    ['pays', 'level']
    """
    counts = np.eye(len(biased.weights)) if label_counts is None else np.asarray(label_counts, dtype=np.float64)
    wanted, found = (class_shares(each, counts) for each in (biased.weights, biased.effective_weights))
    there = wanted + found > 0
    mixes = counts / counts.sum(axis=1, keepdims=True)
    apart = 1.0 if label_counts is None else float(biased.weights @ np.abs(mixes - wanted).sum(axis=1)) / 2
    added = max(0.0, consistent.step_variance - biased.step_variance)
    bias = theory.chi_square(wanted[there], found[there])
    return Regime(bias=bias, noise=apart * added * _ROUNDS / rounds, labels_known=label_counts is not None)
