"""The toy problem of the paper: quadratic losses with known optima."""

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from fl_lightning.data.federation import TensorFederation
from fl_lightning.data.partitions import at_least_one
from fl_lightning.parts.bases import DataSource
from fl_lightning.seeding import Purpose, generator
from fl_lightning.types import RoundPlan, Vector


class QuadraticFederation(TensorFederation):
    """Client ``m`` has the loss ``|x - E_m|^2 / 2``, so the optimum of any weights ``w`` is ``sum_m w_m E_m``.

    A batch is the client's single example ``E_m`` as a tensor (1, d); the test data is the mean of all ``E_m``.

    Args:
        targets: E, one row for each client, (M, d).

    >>> QuadraticFederation(np.eye(3)).batch(1, np.array([0]))
    tensor([[0., 1., 0.]])
    """

    def __init__(self, targets: npt.ArrayLike) -> None:
        self.targets: Vector = np.asarray(targets, dtype=np.float64)
        if self.targets.ndim != 2 or 0 in self.targets.shape:
            raise ValueError(f"targets must have one row for each client, got shape {self.targets.shape}")
        train = torch.from_numpy(self.targets).to(torch.float32)
        test = torch.from_numpy(self.targets.mean(axis=0, keepdims=True)).to(torch.float32)
        super().__init__(train, test, list(np.arange(len(train))[:, None]))

    @override
    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return how far the global model is from the optimum of w and from the predicted one of Omega."""
        point = weights.detach().cpu().to(torch.float64).numpy()  # numpy does not know bfloat16
        return {
            "distance": float(np.linalg.norm(point - plan.profiles.weights @ self.targets)),
            "surrogate_distance": float(np.linalg.norm(point - plan.effective_weights @ self.targets)),
        }


class Quadratic(DataSource):
    """The paper's toy: ``E_m ~ N(0, I)``.

    Args:
        num_clients: M.
        dimension: d.
    """

    def __init__(self, num_clients: int = 30, dimension: int = 10) -> None:
        self.num_clients = at_least_one("num_clients", num_clients)
        self.dimension = at_least_one("dimension", dimension)
        self.client_sizes = np.ones(self.num_clients, dtype=np.int64)

    def load(self, seed: int) -> QuadraticFederation:
        """Draw the clients' targets."""
        return QuadraticFederation(generator(seed, Purpose.DATA).standard_normal((self.num_clients, self.dimension)))
