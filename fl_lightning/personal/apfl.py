"""APFL: each client's model is a mixture of its own and the global one."""

from fl_lightning.aggregators.client_rows import RowStorage
from fl_lightning.personal.personal import PersonalModels


class MixedModels(PersonalModels):
    r"""Mixes the global model with one of the client's own (APFL, Deng et al. 2020).

    A client's model is :math:`\bar{v}_m = \alpha v_m + (1 - \alpha) w`. Beside its update, each drawn client makes T
    steps along the gradient of the mixture with respect to its own part,

    .. math:: v_m \leftarrow v_m - \eta \alpha \nabla F_m(\alpha v_m + (1 - \alpha) w)

    which moves the mixture by :math:`\eta \alpha^2`. Here w is the model that the client got; in the paper it makes the
    client's local steps meanwhile, the same where T = 1. Alpha is one number for all; the paper may learn it.

    Args:
        alpha: Share of the client's own model, in (0, 1]. 1: every client trains alone.
        storage: Where and how exactly the models are kept, see :class:`fl_lightning.aggregators.RowStorage`.
    """

    def __init__(self, alpha: float = 0.5, storage: RowStorage | None = None) -> None:
        super().__init__(storage)
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha={alpha} must be above 0 and at most 1")
        self.share = alpha
