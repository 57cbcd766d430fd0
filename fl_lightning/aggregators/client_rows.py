"""One vector for each client that arrived: memory that grows with who arrives and not with M."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from typing_extensions import override

from fl_lightning.parts.memory import Remembers, State
from fl_lightning.theory.checks import one_of
from fl_lightning.types import IntVector, Vector, widened

Precision = Literal["full", "bfloat16"]
_BLOCK_VALUES = 1 << 22  # of a block of rows: 16 MB in float32
_RENEW_AFTER = 32  # replaced rows for each row there is, before the sum is made anew


@dataclass(frozen=True, kw_only=True)
class RowStorage:
    """Where and how exactly the vectors of clients are kept.

    Args:
        precision: ``full``: as the weights of the model. ``bfloat16``: half of the memory of float32; each value is
            rounded to 8 significant bits, a relative error of at most 2^-8 (0.4 %). Sums are those of what is kept.
        folder: Keep the vectors in a file in this folder, mapped into memory, instead of in RAM. The file has no name
            and is gone with the process; checkpoints hold what is in it.
    """

    precision: Precision = "full"
    folder: str | None = None

    def __post_init__(self) -> None:
        one_of("precision", self.precision, Precision)
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ValueError(f"folder={self.folder!r} of the clients' vectors is not there: make it, or leave it out")


class ClientRows(Remembers):
    """Keeps one vector for each client; those never put are the default one and take no room.

    Rows are kept in blocks in the order in which the clients came, so that nothing is moved when one comes. Reading or
    putting n rows costs O(n d), whatever M is.

    Args:
        num_clients: M.
        like: A vector of the same length, type and device; usually the weights.
        storage: Where and how exactly rows are kept.

    >>> rows = ClientRows(1_000_000, torch.zeros(2))
    >>> rows.put(np.array([7, 3]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])).shape
    torch.Size([2, 2])
    >>> rows[np.array([3, 5])].tolist(), len(rows)
    ([[3.0, 4.0], [0.0, 0.0]], 2)
    """

    def __init__(self, num_clients: int, like: torch.Tensor, storage: RowStorage | None = None) -> None:
        self.num_clients, self.storage = num_clients, storage or RowStorage()
        self._like = like.detach().new_zeros(0)
        self._default = torch.zeros_like(like.detach())
        self._dtype = torch.bfloat16 if self.storage.precision == "bfloat16" else like.dtype
        self._block_rows = max(1, min(num_clients, _BLOCK_VALUES // max(1, len(like))))
        self._clear()

    def _clear(self) -> None:
        self._filled = bool(self._default.any())
        self._blocks: list[torch.Tensor] = []
        self._slots = np.full(self.num_clients, -1, dtype=np.int64)  # where a client's row is; -1: nowhere
        self._clients = np.empty(0, dtype=np.int64)  # whose row is in which place
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        """How many clients have a row of their own."""
        return len(self._clients)

    def __contains__(self, client: int) -> bool:
        return bool(self._slots[client] >= 0)

    @property
    def clients(self) -> IntVector:
        """Who has a row of their own, in the order in which they came."""
        return self._clients.copy()

    @property
    def rounds_values(self) -> bool:
        """Whether what is kept differs from what was put."""
        return self._dtype != self._like.dtype

    def are_zeros(self, clients: IntVector) -> bool:
        """Whether none of some clients has ever come, and rows of those who did not are zeros: nothing need be read."""
        return not self._filled and not (self._slots[clients] >= 0).any()

    def __getitem__(self, clients: IntVector) -> torch.Tensor:
        """Return a copy of the rows of some clients, (n, d)."""
        slots = self._slots[clients]
        rows = self._default.expand(len(slots), -1).clone()
        for block, places, members in self._touched(slots):
            rows[members] = block[places].to(rows)
        return rows

    def of(self, client: int) -> torch.Tensor:
        """Return the row of one client, (d,), not to be changed."""
        slot = int(self._slots[client])
        if slot < 0:
            return self._default
        return self._blocks[slot // self._block_rows][slot % self._block_rows].to(self._like)

    def put(self, clients: IntVector, rows: torch.Tensor) -> torch.Tensor:
        """Replace the rows of some clients, each named once, and return them as they are kept, (n, d)."""
        new = clients[self._slots[clients] < 0]
        self._slots[new] = len(self) + np.arange(len(new))
        self._clients = np.concatenate([self._clients, new])
        while len(self._blocks) * self._block_rows < len(self):
            self._blocks.append(self._block())
        for block, places, members in self._touched(self._slots[clients]):
            block[places] = rows[members].to(block)
        return rows.to(self._dtype).to(self._like.dtype) if self.rounds_values else rows

    def fill(self, row: torch.Tensor) -> None:
        """Give all clients the same row."""
        self._default = row.detach().clone()
        self._clear()

    def dense(self) -> torch.Tensor:
        """Return the rows of all clients, (M, d)."""
        return self[np.arange(self.num_clients)]

    def _touched(self, slots: IntVector) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield each block that holds some of the slots, the places in it, and which of the slots they are."""
        numbers = np.where(slots < 0, -1, slots // self._block_rows)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            members = np.flatnonzero(numbers == number)
            block = self._blocks[number]
            places = torch.from_numpy(slots[members] % self._block_rows).to(block.device)
            yield block, places, torch.from_numpy(members).to(self._like.device)

    def _block(self) -> torch.Tensor:
        shape = (self._block_rows, len(self._default))
        if self.storage.folder is None:
            return torch.empty(shape, dtype=self._dtype, device=self._like.device)
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.storage.folder)  # noqa: SIM115  open as long as the rows
        # numpy has no bfloat16: the bytes are mapped, and torch is given what they are.
        length = shape[0] * shape[1] * self._dtype.itemsize
        first = len(self._blocks) * length  # the file is made as long as it must be
        mapped = np.memmap(self._file, dtype=np.uint8, mode="r+", offset=first, shape=(length,))
        return torch.from_numpy(mapped).view(self._dtype).view(shape)

    def in_blocks(self) -> Iterator[tuple[IntVector, torch.Tensor]]:
        """Yield the clients and rows of each block, as they are kept."""
        for number, block in enumerate(self._blocks):
            clients = self._clients[number * self._block_rows : (number + 1) * self._block_rows]
            yield clients, block[: len(clients)]

    @override
    def start_anew(self) -> None:
        self.fill(torch.zeros_like(self._default))

    @override
    def state_dict(self) -> State:
        parts = [rows for _, rows in self.in_blocks()]
        empty = torch.empty((0, len(self._default)), dtype=self._dtype)
        return {
            "num_clients": self.num_clients,
            "clients": torch.from_numpy(self._clients.copy()),
            "rows": torch.cat(parts) if parts else empty,
            "default": self._default.clone(),
        }

    @override
    def load_state_dict(self, state: State) -> None:
        shape = (int(state["num_clients"]), int(state["rows"].shape[1]))
        wanted = (self.num_clients, len(self._default))
        if shape != wanted:
            raise ValueError(
                f"the checkpoint does not fit: it remembers {shape[0]} clients with {shape[1]} values each, but "
                f"{wanted[0]} with {wanted[1]} are wanted: resume with the same clients and the same model"
            )
        self.fill(state["default"].to(self._like))
        clients = state["clients"].cpu().numpy()
        for first in range(0, len(clients), self._block_rows):
            some = slice(first, first + self._block_rows)
            self.put(clients[some], state["rows"][some].to(self._like))


