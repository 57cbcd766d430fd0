"""Aggregators that a minority of attackers cannot lead far astray."""

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import Aggregator, weighted_sum
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.types import IntVector, RoundPlan, Updates, Vector, beside_float64, widened

_WEISZFELD_ROUNDS, _WEISZFELD_CHANGE = 100, 1e-6


class RobustAggregator(Aggregator):
    r"""Puts a robust centre in the place of the mean of what arrived.

    .. math::
        X \leftarrow X - \frac{\eta}{K} \Big( \sum_m s_m \Big) \operatorname{centre}_s\Big( \frac{\Delta_m}{A_m} \Big),
        \qquad s_m = n_m c_m A_m

    Updates are compared per unit of work, because those of clients that work much are long for no other reason. The
    weights :math:`s_m` are those that the anonymous mean has: where all clients agree, the step is the same, and a
    sampler such as FedACS keeps its effect. A centre is not linear, so there is no Omega beforehand; the reported one
    is that of the mean. Override :meth:`centre`.
    """

    traits = AggregatorTraits(only_sums=False, linear=False)

    def centre(self, rows: torch.Tensor, weights: Vector) -> torch.Tensor:
        """Return the centre of some rows with positive weights, (d,)."""
        raise NotImplementedError

    @override
    def direction(self, updates: Updates, delivered: IntVector, plan: RoundPlan) -> torch.Tensor:
        clients = updates.clients
        work = plan.profiles.accumulation[clients]
        weights = delivered[clients] * plan.coefficients[clients] * work
        counted = np.flatnonzero(weights > 0)
        if not len(counted):
            return updates.deltas.new_zeros(updates.deltas.shape[1])
        scales = torch.from_numpy(1 / work[counted]).to(updates.deltas)
        rows = updates.deltas[torch.from_numpy(counted)] * scales[:, None]
        return self.centre(rows, weights[counted]) * (float(weights.sum()) / plan.cohort.num_draws)


class CoordinateMedian(RobustAggregator):
    """Takes the weighted median of each coordinate (Yin et al. 2018).

    It withstands attackers of up to half of the weight. With few clients per class it forgets the rare classes, as all
    centres of this kind do.
    """

    @override
    def centre(self, rows: torch.Tensor, weights: Vector) -> torch.Tensor:
        return trimmed_mean(rows, weights, 0.5)


class TrimmedMean(RobustAggregator):
    """Leaves out the extremes of each coordinate and takes the mean of the rest (Yin et al. 2018).

    Args:
        share: Of the weight, left out at each end; below one half. It should be no less than the share of attackers.
    """

    def __init__(self, share: float = 0.2) -> None:
        if not 0 <= share < 0.5:
            raise ValueError(f"share={share} must be in [0, 0.5): it is left out at each end")
        self.share = share

    @override
    def centre(self, rows: torch.Tensor, weights: Vector) -> torch.Tensor:
        return trimmed_mean(rows, weights, self.share)


class Krum(RobustAggregator):
    """Takes the mean of the updates that have the nearest neighbours (Krum, multi-Krum, Blanchard et al. 2017).

    Distances are those of the updates per unit of work; each client counts once in them, and its weight in the mean.

    Args:
        share: Of the clients that arrive, assumed to be attackers, below one half.
        keep: How many updates to keep: 1 is Krum, more is multi-Krum; all but the assumed attackers by default.
    """

    def __init__(self, share: float = 0.2, keep: int | None = None) -> None:
        if not 0 <= share < 0.5:
            raise ValueError(f"share={share} must be in [0, 0.5)")
        if keep is not None and keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        self.share, self.keep = share, keep

    @override
    def centre(self, rows: torch.Tensor, weights: Vector) -> torch.Tensor:
        num_bad = int(np.ceil(self.share * len(rows)))
        num_near = max(1, len(rows) - num_bad - 2)
        keep = max(1, min(len(rows), len(rows) - num_bad if self.keep is None else self.keep))
        distances = torch.cdist(widened(rows), widened(rows)) ** 2
        nearest = distances.sort(dim=1).values[:, 1 : 1 + num_near]  # without itself
        kept = torch.argsort(nearest.sum(dim=1), stable=True)[:keep].cpu().numpy()
        shares = np.zeros(len(rows))
        shares[kept] = weights[kept] / weights[kept].sum()
        return weighted_sum(shares, rows)


