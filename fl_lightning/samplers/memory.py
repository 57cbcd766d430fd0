"""What samplers remember of the updates that arrived."""

import numpy as np
import numpy.typing as npt
import torch

from fl_lightning.memory import Remembers
from fl_lightning.types import IntVector, RoundResult, Vector

_CHUNK = 1 << 16


def delivered_gradients(result: RoundResult) -> tuple[IntVector, torch.Tensor]:
    """Return the clients that were heard, (n,), and their mean gradients Delta / A, (n, d).

    The division takes the number of local steps out, so that a busy client does not look like a different one.
    """
    updates = result.updates
    heard = result.delivered[updates.clients] > 0  # an aggregator may have trained others as well
    clients = updates.clients[heard]
    accumulation = torch.from_numpy(result.plan.profiles.accumulation[clients]).to(updates.deltas)
    rows = updates.deltas if heard.all() else updates.deltas[torch.from_numpy(heard)]
    return clients, rows / accumulation[:, None]


def row_norms(rows: torch.Tensor) -> Vector:
    """Return the Euclidean norm of each row in float64, (n,).

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [5.0, 0.0]
    """
    norms: Vector = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu().numpy()
    return norms


class LastNorms(Remembers):
    """The norm of each client's mean gradient when it was last heard: M numbers.

    Args:
        floor: A norm counts as at least this share of the average one: what is old may be wrong, and a client that is
            hardly ever drawn would enter with a huge factor when it is.
    """

    memory = ("norms",)

    def __init__(self, floor: float = 0.1) -> None:
        self.floor = floor
        self.norms: Vector = np.empty(0)  # NaN where nothing was heard

    def observe(self, result: RoundResult) -> None:
        """Remember the norms of those that were heard."""
        if not len(self.norms):
            self.norms = np.full(result.plan.profiles.num_clients, np.nan)
        clients, rows = delivered_gradients(result)
        norms = row_norms(rows)
        finite = np.isfinite(norms)
        self.norms = self.norms.copy()
        self.norms[clients[finite]] = norms[finite]

    def estimate(self, num_clients: int) -> Vector:
        """Return a positive norm for every client; one that was not heard yet counts as average, (M,)."""
        known = self.norms[~np.isnan(self.norms)]
        average = float(known.mean()) if len(known) else 0.0
        if not average > 0:
            return np.ones(num_clients)
        return np.maximum(np.where(np.isnan(self.norms), average, self.norms), self.floor * average)


class LastUpdates(Remembers):
    """The last vector that was heard from each client, and all their inner products: O(M d + M^2) memory."""

    memory = ("rows", "seen", "products")

    def __init__(self) -> None:
        self.rows = torch.empty(0, 0)  # (M, d)
        self.seen: npt.NDArray[np.bool_] = np.empty(0, dtype=bool)  # (M,)
        self.products: Vector = np.empty((0, 0))  # (M, M); kept, because M^2 d is too much to repeat in each round

    def __len__(self) -> int:
        return len(self.seen)

    def store(self, num_clients: int, clients: IntVector, rows: torch.Tensor) -> None:
        """Remember new vectors of some clients."""
        if not len(clients):
            return
        if not len(self):
            self.rows = rows.new_zeros((num_clients, rows.shape[1]))
            self.seen = np.zeros(num_clients, dtype=bool)
            self.products = np.zeros((num_clients, num_clients))
        self.rows = self.rows.to(rows.device)
        self.rows[torch.from_numpy(clients)] = rows
        self.seen[clients] = True
        products = self._products_with_all(clients)
        self.products[clients] = products
        self.products[:, clients] = products.T

    def _products_with_all(self, clients: IntVector) -> Vector:
        """Return the inner products of some rows with all rows, summed in float64 over pieces of the columns."""
        total = torch.zeros(len(clients), len(self), dtype=torch.float64, device=self.rows.device)
        for columns in self.rows.split(_CHUNK, dim=1):
            wide = columns.double()
            total += wide[torch.from_numpy(clients)] @ wide.T
        products: Vector = total.cpu().numpy()
        return products


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
