"""What a deployment can do as the configuration says, and what is refused. Needs no Flower."""

from typing import TYPE_CHECKING

from fl_lightning.aggregators.secure import sum_of
from fl_lightning.config.compose import ConfigError

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop


def check_deployable(loop: "FederatedLoop", max_steps: int | None) -> None:
    """Refuse what a deployment would not do as the configuration says.

    Args:
        loop: Of the configuration.
        max_steps: Up to which clients decide about T themselves; None: they do what they are asked.

    Raises:
        ConfigError: With what to do about it.
    """
    algorithm = loop.algorithm
    hidden = sum_of(algorithm.aggregator)
    if algorithm.local_parameters:
        raise ConfigError(
            "loop.local_parameters stay at simulated clients, but nodes would send them: leave them out to deploy"
        )
    own = next((step for step in algorithm.uploads.steps if not step.traits.at_server), None)
    if own is not None:
        raise ConfigError(
            f"loop.uploads has {type(own).__name__}, a step of simulated clients, which nodes would not make: leave it "
            "out to deploy"
        )
    if algorithm.uploads and hidden is not None:
        raise ConfigError("loop.uploads change single updates, which SecureSum hides from the server: leave them out")
    if loop.fabric.world_size > 1:
        raise ConfigError("fabric.devices must be 1 on a server: the clients train on their nodes")
    if max_steps is not None and algorithm.max_local_steps is not None:
        raise ConfigError(
            f"max-steps={max_steps} lets clients decide about their local steps, and loop.max_local_steps="
            f"{algorithm.max_local_steps} would not reach them: leave --max_steps out, and nodes do what they are "
            "asked for"
        )
    if max_steps is not None and hidden is not None:
        raise ConfigError(
            f"max-steps={max_steps} lets clients decide about their local steps, but with SecureSum the factor c is on "
            "their updates before the server knows the steps: leave --max_steps out to deploy"
        )