class GeometricMedian(RobustAggregator):
    r"""Takes the point with the least weighted sum of distances (RFA, Pillutla et al. 2022), by Weiszfeld's iteration.

    Args:
        smoothing: Distances below this share of the mean one count as this long, so that a division is never by zero.
    """

    def __init__(self, smoothing: float = 1e-6) -> None:
        if not 0 < smoothing < 1:
            raise ValueError(f"smoothing={smoothing} must be between 0 and 1")
        self.smoothing = smoothing

    @override
    def centre(self, rows: torch.Tensor, weights: Vector) -> torch.Tensor:
        points = widened(rows)
        shares = torch.from_numpy(weights / weights.sum()).to(points.device)
        centre = shares @ points
        for _ in range(_WEISZFELD_ROUNDS):
            distances = torch.linalg.vector_norm(points - centre, dim=1)
            floor = self.smoothing * float(distances.mean())
            if floor == 0:
                break
            pulls = shares / distances.clamp(min=floor)
            moved = (pulls / pulls.sum()) @ points
            change, centre = float(torch.linalg.vector_norm(moved - centre)), moved
            if change <= _WEISZFELD_CHANGE * float(distances.mean()):
                break
        return centre.to(rows)


class NormBound(RobustAggregator):
    """Shortens updates to a multiple of the median length and takes their mean (norm bounding, Sun et al. 2019).

    Args:
        factor: Longest update per unit of work, in units of the median of those that arrive.
    """

    def __init__(self, factor: float = 1.0) -> None:
        if not 0 < factor < float("inf"):
            raise ValueError(f"factor={factor} must be a positive number")
        self.factor = factor

    @override
    def centre(self, rows: torch.Tensor, weights: Vector) -> torch.Tensor:
        lengths = torch.linalg.vector_norm(beside_float64(rows), dim=1, dtype=torch.float64)
        bound = self.factor * float(trimmed_mean(lengths[:, None], weights, 0.5))
        scales = (bound / lengths.clamp(min=1e-300)).clamp(max=1.0).to(rows)
        return weighted_sum(weights / weights.sum(), rows * scales[:, None])


def trimmed_mean(rows: torch.Tensor, weights: Vector, share: float) -> torch.Tensor:
    """Return the mean of each column between two quantiles of its weight, (d,); at ``share`` 1/2 the median.

    Of a row on which a quantile falls, the part within counts. The median of an even number of equal weights is the
    mean of the two in the middle.

    >>> rows = torch.tensor([[1.0], [2.0], [3.0], [100.0]])
    >>> trimmed_mean(rows, np.ones(4), 0.25).item(), trimmed_mean(rows, np.ones(4), 0.5).item()
    (2.5, 2.5)
    >>> trimmed_mean(rows, np.array([1.0, 1.0, 1.0, 5.0]), 0.5).item()
    100.0
    """
    ordered, places = rows.sort(dim=0)
    ordered = beside_float64(ordered)
    shares = torch.from_numpy(weights / weights.sum()).to(ordered.device)[places.to(ordered.device)]
    ends = shares.cumsum(dim=0)
    width = max(0.5 - share, 1e-9)  # the median is the mean of a very narrow middle
    low, high = 0.5 - width, 0.5 + width
    inside = (ends.clamp(max=high) - (ends - shares).clamp(min=low)).clamp(min=0.0)
    return ((inside / inside.sum(dim=0)) * ordered).sum(dim=0).to(rows)
