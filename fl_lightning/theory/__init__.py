"""The paper's equations as pure functions of float64 columns, one value per client. Needs numpy only.

Sampling, link, aggregation and local solver meet in one expression, ``contribution = p * (1 - q) * c * A``; its shares
are the objective that is really optimised and its sum is the length of the step.
"""

from fl_lightning.theory.accumulation import (
    dampened_accumulation,
    exponential_decay_accumulation,
    gradient_weights,
    inverse_decay_accumulation,
    linear_decay_accumulation,
    momentum_accumulation,
    nesterov_accumulation,
    proximal_accumulation,
    proximal_gradient_weights,
    sgd_accumulation,
)
from fl_lightning.theory.averaging import average_factor, exponential_average_factor, mean_factor
from fl_lightning.theory.bias import (
    chi_square,
    contribution,
    effective_learning_rate,
    effective_steps,
    effective_weights,
    step_length,
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
    consistent_coefficients,
    expected_work,
    harmonic_mean_steps,
    heterogeneity_aware_probabilities,
    variance_factor,
    variance_optimal_probabilities,
    work_aware_probabilities,
)
from fl_lightning.theory.toy import (
    LocalStep,
    convergence_point,
    predicted_bias_distance,
    probe_accumulation,
    sgd_step,
    toy_gain,
)

__all__ = [
    "Bound",
    "CoDesign",
    "LocalStep",
    "average_factor",
    "chi_square",
    "codesign",
    "consistent_coefficients",
    "contribution",
    "convergence_point",
    "dampened_accumulation",
    "distance_lower_bound",
    "drift_coefficient",
    "effective_learning_rate",
    "effective_steps",
    "effective_weights",
    "expected_work",
    "exponential_average_factor",
    "exponential_decay_accumulation",
    "fedacs_bound",
    "gradient_weights",
    "harmonic_mean_steps",
    "heterogeneity_aware_probabilities",
    "inverse_decay_accumulation",
    "largest_drift",
    "largest_learning_rate",
    "linear_decay_accumulation",
    "mean_factor",
    "momentum_accumulation",
    "nesterov_accumulation",
    "predicted_bias_distance",
    "probe_accumulation",
    "proximal_accumulation",
    "proximal_gradient_weights",
    "sgd_accumulation",
    "sgd_step",
    "step_length",
    "surrogate_bound",
    "toy_gain",
    "true_objective_bound",
    "variance_factor",
    "variance_optimal_probabilities",
    "work_aware_probabilities",
]
