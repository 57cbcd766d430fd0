"""CA2FL and ACE: any synchronous aggregator, on uploads that began with older models."""

from dataclasses import replace

import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator
from fl_lightning.asynchronous.stale_mean import OlderStarts
from fl_lightning.parts.protocols import Handout
from fl_lightning.parts.traits import AggregatorTraits, forwards
from fl_lightning.types import IntVector, RoundPlan, Updates


@forwards(Aggregator, "aggregator")
class Delayed(OlderStarts):
    r"""Lets another aggregator have uploads that began with older models, as if they had begun with the newest.

    Its rule, its memory and its Omega are the other aggregator's, with p the share of each client among the uploads.

    - CA2FL (Wang et al. 2024) is this around :class:`fl_lightning.aggregators.LastKnownUpdates`: of the distinct
      clients S in a buffer, :math:`X \leftarrow X - \eta (\sum_j w_j y_j + \frac{1}{|S|} \sum_{m \in S} (\Delta_m -
      y_m))`. Arrival rates and links drop out: :math:`\Omega \propto w A`.
    - ACE (Chang et al. 2025) is this around :class:`fl_lightning.aggregators.MemorizedMean` with a buffer of one: each
      upload replaces its client's row, and the step is along the mean of all rows; ACED leaves out rows that are older
      than ``max_age``. :math:`\Omega \propto w A`.

    Needs :class:`AsynchronousSelection`.

    Args:
        aggregator: Turns the uploads into a step; not one whose clients keep models of their own.
    """

    memory = ("aggregator",)

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        if aggregator.traits.keeps == "client models":
            raise ValueError(
                f"aggregator={type(aggregator).__name__} hands out models of its own, but a job began with an older "
                "global one: use an aggregator without, such as MemorizedMean"
            )
        self.aggregator = self.wrapped = aggregator

    @property
    @override
    def traits(self) -> AggregatorTraits:
        inner = self.aggregator.traits
        return replace(inner, only_sums=False, keeps="client models" if inner.keeps == "nothing" else inner.keeps)

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        super().setup(num_clients, weights)
        self.aggregator.setup(num_clients, weights)

    @override
    def handout(self, plan: RoundPlan) -> Handout:
        return replace(self.aggregator.handout(plan), start=super().handout(plan).start)

    @override
    def step(self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        self.keep(weights, plan)
        return self.aggregator.step(weights, updates, delivered, plan)
