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
from fl_lightning.theory.bounds import (
    Bound,
    distance_lower_bound,
    drift_coefficient,
    fedacs_bound,
    largest_drift,
    largest_learning_rate,
    surrogate_bound,
    true_objective_bound,
)
from fl_lightning.theory.codesign import CoDesign, codesign
from fl_lightning.theory.sampling import (
    average_factor,
    consistent_coefficients,
    harmonic_mean_steps,
    heterogeneity_aware_probabilities,
    variance_factor,
    variance_optimal_probabilities,
    work_aware_probabilities,
)

__all__ = [
    "Bound",
    "CoDesign",
    "LocalStep",
    "absence_limit",
    "absence_variance",
    "average_factor",
    "chi_square",
    "codesign",
    "consistent_coefficients",
    "contribution",
    "distance_lower_bound",
    "drift_coefficient",
    "effective_weights",
    "expected_draws",
    "fedacs_bound",
    "harmonic_mean_steps",
    "heterogeneity_aware_probabilities",
    "largest_drift",
    "largest_learning_rate",
    "limited_presence_weights",
    "numbers_there",
    "periodic_weights",
    "replaced_shares",
    "sgd_step",
    "step_length",
    "surrogate_bound",
    "toy_gain",
    "true_objective_bound",
    "variance_factor",
    "variance_optimal_probabilities",
    "work_aware_probabilities",
]
