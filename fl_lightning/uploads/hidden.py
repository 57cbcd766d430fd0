"""Runs in which the server sees sums alone: what may take part in them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop


def check_hidden_updates(loop: "FederatedLoop") -> None:
    """Refuse a run whose aggregator, sampler or module needs single updates that another part hides.

    Raises:
        ValueError: With the part that hides, the one that needs, and what to use.
    """
    parts: list[Any] = [loop.aggregator, *loop.uploads.steps]
    hiding = next((part for part in parts if part.hides_updates), None)
    if hiding is None:
        return
    name = type(hiding).__name__
    if not loop.aggregator.only_sums:
        raise ValueError(
            f"{name} shows the server nothing but the sum of the updates, but {_described(loop.aggregator)} needs each "
            "of them: use AnonymousMean, NormalizedMean, CommunicationAware or a server optimizer around one of them"
        )
    check_unprotected(loop, name)


def check_unprotected(loop: "FederatedLoop", name: str) -> None:
    """Refuse what would use updates past the part of this name: samplers that look at them, and float buffers.

    Raises:
        ValueError: With what to use instead.
    """
    sampler = getattr(loop.sampling, "sampler", None)
    if sampler is not None and sampler.looks_at_updates:
        raise ValueError(
            f"{name} hides single updates, but {type(sampler).__name__} draws by what clients compute: use a sampler "
            "that does not, such as HeterogeneityAware, WorkAware, Importance or Uniform"
        )
    num_buffers = len(loop.state.buffers) - loop.local_parts.num_buffers
    if num_buffers:
        raise ValueError(
            f"{name} protects the weights alone, but the module has {num_buffers} values in float buffers, "
            "such as running means of BatchNorm: use GroupNorm, or keep them at the clients by loop.local_parameters"
        )


def _described(aggregator: Any) -> str:
    inner = getattr(aggregator, "aggregator", None)
    return type(aggregator).__name__ if inner is None else f"{type(aggregator).__name__} of {_described(inner)}"
