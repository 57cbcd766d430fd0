"""pfl-research: federated averaging on its simulated backend."""

from collections.abc import Callable

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.by_hand import evaluate
from benchmarks.workloads import Workload


class Module(torch.nn.Module):
    """The network with the two methods pfl asks for."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.network, self.criterion = workload.network(), workload.loss

    def forward(self, inputs):
        return self.network(inputs)

    def loss(self, inputs, targets, eval=False):
        self.train(not eval)
        return self.criterion(self(inputs), targets)

    def metrics(self, inputs, targets, eval=True):
        return {"loss": Weighted(self.loss(inputs, targets, eval).item() * len(targets), len(targets))}


class Pace(TrainingProcessCallback):
    """Evaluates after each round and waits for the next one to be wanted."""

    def __init__(self, workload: Workload, test: tuple, pause: Callable[[dict], bool]) -> None:
        self.workload, self.test, self.pause = workload, test, pause

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        evaluate(self.workload, model.pytorch_model, *self.test)
        return not self.pause({}), Metrics()


def run(workload: Workload, pause: Callable[[dict], bool]) -> None:
    """Play rounds until ``pause`` returns False."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  pfl draws from the global stream
    inputs, targets, *test = workload.data()
    module = Module(workload)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    clients = [torch.from_numpy(indices) for indices in workload.clients()]

    def make(user: int) -> Dataset:
        order = clients[user][torch.randperm(len(clients[user]))]
        return Dataset((inputs[order], targets[order]))

    def users() -> FederatedDataset:
        return FederatedDataset(make, get_user_sampler("minimize_reuse", list(range(workload.num_clients))))

    if pause({}):
        FederatedAveraging().run(
            NNAlgorithmParams(1_000_000, 1_000_000, workload.clients_per_round, 0),
            SimulatedBackend(users(), users()),
            model,
            NNTrainHyperParams(
                local_batch_size=workload.batch_size,
                local_num_epochs=workload.epochs,
                local_learning_rate=workload.learning_rate,
            ),
            NNEvalHyperParams(local_batch_size=1000),
            callbacks=[Pace(workload, tuple(test), pause)],
        )
