"""Two classes of what a private run measures: covered by its epsilon or public, and not covered."""

from collections.abc import Iterable
from dataclasses import replace

from fl_lightning.types import RoundPlan, RoundResult

# Functions of public numbers, of the seed and of earlier releases: the model, and what the mechanism counts.
_COVERED = frozenset(
    {"round", "learning_rate", "step_length", "epsilon", "delta", "noise_multiplier", "clip_norm", "channel_noise"}
)
# They depend on who was drawn, and are covered where the accountant lets everybody know that.
_OF_DRAWS = frozenset(
    {"local_steps", "computation_time", "round_time", "synchronous_time", "uplink_bytes", "downlink_bytes"}
) | {"num_sampled", "num_delivered", "failed_sums"}


def released(result: RoundResult, evaluated: Iterable[str], secret_draws: bool) -> RoundResult:
    """Return the result of a round with the metrics that epsilon does not cover set apart.

    What is not known to be covered is not: a column of a user's callback, too.

    Args:
        result: With all metrics.
        evaluated: Names of those that the new model has on the common test data.
        secret_draws: Whether epsilon rests on nobody knowing who was drawn.
    """
    covered = _COVERED.union(evaluated, () if secret_draws else _OF_DRAWS)
    shown = {name: value for name, value in result.metrics.items() if name in covered}
    kept = {name: value for name, value in result.metrics.items() if name not in covered}
    return replace(result, metrics=shown | {"chi2": unmeasured(result.plan).chi_square}, uncovered=kept)


def unmeasured(plan: RoundPlan) -> RoundPlan:
    """Return a plan whose objective is the expected one, without the factors that were measured of single clients."""
    return replace(plan, expected=replace(plan.expected, measured=None))
