"""Runs in which the server sees sums alone: what may take part in them, and what a private one releases."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fl_lightning.parts.bases import Sampling
from fl_lightning.parts.traits import UploadTraits, layers
from fl_lightning.types import RoundPlan, RoundResult
from fl_lightning.uploads.chain import Upload

if TYPE_CHECKING:
    from fl_lightning.algorithms import Algorithm

# Functions of public numbers, of the seed and of earlier releases: the model, and what the mechanism counts.
_COVERED = frozenset(
    {"round", "learning_rate", "step_length", "epsilon", "delta", "noise_multiplier", "clip_norm", "channel_noise"}
)
# They depend on who was drawn, and are covered where the accountant lets everybody know that.
_OF_DRAWS = frozenset(
    {"local_steps", "computation_time", "round_time", "synchronous_time", "uplink_bytes", "downlink_bytes"}
) | {"num_sampled", "num_delivered", "failed_sums"}


def check_hidden_updates(algorithm: "Algorithm", num_buffers: int) -> None:
    """Refuse a run whose aggregator, sampler or module needs single updates that another part hides.

    Args:
        algorithm: The parts.
        num_buffers: Values in float buffers that clients send besides their weights.

    Raises:
        ValueError: With the part that hides, the one that needs, and what to use.
    """
    parts = [*reversed(layers(algorithm.aggregator)), *algorithm.uploads.steps]  # a wrapper hides what is inside
    hiding = next((part for part in parts if part.traits.hides_updates), None)
    if hiding is None:
        return
    name = type(hiding).__name__
    if not algorithm.aggregator.traits.only_sums:
        described = " of ".join(type(each).__name__ for each in layers(algorithm.aggregator))
        raise ValueError(
            f"{name} shows the server nothing but the sum of the updates, but {described} needs each "
            "of them: use AnonymousMean, NormalizedMean, CommunicationAware or a server optimizer around one of them"
        )
    check_unprotected(algorithm.sampling, num_buffers, name)


def check_unprotected(sampling: Sampling, num_buffers: int, name: str) -> None:
    """Refuse what would use updates past the part of this name: samplers that look at them, and float buffers.

    Raises:
        ValueError: With what to use instead.
    """
    if sampling.traits.looks_at_updates:
        raise ValueError(
            f"{name} hides single updates, but {sampling_name(sampling)} draws by what clients compute: use a sampler "
            "that does not, such as HeterogeneityAware, WorkAware, Importance or Uniform"
        )
    if num_buffers:
        raise ValueError(
            f"{name} protects the weights alone, but the module has {num_buffers} values in float buffers, "
            "such as running means of BatchNorm: use GroupNorm, or keep them at the clients by loop.local_parameters"
        )


def check_neighbours(steps: Sequence[Upload], private: Upload) -> None:
    """Refuse steps beside a private one through which a client says more than the private one counts.

    Before it, what leaves a step of one client must depend on that client alone: else a client moves what others send,
    and their clipped updates with it. After it, nothing may depend on the updates.

    Raises:
        ValueError: With the step and what to do.
    """
    place, name = steps.index(private), type(private).__name__
    for number, step in enumerate(steps):
        traits, other = step.traits, type(step).__name__
        if step is not private and traits.private:
            raise ValueError(f"uploads has more than one private step, and each counts for itself: keep one {name}")
        if number < place and traits.hides_updates:
            raise ValueError(f"{other} sends sums, of which {name} can bound no part: put it after {name}")
        if number < place and not traits.separate:
            remedy = traits.remedy or "declare traits = UploadTraits(separate=True) if that is not so"
            raise ValueError(
                f"{other} makes what one client sends depend on the updates of others, before {name} bounds them: "
                f"{remedy}, or leave it out"
            )
        if number > place and not traits.hides_updates:
            raise ValueError(f"{other} changes updates after {name} bounded them: put it before it")
        if number > place and not traits.public:
            raise ValueError(f"{other} looks at the updates after {name}, which does not count it: {traits.remedy}")


def check_covered(secret: UploadTraits | None, holds_out: bool, evaluates_clients: bool) -> None:
    """Refuse to evaluate a private run on examples of its clients: no epsilon covers that.

    Args:
        secret: Traits of the private step whose noise is secret; None where there is none.
        holds_out: Whether examples of the clients are held out as test data.
        evaluates_clients: Whether the model is evaluated on each client's own data.
    """
    covers = "measures the model on examples of the clients, which the epsilon of a private run does not cover"
    if secret is not None and holds_out:
        raise ValueError(f"validation {covers}: leave it out, or give the private step a fixed key")
    if secret is not None and evaluates_clients and not secret.keeps_uncovered:
        raise ValueError(
            f"evaluate_clients {covers}: leave it out, or set keep_uncovered of the private step, which keeps it "
            "in a file of its own"
        )


def sampling_name(sampling: Sampling) -> str:
    """Return what a sampling is called in errors: after its sampler, where it has one."""
    return type(layers(sampling)[:2][-1]).__name__


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