class SummedRows(ClientRows):
    r"""Keeps the rows of clients and, in double precision, their weighted sum.

    .. math:: S = \sum_m w_m y_m, \qquad S \leftarrow S + \sum_{m\ \mathrm{put}} w_m (y_m^+ - y_m)

    So a round costs O(K d) instead of O(M d). The sum is made anew from all rows each time 32 rows were replaced for
    each row that there is; this depends on nothing but what was put, and the sum is part of a checkpoint, so that a
    resumed run has the same bits.

    >>> rows, weights = SummedRows(4, torch.zeros(1)), np.full(4, 0.25)
    >>> rows.replace(np.array([0, 2]), torch.tensor([[4.0], [8.0]]), weights)
    >>> rows.replace(np.array([2]), torch.tensor([[12.0]]), weights)
    >>> rows.total(weights)
    tensor([4.])
    """

    @override
    def _clear(self) -> None:
        super()._clear()
        self._total = widened(self._default)
        self._weights: Vector | None = None  # of the sum; unknown after a checkpoint, whose run has the same
        self._replaced = 0  # rows since the sum was last made anew

    def replace(self, clients: IntVector, rows: torch.Tensor, weights: Vector) -> None:
        """Replace the rows of some clients, and what they are in the sum."""
        self._weigh(weights)
        before = None if self.are_zeros(clients) else self[clients]
        change = widened(self.put(clients, rows))
        if before is not None:
            change = change - widened(before)
        self._total = self._total + torch.from_numpy(weights[clients]).to(self._total) @ change
        self._replaced += len(clients)
        if self._replaced > _RENEW_AFTER * len(self):
            self._renew(weights)

    def total(self, weights: Vector) -> torch.Tensor:
        """Return the sum of all rows, (d,)."""
        self._weigh(weights)
        return self._total.to(self._like)

    def _weigh(self, weights: Vector) -> None:
        if self._weights is not None and weights is not self._weights and not np.array_equal(weights, self._weights):
            self._renew(weights)
        self._weights = weights

    def _renew(self, weights: Vector) -> None:
        total = torch.zeros_like(self._total)
        for clients, rows in self.in_blocks():
            for some in np.array_split(np.arange(len(clients)), -(-len(clients) // 256)):  # in double: not all at once
                shares = torch.from_numpy(weights[clients[some]]).to(total)
                total += shares @ rows[some[0] : some[-1] + 1].to(total)
        self._total, self._replaced = total, 0

    @override
    def state_dict(self) -> State:
        return super().state_dict() | {"total": self._total.clone(), "replaced": self._replaced}

    @override
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._total = state["total"].to(self._total)
        self._replaced = int(state["replaced"])
