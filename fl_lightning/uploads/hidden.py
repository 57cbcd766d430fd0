"""Runs in which the server sees sums alone: what may take part in them."""

from typing import TYPE_CHECKING

from fl_lightning.parts.bases import Sampling
from fl_lightning.parts.traits import layers

if TYPE_CHECKING:
    from fl_lightning.algorithms import Algorithm


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


def sampling_name(sampling: Sampling) -> str:
    """Return what a sampling is called in errors: after its sampler, where it has one."""
    return type(layers(sampling)[:2][-1]).__name__
