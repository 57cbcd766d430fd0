"""FedRep: the head, which stays at the client, is trained before the body that all share."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.parts.protocols import Engine, Handout, Step
from fl_lightning.personal.personal import Personal
from fl_lightning.types import IntVector, ModelState, RoundPlan

if TYPE_CHECKING:
    from fl_lightning.engine.local_parts import LocalParts


class HeadFirst(Personal):
    r"""Trains local parameters first, then the shared ones (FedRep, Collins et al. 2021).

    With the head :math:`h_m`, the ``local_parameters``, and the body w, each drawn client makes

    .. math:: h_m \leftarrow h_m - \eta \nabla_h F_m(w, h_m), \quad \text{then} \quad
        w_m \leftarrow w_m - \eta \nabla_w F_m(w_m, h_m)

    in H steps and T steps, both over the batches of the round from the first one on. T is the schedule's, so A and
    Omega of the shared part are those of the T steps of any other algorithm.

    Args:
        head_steps: H; None: as many as T.
    """

    def __init__(self, head_steps: int | None = None) -> None:
        if head_steps is not None and head_steps < 1:
            raise ValueError(f"head_steps={head_steps} must be at least 1, or None for as many as the body's")
        self.head_steps = head_steps

    @override
    def setup(self, num_clients: int, state: ModelState, local: "LocalParts | None") -> None:
        if local is None or local.num_kept[0] in (0, len(state.weights)):
            kept = "none" if local is None else f"{local.num_kept[0]} of {len(state.weights)}"
            raise ValueError(
                f"personal=HeadFirst trains local parameters, then shared ones, but {kept} are local: name some by "
                "local_parameters, such as ['head.*'], or ['last layer']"
            )
        self._local = local
        self._head = local.marks(state.weights)

    @override
    def before(self, engine: Engine, state: ModelState, plan: RoundPlan, handout: Handout) -> Handout:
        conditions = replace(plan.profiles.conditions, num_steps=self.num_steps(plan))
        profiles = replace(plan.profiles, conditions=conditions)
        own = replace(plan, expected=replace(plan.expected, profiles=profiles))
        clients = plan.cohort.clients
        updates = engine.train(state, own, clients, replace(handout, step=_keeping(~self._head)))
        self._local.keep(updates, clients, state, plan, handout)
        return replace(handout, step=_keeping(self._head))

    @override
    def num_steps(self, plan: RoundPlan) -> IntVector:
        steps = plan.profiles.num_steps
        return steps if self.head_steps is None else np.full_like(steps, self.head_steps)


def _keeping(frozen: torch.Tensor) -> Step:
    """Return steps that leave some weights as they are, whatever a solver adds to their gradients."""

    def kept(make: Callable[[], None], gradient: torch.Tensor, weights: torch.Tensor) -> None:
        before = weights.clone()
        make()
        weights.copy_(torch.where(frozen, before, weights))

    return kept
