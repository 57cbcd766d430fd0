"""The workloads: how many clients, how much data, which network; the same for everybody who is measured."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fl_lightning.networks import CharGRU, CifarCNN


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A federation of made-up data; time does not depend on what is in it."""

    name: str
    num_clients: int  # M
    clients_per_round: int  # K, distinct clients
    examples: int  # of each client
    num_steps: int  # T
    batch_size: int
    num_test: int
    shape: tuple[int, ...]
    network: Callable[[], nn.Module]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    num_classes: int = 10  # 0: the target is a number
    num_codes: int = 0  # inputs are codes of characters, and so is the target of each; 0: numbers
    lossy_half: bool = False  # half the clients lose an upload with probability 0.4 to 0.5
    learning_rate: float = 0.01

    @property
    def epochs(self) -> int:
        """The local steps as passes over the data, for those who count in passes."""
        return self.num_steps // -(-self.examples // self.batch_size)

    def data(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return training inputs and targets and test inputs and targets."""
        rng = torch.Generator().manual_seed(0)
        total = min(self.num_clients * self.examples, 50_000)
        parts = []
        for count in (total, self.num_test):
            if self.num_codes:
                parts += [torch.randint(0, self.num_codes, (count, *self.shape), generator=rng) for _ in range(2)]
                continue
            parts.append(torch.randn(count, *self.shape, generator=rng))
            targets = torch.randint(0, max(2, self.num_classes), (count,), generator=rng)
            parts.append(targets if self.num_classes else targets.float()[:, None])
        return tuple(parts)

    def clients(self) -> list[np.ndarray]:
        """Return which training examples each client has."""
        total = min(self.num_clients * self.examples, 50_000)
        places = np.arange(self.num_clients * self.examples) % total
        return np.split(places, self.num_clients)


W1 = Workload(
    name="W1",
    num_clients=20,
    clients_per_round=6,
    examples=2500,
    num_steps=15,
    batch_size=512,
    num_test=10_000,
    shape=(3, 32, 32),
    network=CifarCNN,
    loss=functional.cross_entropy,
)
W1_LOSSY = replace(W1, name="W1, half the clients lossy", lossy_half=True)
W2 = replace(
    W1, name="W2", num_clients=1000, clients_per_round=100, examples=50, num_steps=5, batch_size=10, num_test=1000
)
W3 = replace(
    W2,
    name="W3",
    num_clients=10_000,
    clients_per_round=1000,
    shape=(10,),
    network=lambda: nn.Linear(10, 1),
    loss=functional.mse_loss,
    num_classes=0,
)
W4 = replace(
    W1,
    name="W4",
    num_clients=438,
    clients_per_round=10,
    examples=80,
    num_steps=5,
    batch_size=16,
    num_test=1000,
    shape=(80,),
    network=CharGRU,
    num_classes=80,
    num_codes=80,
)

WORKLOADS = {"W1": W1, "W1q": W1_LOSSY, "W2": W2, "W3": W3, "W4": W4}


def quick(workload: Workload) -> Workload:
    """Return a smaller cohort of the same kind: times shrink, ratios stay about the same."""
    if workload.network is CifarCNN and workload.batch_size > 100:
        return replace(workload, num_steps=2, num_test=1300)
    if workload.network is CifarCNN:
        return replace(workload, clients_per_round=30, num_test=300)
    return workload
