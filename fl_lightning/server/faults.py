"""Updates that must not reach the model: not finite, of the wrong shape, or longer than any honest one."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from fl_lightning.theory.checks import one_of
from fl_lightning.types import Fault, IntVector, ModelState, Received, Updates, Vector, widened

_LOG = logging.getLogger("fl_lightning")
OnBadUpdate = Literal["reject", "stop"]
_MOST_TIMES = 1e15  # the length of the model that an update may have
_ENOUGH = 3  # updates of which a median says what is usual


class FaultPolicy:
    """Decides what becomes of a round in which a client sends nonsense.

    A rejected update counts as lost: its client takes no part in the aggregate, and samplers learn nothing from it.
    In a private run it counts as one of zeros that arrived: what is learned about links must not depend on it.

    Args:
        on_bad_update: ``reject``: throw the update away, count it, say so once for each client. ``stop``: end the run.
        exploding_loss: Report a client whose mean training loss is above this or not finite.
        max_norm_ratio: An update that is longer per local step than this times the median of its round is bad, too, for
            a single one could overflow a memory of updates; None: no such limit. A private run has its clip instead:
            who is rejected must not depend on what others send. Whatever this is, an update is bad whose length
            overflows, or is above 1e15 times that of the model.
    """

    def __init__(
        self,
        on_bad_update: OnBadUpdate = "reject",
        exploding_loss: float = 1e6,
        max_norm_ratio: float | None = 1e6,
    ) -> None:
        one_of("on_bad_update", on_bad_update, OnBadUpdate)
        if max_norm_ratio is not None and not max_norm_ratio > 1:
            raise ValueError(f"max_norm_ratio={max_norm_ratio} must be above 1, or left out")
        self.max_norm_ratio = max_norm_ratio
        if not exploding_loss > 0:
            raise ValueError(f"exploding_loss={exploding_loss} must be positive")
        self.on_bad_update, self.exploding_loss = on_bad_update, exploding_loss
        self._warned: set[tuple[str, int]] = set()

    def __call__(self, received: Received, state: ModelState, private: bool = False) -> Received:
        """Return what is sound of a round; who sent nonsense counts as lost, or in a private run as one who sent 0."""
        round_index, updates = received.plan.index, received.updates
        reasons = bad_rows(updates, state, None if private else self.max_norm_ratio)
        self._report_losses(round_index, updates, reasons)
        if not reasons:
            return received
        faults = tuple(Fault(round_index, int(updates.clients[row]), reason) for row, reason in reasons.items())
        if self.on_bad_update == "stop":
            raise ValueError(f"{describe(faults[0])}; on_bad_update=reject would continue without it")
        for fault in faults:
            self._warn("rejected", fault.client, f"{describe(fault)}: rejected, as are later ones, see summary.json")
        if private:
            return replace(received, updates=with_zeros(updates, list(reasons), state), faults=faults)
        sound = updates.rows(np.setdiff1d(np.arange(len(updates.clients)), list(reasons)))
        delivered = without_absent(received.delivered, updates.clients, sound)
        return replace(received, updates=sound, delivered=delivered, faults=faults)

    def check_aggregate(self, round_index: int, updates: Updates, state: ModelState) -> None:
        """Stop a run whose model is no longer finite though every update was: no later round could repair it."""
        if bool(torch.isfinite(state.weights).all()) and bool(torch.isfinite(state.buffers).all()):
            return
        largest = ""
        if len(updates):
            client = int(updates.clients[int(widened(updates.deltas).norm(dim=1).argmax())])
            largest = f"; client {client} sent the largest update"
        raise ValueError(
            f"round {round_index}: the model is no longer finite after aggregation{largest}: lower loop.lr"
        )

    def _report_losses(self, round_index: int, updates: Updates, reasons: dict[int, str]) -> None:
        if updates.total is not None:
            return  # nobody knows a client's own loss
        for row in np.flatnonzero(~(updates.losses <= self.exploding_loss)).tolist():
            if row not in reasons and row < len(updates.clients):
                client, loss = int(updates.clients[row]), updates.losses[row]
                self._warn("loss", client, f"round {round_index}: the loss of client {client} explodes: {loss:g}")

    def _warn(self, kind: str, client: int, text: str) -> None:
        """Warn once for each client: one that is broken is broken in every round."""
        if (kind, client) not in self._warned:
            self._warned.add((kind, client))
            _LOG.warning(text)


def describe(fault: Fault) -> str:
    """Return a fault as the beginning of a sentence.

    >>> describe(Fault(3, 7, "is not finite (training loss nan)"))
    'round 3: the update of client 7 is not finite (training loss nan)'
    """
    return f"round {fault.round_index}: the update of client {fault.client} {fault.reason}"


def finite_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return which rows hold finite numbers only, (n,).

    A sum is finite only if all its terms are, unless it overflows, so one pass without a mask settles most rows.

    >>> finite_rows(torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [3e38, 3e38]])).tolist()
    [True, False, True]
    """
    finite = torch.isfinite(rows.sum(dim=1))
    for row in torch.nonzero(~finite).flatten().tolist():
        finite[row] = torch.isfinite(rows[row]).all()
    return finite


