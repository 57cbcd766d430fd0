"""Sharing the clients of a round among processes."""

import heapq

import numpy as np
import torch
from lightning.fabric import Fabric

from fl_lightning.parts.protocols import LocalWork, Trains
from fl_lightning.types import IntVector, ModelState, Updates, Vector


def share(work: IntVector, world_size: int) -> list[IntVector]:
    """Return for each process the positions it takes, ascending: longest first, each to whoever has least so far.

    Args:
        work: Expected work of each client, as its number of local steps, (n,).
        world_size: Number of processes.

    >>> [positions.tolist() for positions in share(np.array([5, 1, 1, 3]), 2)]
    [[0], [1, 2, 3]]
    """
    if world_size < 1:
        raise ValueError(f"world_size={world_size} must be at least 1")
    taken: list[list[int]] = [[] for _ in range(world_size)]
    loads = [(0, rank) for rank in range(world_size)]
    for position in np.argsort(-work, kind="stable").tolist():
        load, rank = heapq.heappop(loads)
        taken[rank].append(position)
        heapq.heappush(loads, (load + int(work[position]), rank))
    return [np.sort(np.array(positions, dtype=np.int64)) for positions in taken]


class AmongProcesses:
    """Shares the clients of a round among processes, each of which trains its share in the way it is given.

    Rows are only moved, never added up, so the result is bit for bit that of one process.

    Args:
        fabric: Knows the processes.
        way: How a process trains its share.
    """

    def __init__(self, fabric: Fabric, way: Trains) -> None:
        self.fabric, self.way = fabric, way

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back, in the given order."""
        num_steps = work.num_steps[clients]
        shares = share(num_steps, self.fabric.world_size)
        mine = self.way.train(state, clients[self._mine(shares)], work)
        losses = self._gathered(torch.from_numpy(mine.losses), shares)
        return Updates(
            clients=clients,
            deltas=self._gathered(mine.deltas, shares),
            buffers=self._gathered(mine.buffers, shares),
            num_steps=num_steps,
            losses=losses.numpy(),
        )

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client, (n,)."""
        shares = self._even_shares(clients)
        mine = self.way.losses(state, clients[self._mine(shares)], round_index)
        losses: Vector = self._gathered(torch.from_numpy(mine), shares).numpy()
        return losses

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client at the global model, (n, d)."""
        shares = self._even_shares(clients)
        return self._gathered(self.way.gradients(state, clients[self._mine(shares)], round_index), shares)

    def _even_shares(self, clients: IntVector) -> list[IntVector]:
        return share(np.ones(len(clients), dtype=np.int64), self.fabric.world_size)

    def _mine(self, shares: list[IntVector]) -> IntVector:
        return shares[self.fabric.global_rank]

    def _gathered(self, column: torch.Tensor, shares: list[IntVector]) -> torch.Tensor:
        """Return the whole column in every process, given this process's share of it."""
        whole = column.new_empty((sum(map(len, shares)), *column.shape[1:]))
        if not whole.numel():
            return whole
        padded = column.new_zeros((max(map(len, shares)), *column.shape[1:]))
        padded[: len(column)] = column
        everybody = self.fabric.all_gather(padded)
        for rank, positions in enumerate(shares):
            whole[torch.from_numpy(positions)] = everybody[rank][: len(positions)]
        return whole
