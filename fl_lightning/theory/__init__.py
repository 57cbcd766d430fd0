"""The paper's equations as pure functions of float64 columns, one value per client. Needs numpy only.

Sampling, link, aggregation and local solver meet in one expression, ``contribution = p * (1 - q) * c * A``; its shares
are the objective that is really optimised and its sum is the length of the step.
"""

from fl_lightning.theory.availability import (
    absence_limit,
    absence_variance,
    expected_draws,
    limited_presence_weights,
    numbers_there,
    periodic_weights,
    replaced_shares,
)
from fl_lightning.theory.bias import (
    LocalStep,
    chi_square,
    contribution,
    effective_weights,
    sgd_step,
    step_length,
    toy_gain,
)
from fl_lightning.theory.codesign import CoDesign, codesign
from fl_lightning.theory.sampling import (
    average_factor,
    consistent_coefficients,
    harmonic_mean_steps,
    heterogeneity_aware_probabilities,
    successive_inclusion,
    variance_factor,
    variance_optimal_probabilities,
    work_aware_probabilities,
)

__all__ = [
    "CoDesign",
    "LocalStep",
    "absence_limit",
    "absence_variance",
    "average_factor",
    "chi_square",
    "codesign",
    "consistent_coefficients",
    "contribution",
    "effective_weights",
    "expected_draws",
    "harmonic_mean_steps",
    "heterogeneity_aware_probabilities",
    "limited_presence_weights",
    "numbers_there",
    "periodic_weights",
    "replaced_shares",
    "sgd_step",
    "step_length",
    "successive_inclusion",
    "toy_gain",
    "variance_factor",
    "variance_optimal_probabilities",
    "work_aware_probabilities",
]
