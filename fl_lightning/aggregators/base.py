"""What an aggregator is: one method that returns c, or a direction of its own where it has memory."""

from typing import Any

import numpy as np
import torch

from fl_lightning.types import Cohort, IntVector, Profiles, RoundPlan, Updates, Vector


class Aggregator:
    r"""Turns what arrived into the next global weights.

    .. math:: X \leftarrow X - \eta \cdot \frac1K \sum_{m\ \mathrm{delivered}} n_m c_m \Delta_m

    Override :meth:`coefficients` for another c. Override :meth:`direction` for an aggregator with memory, and keep
    :meth:`coefficients` what it amounts to in expectation, so that :math:`\Omega \propto p (1-q) c A` stays true.
    """

    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        """Make room for memory; ``weights`` are the initial ones."""

    def coefficients(self, profiles: Profiles, cohort: Cohort) -> Vector:
        """Return c, the expected factor on a delivered update, the sampler's factor included, (M,)."""
        return cohort.coefficients

    def start(self, client: int, weights: torch.Tensor) -> torch.Tensor:
        """Return the weights from which a client starts its local training."""
        return weights

    def gradient_shift(self, client: int) -> torch.Tensor | None:
        """Return what a client adds to each local gradient, if anything."""
        return None

    def trains(self, plan: RoundPlan, delivered: IntVector) -> IntVector:
        """Return the clients whose training somebody will see; by default those whose upload arrives."""
        return np.flatnonzero(delivered)

    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        """Return the aggregated Delta, (d,)."""
        shares = delivered[updates.clients] * plan.coefficients[updates.clients] / plan.cohort.num_draws
        return weighted_sum(shares, updates.deltas)

    def __call__(
        self, weights: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan
    ) -> torch.Tensor:
        """Return the next global weights, (d,)."""
        return weights - plan.learning_rate * plan.server_scale * self.direction(updates, delivered, plan)

    def state_dict(self) -> dict[str, Any]:
        """Return the memory, as tensors, numbers and containers of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned."""


def weighted_sum(shares: Vector, rows: torch.Tensor) -> torch.Tensor:
    """Return sum_i shares_i rows_i, (d,); zeros when there are no rows.

    >>> weighted_sum(np.array([2.0, 1.0]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])).tolist()
    [2.0, 3.0]
    """
    return torch.from_numpy(np.asarray(shares)).to(rows) @ rows
