"""The paper's equations as pure functions of float64 columns, one value per client. Needs numpy only.

Sampling, link, aggregation and local solver meet in one expression, ``contribution = p * (1 - q) * c * A``; its shares
are the objective that is really optimised and its sum is the length of the step.
"""

from fl_lightning.theory.bias import (
    chi_square,
    contribution,
    effective_learning_rate,
    effective_steps,
    effective_weights,
    step_length,
)
from fl_lightning.theory.sampling import (
    consistent_coefficients,
    expected_work,
    heterogeneity_aware_probabilities,
    variance_factor,
    variance_optimal_probabilities,
    work_aware_probabilities,
)

__all__ = [
    "chi_square",
    "consistent_coefficients",
    "contribution",
    "effective_learning_rate",
    "effective_steps",
    "effective_weights",
    "expected_work",
    "heterogeneity_aware_probabilities",
    "step_length",
    "variance_factor",
    "variance_optimal_probabilities",
    "work_aware_probabilities",
]
