"""Co-design: which reliability fits a client's work, or which work its reliability, for plain averaging."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fl_lightning.theory.bias import chi_square, contribution, effective_weights, step_length
from fl_lightning.theory.checks import Vector, clients_where, columns, one_of, require, require_rates

Mode = Literal["failure", "work"]


@dataclass(frozen=True, kw_only=True)
class CoDesign:
    """Reliability and work that belong together, and what the change costs."""

    failure_rates: Vector  # q to run with, (M,)
    accumulation: Vector  # A to run with; in whole steps where the work was adjusted, (M,)
    exact_accumulation: Vector  # A before rounding to whole steps, (M,)
    constant: float  # the common value of (1 - q) A
    drop_probabilities: Vector  # share of its deliverable uploads each client must withhold, (M,); negative: must gain
    residual_chi_square: float  # what rounding to whole steps leaves of the inconsistency
    learning_rate_factor: float  # times the old learning rate: the step is as long as it was before the change

    @property
    def num_steps(self) -> npt.NDArray[np.int64]:
        """The accumulation as whole local steps of plain SGD, (M,)."""
        return np.rint(self.accumulation).astype(np.int64)


def codesign(
    accumulation: npt.ArrayLike,
    failure_rates: npt.ArrayLike | None = None,
    anchor: int | None = 0,
    mode: Mode = "failure",
    weights: npt.ArrayLike | None = None,
) -> CoDesign:
    r"""Return the co-design under which importance, uniform or full participation optimises the target objective.

    .. math:: (1 - q_m) A_m = c \quad \text{for all } m

    ``mode="failure"`` keeps the work and sets :math:`q_m = 1 - c / A_m`: a client that works more is made less
    reliable. ``mode="work"`` keeps the links and sets :math:`A_m = c / (1 - q_m)`, rounded to whole steps of plain
    SGD. The label of the rule in the paper sits on another equation, and its row identity should read :math:`\sum_m
    \omega_m \mathbf w_m = 0`.

    Args:
        accumulation: A, (M,).
        failure_rates: q as it is now, (M,); None means that nothing is lost.
        anchor: The client that stays as it is, :math:`c = (1 - q_a) A_a`. None takes the smallest :math:`(1 - q_m)
            A_m`: always feasible, and no client has to work more or lose less than it does now.
        mode: What is adjusted.
        weights: w, (M,), for the residual and the step length; None means equal weights.

    Raises:
        ValueError: The anchor asks the impossible of some clients; the message names them.

    >>> codesign([2, 3], [0.01, 0.3]).failure_rates.round(4)
    array([0.01, 0.34])
    >>> codesign([10, 10], [0.0, 0.5], mode="work").num_steps
    array([10, 20])
    """
    one_of("mode", mode, Mode)
    a, q, w = columns(
        accumulation=accumulation,
        failure_rates=0.0 if failure_rates is None else failure_rates,
        weights=1.0 if weights is None else weights,
    )
    require(a > 0, "accumulation", "above 0")
    require_rates(q)
    w = effective_weights(w)
    constant = _constant(a, q, anchor)
    if mode == "failure":
        new_q = _adjusted_failure_rates(a, constant, anchor)
        new_a = a
        exact = a
    else:
        new_q = q
        exact = constant / (1 - q)
        new_a = _whole_steps(exact, anchor)
    amounts = contribution(w, new_q, 1.0, new_a)
    return CoDesign(
        failure_rates=new_q,
        accumulation=new_a,
        exact_accumulation=exact,
        constant=constant,
        drop_probabilities=1 - (1 - new_q) / (1 - q),
        residual_chi_square=chi_square(w, effective_weights(amounts)),
        learning_rate_factor=step_length(contribution(w, q, 1.0, a)) / step_length(amounts),
    )


def _constant(accumulation: Vector, failure_rates: Vector, anchor: int | None) -> float:
    products = (1 - failure_rates) * accumulation
    if anchor is None:
        return float(products.min())
    if not 0 <= anchor < len(products):
        raise ValueError(f"anchor must be a client from 0 to {len(products) - 1} or None, but it is {anchor!r}")
    return float(products[anchor])


def _adjusted_failure_rates(accumulation: Vector, constant: float, anchor: int | None) -> Vector:
    # A client equal to the anchor may come out a rounding error below 0.
    adjusted = 1 - constant / accumulation
    impossible = adjusted < -1e-12
    if impossible.any():
        raise ValueError(
            f"{clients_where(impossible)} infeasible: accumulation below (1 - q) A = {constant:g} of client {anchor}, "
            "so that even a perfect link would not do; anchor a client with less work, or pass anchor=None"
        )
    return np.maximum(adjusted, 0.0)


def _whole_steps(exact: Vector, anchor: int | None) -> Vector:
    rounded = np.rint(exact)
    impossible = rounded < 1
    if impossible.any():
        raise ValueError(
            f"{clients_where(impossible)} infeasible: less than one local step is wanted of each; "
            f"anchor a client with more work than {'the smallest' if anchor is None else f'client {anchor}'}"
        )
    return rounded
