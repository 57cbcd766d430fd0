"""The paper's equations as pure functions of float64 columns, one value per client. Needs numpy only.

Sampling, link, aggregation and local solver meet in one expression, ``contribution = p * (1 - q) * c * A``; its shares
are the objective that is really optimised and its sum is the length of the step.
"""

from fl_lightning.theory.availability import absence_limit as absence_limit
from fl_lightning.theory.availability import absence_variance as absence_variance
from fl_lightning.theory.availability import expected_draws as expected_draws
from fl_lightning.theory.availability import limited_presence_weights as limited_presence_weights
from fl_lightning.theory.availability import numbers_there as numbers_there
from fl_lightning.theory.availability import periodic_weights as periodic_weights
from fl_lightning.theory.availability import replaced_shares as replaced_shares
from fl_lightning.theory.bias import LocalStep as LocalStep
from fl_lightning.theory.bias import chi_square as chi_square
from fl_lightning.theory.bias import contribution as contribution
from fl_lightning.theory.bias import effective_weights as effective_weights
from fl_lightning.theory.bias import sgd_step as sgd_step
from fl_lightning.theory.bias import step_length as step_length
from fl_lightning.theory.bias import toy_gain as toy_gain
from fl_lightning.theory.codesign import CoDesign as CoDesign
from fl_lightning.theory.codesign import codesign as codesign
from fl_lightning.theory.sampling import average_factor as average_factor
from fl_lightning.theory.sampling import consistent_coefficients as consistent_coefficients
from fl_lightning.theory.sampling import harmonic_mean_steps as harmonic_mean_steps
from fl_lightning.theory.sampling import heterogeneity_aware_probabilities as heterogeneity_aware_probabilities
from fl_lightning.theory.sampling import successive_inclusion as successive_inclusion
from fl_lightning.theory.sampling import variance_factor as variance_factor
from fl_lightning.theory.sampling import variance_optimal_probabilities as variance_optimal_probabilities
from fl_lightning.theory.sampling import work_aware_probabilities as work_aware_probabilities
