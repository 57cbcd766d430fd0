"""Shorter uploads: quantisation, sparsification and signs, with what they do to the mean and to the variance."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import delivered_shares
from fl_lightning.parts.traits import UploadTraits
from fl_lightning.seeding import Purpose, client_keys, client_seed
from fl_lightning.types import IntVector, RoundPlan, Updates
from fl_lightning.uploads.chain import Upload

Random = Callable[[], torch.Tensor]
_SHORT = 1 << 16  # values of an upload
_INDEX_BYTES, _SCALE_BYTES, _SEED_BYTES = 4, 4, 8


class Compression(Upload):
    """Sends less of each update; override :meth:`compressed`.

    With error feedback a client keeps what it did not send and adds it to its next update, so that over the rounds all
    of it arrives and Omega stays what it is, however biased a single upload is. A lost upload leaves it as it was. What
    clients keep takes M times the size of the model.

    Args:
        error_feedback: Whether clients keep what they did not send.
    """

    memory = ("residuals",)
    unbiased = False  # whether a single upload is right on average

    @property
    @override
    def traits(self) -> UploadTraits:
        """Without feedback a biased upload leaves something out for good, and the data decide what."""
        exact = self.unbiased or self.error_feedback
        return UploadTraits(separate=True, effect="exact" if exact else "unknown")

    def __init__(self, error_feedback: bool) -> None:
        self.error_feedback = error_feedback
        self.residuals = torch.empty(0)  # what each client has not sent yet, (M, d)

    @override
    def setup(self, num_clients: int, weights: torch.Tensor) -> None:
        self.residuals = weights.new_zeros((num_clients, len(weights)) if self.error_feedback else 0)

    def compressed(self, rows: torch.Tensor, random: Random) -> torch.Tensor:
        """Return what the server makes of uploads, (n, d); ``random`` makes numbers in [0, 1) of the same shape."""
        raise NotImplementedError

    @override
    def __call__(self, updates: Updates, plan: RoundPlan, seed: int) -> Updates:
        if not len(updates):
            return updates
        rows = torch.from_numpy(updates.clients)
        wanted = updates.deltas
        if self.error_feedback:
            # In units of the step that the server makes of it: rounds differ in rate, draws and coefficients.
            shares = delivered_shares(plan.coefficients, updates, plan.cohort.counts, plan)
            steps = plan.learning_rate * plan.server_scale * shares
            amounts = torch.from_numpy(np.where(steps > 0, steps, 1.0)).to(wanted)[:, None]
            wanted = wanted + self.residuals[rows] / amounts
        sent = self.compressed(wanted, lambda: _uniforms(seed, plan.index, updates.clients, wanted))
        if self.error_feedback:
            self.residuals[rows] = amounts * (wanted - sent)
        return replace(updates, deltas=sent)


def _uniforms(seed: int, round_index: int, clients: IntVector, like: torch.Tensor) -> torch.Tensor:
    """Return numbers in [0, 1) that are a function of (seed, round, client), whoever else sends something, (n, d)."""
    if like.shape[1] <= _SHORT:  # all clients at once: a generator for each would cost more than the numbers
        keys = client_keys(seed, Purpose.COMPRESSION, round_index, clients, like.shape[1])
        return torch.from_numpy((keys >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).to(like)
    rows = []
    for client in clients.tolist():
        random = torch.Generator().manual_seed(client_seed(seed, Purpose.COMPRESSION, round_index, client))
        rows.append(torch.rand(like.shape[1], generator=random))
    return torch.stack(rows).to(like)


class Quantized(Compression):
    r"""Rounds each value at random to one of a few levels (QSGD, Alistarh et al. 2017).

    .. math:: \hat\Delta_i = \lVert\Delta\rVert_2 \operatorname{sign}(\Delta_i) \frac{\xi_i}{s}, \qquad
        \mathrm{E}[\xi_i] = s |\Delta_i| / \lVert\Delta\rVert_2, \qquad s = 2^{b-1} - 1

    Unbiased: Omega stays as it is. The variance is at most :math:`\min(d / s^2, \sqrt d / s) \lVert\Delta\rVert^2`.

    Args:
        bits: b, of each value, its sign included; 2 to 16.
    """

    unbiased = True

    def __init__(self, bits: int = 8) -> None:
        if not 2 <= bits <= 16:
            raise ValueError(f"bits={bits} must be from 2 to 16")
        super().__init__(error_feedback=False)
        self.bits = bits

    @override
    def compressed(self, rows: torch.Tensor, random: Random) -> torch.Tensor:
        levels = 2 ** (self.bits - 1) - 1
        norms = rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        return norms * rows.sign() * torch.floor(levels * rows.abs() / norms + random()) / levels

    @override
    def num_bytes(self, num_values: int, num_bytes: float) -> float:
        return num_values * self.bits / 8 + _SCALE_BYTES


class TopK(Compression):
    r"""Sends the values that are largest in magnitude, with their places (Stich et al. 2018).

    A single upload lacks at most :math:`(1 - k/d) \lVert\Delta\rVert^2`. With error feedback Omega stays as it is in
    the long run; without, it depends on the data, and nobody can predict it.

    Args:
        share: k / d, of the values that are sent.
        error_feedback: Whether clients keep what they did not send.
    """

    def __init__(self, share: float = 0.1, error_feedback: bool = True) -> None:
        super().__init__(error_feedback)
        self.share = _checked_share(share)

    @override
    def compressed(self, rows: torch.Tensor, random: Random) -> torch.Tensor:
        return _only(rows, rows.abs().topk(_num_kept(self.share, rows.shape[1]), dim=1).indices)

    @override
    def num_bytes(self, num_values: int, num_bytes: float) -> float:
        return _num_kept(self.share, num_values) * (num_bytes / num_values + _INDEX_BYTES)


class RandomK(Compression):
    r"""Sends values at random places, which a seed tells the server.

    Without error feedback the values are scaled by d / k: unbiased, with variance
    :math:`(d/k - 1) \lVert\Delta\rVert^2`. With it they are sent as they are, and what is missing comes later. Either
    way Omega stays as it is.

    Args:
        share: k / d, of the values that are sent.
        error_feedback: Whether clients keep what they did not send.
    """

    unbiased = True

    def __init__(self, share: float = 0.1, error_feedback: bool = False) -> None:
        super().__init__(error_feedback)
        self.share = _checked_share(share)

    @override
    def compressed(self, rows: torch.Tensor, random: Random) -> torch.Tensor:
        kept = _num_kept(self.share, rows.shape[1])
        sent = _only(rows, random().topk(kept, dim=1).indices)
        return sent if self.error_feedback else sent * (rows.shape[1] / kept)

    @override
    def num_bytes(self, num_values: int, num_bytes: float) -> float:
        return _num_kept(self.share, num_values) * num_bytes / num_values + _SEED_BYTES


class Signs(Compression):
    r"""Sends one bit of each value, and their mean magnitude (EF-SignSGD, Karimireddy et al. 2019).

    .. math:: \hat\Delta = \frac{\lVert\Delta\rVert_1}{d} \operatorname{sign}(\Delta)

    With error feedback Omega stays as it is in the long run; without, it depends on the data.

    Args:
        error_feedback: Whether clients keep what they did not send.
    """

    def __init__(self, error_feedback: bool = True) -> None:
        super().__init__(error_feedback)

    @override
    def compressed(self, rows: torch.Tensor, random: Random) -> torch.Tensor:
        return rows.abs().mean(dim=1, keepdim=True) * rows.sign()

    @override
    def num_bytes(self, num_values: int, num_bytes: float) -> float:
        return num_values / 8 + _SCALE_BYTES


def _only(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return rows with zeros everywhere else."""
    return torch.zeros_like(rows).scatter(1, places, rows.gather(1, places))


def _checked_share(share: float) -> float:
    if not 0 < share <= 1:
        raise ValueError(f"share={share} must be above 0 and at most 1")
    return share


def _num_kept(share: float, num_values: int) -> int:
    """Return k, at least 1.

    >>> _num_kept(0.1, 25), _num_kept(0.01, 25)
    (2, 1)
    """
    return max(1, round(share * num_values))
