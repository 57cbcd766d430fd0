"""Ditto: a model of each client's own, pulled towards the global one."""

from collections.abc import Callable

import torch
from typing_extensions import override

from fl_lightning.aggregators.client_rows import RowStorage
from fl_lightning.parts.protocols import Step
from fl_lightning.personal.personal import PersonalModels
from fl_lightning.types import ModelState


class PulledModels(PersonalModels):
    r"""Trains a second model of each client, pulled towards the global one (Ditto, Li et al. 2021).

    Beside its update, each drawn client makes T steps on a model that stays with it,

    .. math:: v_m \leftarrow v_m - \eta \left( \nabla F_m(v_m) + \lambda (v_m - w) \right)

    with the global model w that it got, the batches and the learning rate of the round. The paper begins all
    :math:`v_m` at the first global model; here each begins at the one that its client first gets.

    Args:
        pull: :math:`\lambda`. 0: every client trains alone, from the global model. Local steps diverge from
            :math:`\eta\lambda = 2` on.
        storage: Where and how exactly the models are kept, see :class:`fl_lightning.aggregators.RowStorage`.
    """

    def __init__(self, pull: float = 1.0, storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        if not 0 <= pull < float("inf"):
            raise ValueError(f"pull={pull} must be a finite number >= 0")
        self.pull = pull

    @override
    def step(self, state: ModelState) -> Step:
        def pulled(make: Callable[[], None], gradient: torch.Tensor, weights: torch.Tensor) -> None:
            gradient.add_(weights - state.weights, alpha=self.pull)
            make()

        return pulled
