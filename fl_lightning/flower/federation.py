"""Data that is not here: the server's view of the nodes' data, and a node's view of its own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fl_lightning.flower.roster import Roster
from fl_lightning.parts.bases import DataSource
from fl_lightning.parts.protocols import Federation
from fl_lightning.types import IntVector, RoundPlan


class NodesFederation:
    """What the server knows: how much data each client has, and the test data, which is its own.

    Args:
        own: The server's data; its first client's examples are what a module is tried on.
        sizes: Number of training examples of each client, as the nodes tell, (M,).
    """

    def __init__(self, own: Federation, sizes: IntVector) -> None:
        self._own, self._sizes = own, sizes
        self.test = getattr(own, "test", own)
        self.datamodule = getattr(own, "datamodule", None)

    @property
    def sizes(self) -> IntVector:
        """Number of training examples of each client, (M,)."""
        return self._sizes.copy()

    def batch(self, client: int, indices: IntVector) -> Any:
        """Return examples of the server's own: those of the clients stay where they are."""
        return self._own.batch(0, indices % int(self._own.sizes[0]))

    def test_batches(self, batch_size: int) -> Iterator[Any]:
        """Yield the test data in batches as ``test_step`` takes them."""
        return self._own.test_batches(batch_size)

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return what the server's data knows of the global weights."""
        return self._own.measure(weights, plan)


class NodesData(DataSource):
    """A data source that waits for the nodes.

    Args:
        own: The server's data.
        roster: Knows the nodes.
        timeout: Seconds to wait for all of them.
    """

    def __init__(self, own: DataSource, roster: Roster, timeout: float) -> None:
        self._own, self._roster, self._timeout = own, roster, timeout

    def load(self, seed: int) -> NodesFederation:
        """Load the server's data and meet the nodes."""
        return NodesFederation(self._own.load(seed), self._roster.meet(self._timeout))


class OwnData:
    """The data of one client, under its number in the federation: random streams are functions of the number.

    Every number up to the client's own stands for the same data, so that an engine finds nobody without any.

    Args:
        federation: Where the data is: of several clients, or of this one alone.
        client: Its number.
    """

    def __init__(self, federation: Federation, client: int) -> None:
        sizes = np.asarray(federation.sizes)
        if len(sizes) > 1 and client >= len(sizes):
            raise ValueError(
                f"client={client} is not among the {len(sizes)} clients of the data: give --client a number below it, "
                "or data of this client alone"
            )
        self._federation, self._place = federation, client if len(sizes) > 1 else 0
        self.client, self.size = client, int(sizes[self._place])
        self.datamodule = getattr(federation, "datamodule", None)
        data: Any = federation
        if all(hasattr(data, name) for name in ("train", "order", "offsets")):  # one set of tensors, from which
            first = int(data.offsets[self._place])  # an engine gathers by itself
            self.train, self.order = data.train, data.order[first : first + self.size]
            self.offsets = np.zeros(client + 2, dtype=np.int64)
        elif hasattr(data, "tensors"):  # or one of each client
            self.tensors = lambda client: data.tensors(self._place)

    @property
    def sizes(self) -> IntVector:
        """Number of training examples under each number up to the client's own."""
        return np.full(self.client + 1, self.size, dtype=np.int64)

    def batch(self, client: int, indices: IntVector) -> Any:
        """Return some of the client's examples."""
        return self._federation.batch(self._place, indices)

    def test_batches(self, batch_size: int) -> Iterator[Any]:
        """Yield nothing: the server evaluates."""
        return iter(())

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return nothing."""
        return {}
