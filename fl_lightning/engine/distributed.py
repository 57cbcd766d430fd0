"""Sharing the clients of a round among processes."""

import heapq
from collections.abc import Callable

import numpy as np
import torch
from lightning.fabric import Fabric

from fl_lightning.types import IntVector


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


def shared(
    fabric: Fabric, work: IntVector, compute: Callable[[IntVector], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """Compute columns (one row for each client) in shares and return them whole in every process, in the given order.

    Rows are only moved, never added up, so the result is bit for bit that of one process.

    Args:
        fabric: Knows the processes.
        work: Expected work of each client, (n,).
        compute: Returns the columns of the clients at the given positions.
    """
    if fabric.world_size == 1:
        return compute(np.arange(len(work)))
    shares = share(work, fabric.world_size)
    mine = compute(shares[fabric.global_rank])
    longest = max(map(len, shares))
    return tuple(_gathered(fabric, column, shares, longest) for column in mine)


def _gathered(fabric: Fabric, column: torch.Tensor, shares: list[IntVector], longest: int) -> torch.Tensor:
    whole = column.new_empty((sum(map(len, shares)), *column.shape[1:]))
    if not whole.numel():
        return whole
    padded = column.new_zeros((longest, *column.shape[1:]))
    padded[: len(column)] = column
    everybody = fabric.all_gather(padded)
    for rank, positions in enumerate(shares):
        whole[torch.from_numpy(positions)] = everybody[rank][: len(positions)]
    return whole
