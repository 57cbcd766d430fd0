"""What samplers remember of the updates that arrived."""

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from fl_lightning.aggregators.aggregator import mean_gradients, row_norms
from fl_lightning.aggregators.client_rows import ClientRows
from fl_lightning.parts.memory import Remembers, State
from fl_lightning.types import IntVector, RoundResult, Vector, widened

_CHUNK = 1 << 16
# A norm counts as at least this share of the average one: what is old may be wrong, and a client that is hardly ever
# drawn would enter with a huge factor when it is.
_FLOOR = 0.1


def delivered_gradients(result: RoundResult) -> tuple[IntVector, torch.Tensor]:
    """Return the clients that arrived, (n,), and their mean gradients Delta / A, (n, d).

    The division takes the number of local steps out, so that a busy client does not look like a different one.
    """
    updates = result.updates
    arrived = result.delivered[updates.clients] > 0  # an aggregator may have trained others as well
    updates = updates if arrived.all() else updates.rows(np.flatnonzero(arrived))
    return updates.clients, mean_gradients(updates, result.plan.profiles)


class LastNorms(Remembers):
    """The norm of each client's mean gradient when it last arrived: M numbers."""

    memory = ("norms",)

    def __init__(self) -> None:
        self.norms: Vector = np.empty(0)  # NaN where nothing has arrived

    def observe(self, result: RoundResult) -> None:
        """Remember the norms of those that arrived."""
        if not len(self.norms):
            self.norms = np.full(result.plan.profiles.num_clients, np.nan)
        clients, rows = delivered_gradients(result)
        norms = row_norms(rows)
        finite = np.isfinite(norms)
        self.norms[clients[finite]] = norms[finite]

    def estimate(self, num_clients: int) -> Vector:
        """Return a positive norm for every client; one that has not arrived yet counts as average, (M,)."""
        known = self.norms[~np.isnan(self.norms)]
        average = float(known.mean()) if len(known) else 0.0
        if not average > 0:
            return np.ones(num_clients)
        return np.maximum(np.where(np.isnan(self.norms), average, self.norms), _FLOOR * average)


class LastUpdates(Remembers):
    """The last vector that arrived from each client, and all their inner products.

    Takes O(n d + n^2) memory for the n clients that ever arrived; asking for all products makes M^2 of them.
    """

    memory = ("rows", "pairs")

    def __init__(self) -> None:
        self.rows = ClientRows(0, torch.empty(0))  # until a model is known
        self.pairs: Vector = np.empty((0, 0))  # (n, n), in the order of the rows; n^2 d is too much for each round

    def __len__(self) -> int:
        """The number of clients, M; 0 before anything arrived."""
        return self.rows.num_clients

    @property
    def seen(self) -> npt.NDArray[np.bool_]:
        """Who has arrived, (M,)."""
        seen = np.zeros(len(self), dtype=bool)
        seen[self.rows.clients] = True
        return seen

    @property
    def products(self) -> Vector:
        """All inner products, 0 where one of the two never arrived, (M, M)."""
        products = np.zeros((len(self), len(self)))
        products[np.ix_(self.rows.clients, self.rows.clients)] = self.pairs
        return products

    def observe(self, result: RoundResult) -> None:
        """Remember the mean gradients of those that arrived."""
        self.store(result.plan.profiles.num_clients, *delivered_gradients(result))

    def store(self, num_clients: int, clients: IntVector, rows: torch.Tensor) -> None:
        """Remember new vectors of some clients."""
        if not len(clients):
            return
        if not len(self):
            self.rows = ClientRows(num_clients, rows[0])
        self.rows.put(clients, rows)
        order = np.argsort(self.rows.clients, kind="stable")
        places = order[np.searchsorted(self.rows.clients, clients, sorter=order)]
        pairs = np.zeros((len(self.rows), len(self.rows)))
        pairs[: len(self.pairs), : len(self.pairs)] = self.pairs
        pairs[places] = self._products_with_all(rows)
        pairs[:, places] = pairs[places].T
        self.pairs = pairs

    def _products_with_all(self, rows: torch.Tensor) -> Vector:
        """Return the inner products of some rows with all that are kept, in float64 over pieces of the columns."""
        found = []
        for _, block in self.rows.in_blocks():
            total = widened(rows.new_zeros(len(rows), len(block)))
            for own, others in zip(rows.split(_CHUNK, dim=1), block.split(_CHUNK, dim=1), strict=True):
                total += widened(own) @ others.to(total).T
            found.append(total.cpu().numpy())
        return np.concatenate(found, axis=1)

    @override
    def start_anew(self) -> None:
        self.rows = ClientRows(0, torch.empty(0))
        self.pairs = np.empty((0, 0))

    @override
    def load_state_dict(self, state: State) -> None:
        if isinstance(state.get("rows"), dict):
            kept = state["rows"]
            self.rows = ClientRows(int(kept["num_clients"]), kept["default"])
        self.pairs = np.empty((0, 0))
        super().load_state_dict(state)


def angles(products: Vector, seen: npt.NDArray[np.bool_]) -> Vector:
    """Return the angle between each pair of vectors from their inner products, (M, M).

    A pair of which one is unknown or zero counts as orthogonal: pi/2, neither alike nor opposed.

    >>> np.round(angles(np.array([[1.0, -2.0], [-2.0, 4.0]]), np.array([True, True])) / np.pi, 6).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    >>> np.round(angles(np.zeros((2, 2)), np.array([True, False])) / np.pi, 6).tolist()
    [[0.0, 0.5], [0.5, 0.0]]
    """
    norms = np.sqrt(np.diag(products))
    known = seen & (norms > 0)
    pairs = np.outer(known, known)
    cosines = np.divide(products, np.outer(norms, norms), out=np.zeros_like(products), where=pairs)
    result = np.arccos(np.clip(cosines, -1, 1))
    np.fill_diagonal(result, 0)
    return result


def distances(products: Vector) -> Vector:
    """Return the Euclidean distance of each pair of vectors from their inner products, (M, M).

    >>> distances(np.array([[9.0, 0.0], [0.0, 16.0]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    squares = np.diag(products)
    result = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0))
    np.fill_diagonal(result, 0)
    return result
