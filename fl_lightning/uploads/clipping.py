"""Clipping: no client moves the model by more than a bound."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import row_norms
from fl_lightning.parts.traits import UploadTraits
from fl_lightning.theory.checks import one_of
from fl_lightning.types import RoundPlan, Updates, Vector
from fl_lightning.uploads.chain import Upload

Measure = Literal["work", "update"]
_MEMORY = 50.0  # deliveries of a client over which its factor is averaged
_RANGE = 1e12  # of an adapted bound, above and below where it began


class Clip(Upload):
    r"""Shortens each update to a bound C.

    .. math::
        \Delta_m \leftarrow f_m \Delta_m, \qquad
        f_m = \min\left(1, \frac{C}{\|\Delta_m\| / A_m}\right) \ \mathrm{or}\
        \min\left(1, \frac{C}{c_m \|\Delta_m\|}\right)

    A factor is a bias: :math:`\Omega \propto p (1-q) c A\, \mathrm{E}[f]`. It is measured for each client, averaged
    over about fifty deliveries, and shows in the reported Omega. Who works much sends long updates, so a bound on the
    update itself takes weight from those clients and no sampling gives it back. A bound on the update per unit of work
    meets all clients whose gradients are equally long alike: FedACS stays consistent.

    Args:
        norm: C, the first one where ``quantile`` is given.
        of: ``work``: bound :math:`\|\Delta\| / A`, the mean gradient. ``update``: bound what is sent, :math:`c \Delta`.
        quantile: Adapt C from round to round until this share of the updates is left as it is (Andrew et al. 2021).
        pace: How quickly C adapts: by a factor of at most :math:`e^{pace}` per round.
    """

    memory = ("norm", "_factors", "_arrivals")

    def __init__(
        self, norm: float = 1.0, of: Measure = "work", quantile: float | None = None, pace: float = 0.2
    ) -> None:
        if not 0 < norm < float("inf"):
            raise ValueError(f"norm={norm} must be a positive number: it bounds the length of an update")
        one_of("of", of, Measure)
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"quantile={quantile} must be between 0 and 1: a share of the updates")
        if not 0 < pace <= 1:
            raise ValueError(f"pace={pace} must be in (0, 1]")
        self.norm, self.of, self.quantile, self.pace = float(norm), of, quantile, pace
        self._first_norm = self.norm
        self._factors: Vector = np.empty(0)  # of each client, a running mean
        self._arrivals: Vector = np.empty(0)
        self._last: dict[str, float] = {}

    @property
    @override
    def traits(self) -> UploadTraits:
        fixed = self.quantile is None
        return UploadTraits(at_server=True, separate=fixed, remedy="leave out its quantile", effect="bounded")

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self._factors, self._arrivals = np.ones(num_clients), np.zeros(num_clients)

    def units(self, plan: RoundPlan) -> Vector:
        """Return for each client how long C = 1 lets what it sends be, c Delta, (M,)."""
        if self.of == "update":
            return np.ones(plan.profiles.num_clients)
        return np.abs(plan.coefficients) * plan.profiles.accumulation

    def clipped(self, updates: Updates, plan: RoundPlan) -> tuple[Updates, npt.NDArray[np.bool_]]:
        """Return the clipped updates, and which of them were short enough, (n,)."""
        lengths = np.abs(plan.coefficients[updates.clients]) * row_norms(updates.deltas)
        limits = self.norm * self.units(plan)[updates.clients]
        inside = lengths <= limits
        factors = np.divide(limits, lengths, out=np.ones(len(lengths)), where=~inside)
        self._measure(updates, factors)
        scales = torch.from_numpy(factors).to(updates.deltas)
        return replace(updates, deltas=updates.deltas * scales[:, None]), inside

    def adapt(self, share: float) -> None:
        """Move C towards the quantile, given the share of the updates that were short enough."""
        if self.quantile is not None:
            moved = self.norm * float(np.exp(-self.pace * np.clip(share - self.quantile, -1, 1)))
            self.norm = float(np.clip(moved, self._first_norm / _RANGE, self._first_norm * _RANGE))

    def _measure(self, updates: Updates, factors: Vector) -> None:
        clients = updates.clients
        self._arrivals[clients] += 1
        self._factors[clients] += (factors - self._factors[clients]) / np.minimum(self._arrivals[clients], _MEMORY)
        clipped = float((factors < 1).mean()) if len(factors) else float("nan")
        mean = float(factors.mean()) if len(factors) else float("nan")
        self._last = {"clip_norm": self.norm, "clip_factor": mean, "clipped_share": clipped}

    @override
    def __call__(self, updates: Updates, plan: RoundPlan, seed: int) -> Updates:
        clipped, inside = self.clipped(updates, plan)
        if len(inside):
            self.adapt(float(inside.mean()))
        return clipped

    @override
    def measured_factors(self) -> Vector | None:
        """Return the measured factor of each client; one that has not delivered yet counts as the average."""
        delivered = self._arrivals > 0
        if not delivered.any():
            return None
        return np.where(delivered, self._factors, self._factors[delivered].mean())

    def configure_metrics(self, result: Any) -> dict[str, float]:
        """Return the columns of a round: the bound, the mean factor of what arrived, and how much of it was clipped."""
        return self._last
