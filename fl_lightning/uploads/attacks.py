"""Attackers: clients that send something else than what they trained."""

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from fl_lightning.parts.traits import UploadTraits
from fl_lightning.seeding import Purpose, generator
from fl_lightning.theory.checks import one_of
from fl_lightning.types import IntVector, RoundPlan, Updates
from fl_lightning.uploads.chain import Upload
from fl_lightning.uploads.gaussian import gaussian

Kind = Literal["sign_flip", "gaussian", "little_is_enough", "inner_product", "free_rider"]


class Attack(Upload):
    r"""Lets a share of the clients send what harms the model; put it first among the uploads.

    With :math:`u = \Delta / A` the update per unit of work, :math:`\mu` and :math:`\sigma` mean and standard deviation,
    by coordinate, of those of the honest clients that arrive, and s the strength, an attacker sends A times

    - ``sign_flip``: :math:`-s u`, the opposite of its own;
    - ``gaussian``: noise as long as :math:`s \|u\|`;
    - ``little_is_enough``: :math:`\mu - s \sigma`, within what honest clients send (ALIE, Baruch et al. 2019);
    - ``inner_product``: :math:`-s \mu` (Xie et al. 2020);
    - ``free_rider``: zero, for it did no work.

    The attackers are the same in all rounds and under all algorithms of one seed. Wrong labels are an attack on data:
    :class:`fl_lightning.data.FlippedLabels`.

    Args:
        kind: What attackers send.
        share: Of all clients.
        strength: s.
        first_round: They behave before this round.
        last_round: They behave again after this round.
    """

    def __init__(
        self,
        kind: Kind = "sign_flip",
        share: float = 0.1,
        strength: float = 1.0,
        first_round: int = 1,
        last_round: int | None = None,
    ) -> None:
        one_of("kind", kind, Kind)
        if not 0 <= share < 1:
            raise ValueError(f"share={share} must be in [0, 1): a share of the clients")
        if not 0 < strength < float("inf"):
            raise ValueError(f"strength={strength} must be a positive number")
        if first_round < 1 or (last_round is not None and last_round < first_round):
            raise ValueError(f"first_round={first_round}, last_round={last_round} must be rounds from 1 on, in order")
        self.kind, self.share, self.strength = kind, share, strength
        self.first_round, self.last_round = first_round, last_round

    @property
    @override
    def traits(self) -> UploadTraits:
        alone = self.kind not in ("little_is_enough", "inner_product")  # which send what they see of the others
        return UploadTraits(separate=alone, remedy="use another kind of attack")

    @override
    def __call__(self, updates: Updates, plan: RoundPlan, seed: int) -> Updates:
        bad = np.isin(updates.clients, attackers(plan.profiles.num_clients, self.share, seed))
        active = self.first_round <= plan.index and (self.last_round is None or plan.index <= self.last_round)
        if not active or not bad.any():
            return updates
        work = torch.from_numpy(plan.profiles.accumulation[updates.clients]).to(updates.deltas)[:, None]
        rows = self._sent(updates.deltas / work, bad, updates.clients, plan.index, seed) * work
        deltas = updates.deltas.clone()
        places = torch.from_numpy(np.flatnonzero(bad))
        deltas[places] = rows[places]
        return replace(updates, deltas=deltas)

    def _sent(
        self, rows: torch.Tensor, bad: npt.NDArray[np.bool_], clients: IntVector, index: int, seed: int
    ) -> torch.Tensor:
        """Return what each client would send as an attacker, per unit of work, (n, d)."""
        if self.kind == "sign_flip":
            return -self.strength * rows
        if self.kind == "free_rider":
            return torch.zeros_like(rows)
        if self.kind == "gaussian":
            noise = torch.stack([gaussian(rows, seed, Purpose.ATTACK, index, client) for client in clients.tolist()])
            lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            return self.strength * lengths * torch.nn.functional.normalize(noise)
        honest = rows[torch.from_numpy(np.flatnonzero(~bad))]
        known = honest if len(honest) else rows  # attackers alone in a round imitate each other
        mean = known.mean(dim=0)
        if self.kind == "inner_product":
            return (-self.strength * mean).expand_as(rows)
        return (mean - self.strength * known.std(dim=0, correction=0)).expand_as(rows)


def attackers(num_clients: int, share: float, seed: int) -> IntVector:
    """Return who attacks, ascending; the same under one seed for whatever attack.

    >>> attackers(10, 0.2, 0).tolist()
    [5, 9]
    """
    order = generator(seed, Purpose.ATTACK).permutation(num_clients)
    return np.sort(order[: round(share * num_clients)])
