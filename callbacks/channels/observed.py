"""Observed: nobody decides whose upload arrives, it shows."""

from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from fl_lightning.callbacks.trainer import refuse_trainer
from fl_lightning.parts.bases import Channel
from fl_lightning.types import IntVector, RoundPlan
from fl_lightning.uploads.hidden import sampling_name

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop


class Observed(Callback, Channel):
    """Asks everybody who was drawn; what arrives in time is delivered.

    For deployments, where links are real. In the simulator every upload arrives, unless the engine replays a deployment
    (:class:`fl_lightning.engine.Replayed`).
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse a plain Trainer."""
        refuse_trainer(self, "it waits for the uploads of other machines", "ChannelFailures")

    def on_federation_start(self, loop: "FederatedLoop") -> None:
        """Refuse parts that need what a lost client did.

        Raises:
            ValueError: If sampler or aggregator would use updates that never arrive.
        """
        aggregator, sampling = loop.algorithm.aggregator, loop.algorithm.sampling
        if aggregator.traits.needs_lost_updates:
            raise ValueError(
                f"{type(aggregator).__name__} trains on from uploads that were lost, which nobody can know where "
                "links are real: use another aggregator, or simulate the links by ChannelFailures"
            )
        if sampling.traits.needs_all_updates:
            raise ValueError(
                f"{sampling_name(sampling)} needs the updates of all clients before it draws, but not all of them "
                "answer where links are real: use norms='stale', or simulate the links by ChannelFailures"
            )

    def configure_delivery(self, plan: RoundPlan, seed: int) -> IntVector:
        """Return the draws of each client: the loop leaves out those that do not arrive, (M,)."""
        return plan.cohort.counts