def bad_rows(updates: Updates, state: ModelState, max_ratio: float | None = None) -> dict[int, str]:
    """Return the rows that must not be used, with the reason for each.

    ``max_ratio`` is over the median length per local step of the round's other rows; None: no such limit.
    """
    num_rows = len(updates.clients)
    for name, got, like in (("weights", updates.deltas, state.weights), ("buffers", updates.buffers, state.buffers)):
        if tuple(got.shape) != (num_rows, len(like)):
            reason = f"has {name} of shape {tuple(got.shape[1:])} instead of {tuple(like.shape)}"
            return dict.fromkeys(range(num_rows), reason)
    if not num_rows:
        return {}
    norms = torch.linalg.vector_norm(updates.deltas, dim=1).cpu().double().numpy()
    longest = _MOST_TIMES * max(1.0, float(torch.linalg.vector_norm(state.weights)))
    absurd = np.flatnonzero(~(norms <= longest)).tolist()  # also where it is NaN
    broken = {row for row in absurd if not bool(torch.isfinite(updates.deltas[row]).all())}
    if updates.buffers.shape[1]:
        broken.update(torch.nonzero(~finite_rows(updates.buffers)).flatten().tolist())
    found = {row: f"is not finite (training loss {updates.losses[row]:g})" for row in sorted(broken)}
    found |= {row: f"is {norms[row]:.3g} long" for row in absurd if row not in broken}
    return found if max_ratio is None else found | _unusually_long(norms, updates.num_steps, max_ratio, found)


def _unusually_long(norms: Vector, num_steps: IntVector, max_ratio: float, known: Mapping[int, str]) -> dict[int, str]:
    """Return the rows that are much longer per local step than is usual, among those that are not known to be bad."""
    others = np.setdiff1d(np.arange(len(norms)), [*known]) if known else np.arange(len(norms))
    if len(others) < _ENOUGH:
        return {}
    paces = norms / np.maximum(1, num_steps)
    usual = float(np.median(paces[others]))
    unusual = others[paces[others] > max_ratio * usual].tolist() if usual > 0 else []
    return {row: f"is {paces[row] / usual:.3g} times as long per step as is usual in this round" for row in unusual}


def with_zeros(updates: Updates, rows: list[int], state: ModelState) -> Updates:
    """Return the updates with zeros for some rows, whose clients seem to have moved nothing."""
    if len(rows) == len(updates.clients):  # also where the shapes are wrong
        deltas = state.weights.new_zeros(len(rows), len(state.weights))
        return replace(updates, deltas=deltas, buffers=state.buffers.expand(len(rows), -1).clone())
    deltas, buffers = updates.deltas.clone(), updates.buffers.clone()
    deltas[rows], buffers[rows] = 0.0, state.buffers
    return replace(updates, deltas=deltas, buffers=buffers)


def zeroed(rows: torch.Tensor) -> torch.Tensor:
    """Return rows with zeros for those that are not finite or overflow: they teach a sampler nothing."""
    bad = ~(finite_rows(rows) & torch.isfinite(torch.linalg.vector_norm(rows, dim=1)))
    return torch.where(bad[:, None], torch.zeros_like(rows), rows) if bool(bad.any()) else rows


def without_absent(delivered: IntVector, asked: IntVector, updates: Updates) -> IntVector:
    """Return how many of each client's draws arrived, none of a client that was asked and sent nothing, (M,).

    Where the clients are simulated, all who are asked answer, and nothing changes.

    >>> import torch
    >>> none, one = torch.empty(1, 0), np.array([2])
    >>> updates = Updates(clients=one, deltas=none, buffers=none, num_steps=one, losses=np.zeros(1))
    >>> without_absent(np.array([0, 1, 3]), np.array([1, 2]), updates).tolist()
    [0, 0, 3]
    """
    absent = np.setdiff1d(asked, updates.clients)
    if not len(absent):
        return delivered
    counted = delivered.copy()
    counted[absent] = 0
    return counted
