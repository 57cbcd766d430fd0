"""The float buffers of the global model, which no aggregator knows of."""

import torch

from fl_lightning.types import IntVector, RoundPlan, Updates


def mixed_buffers(buffers: torch.Tensor, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
    """Return the global float buffers (running means of BatchNorm), averaged like the weights.

    Shares are kept convex, because a variance that an amplified update pushes below zero would be none.
    """
    if not len(buffers) or not len(updates):
        return buffers
    shares = delivered[updates.clients] * plan.coefficients[updates.clients] / plan.cohort.num_draws
    shares = shares / max(1.0, float(shares.sum()))
    steps = torch.from_numpy(shares).to(buffers) @ (updates.buffers - buffers)
    return buffers + steps
