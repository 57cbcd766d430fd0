"""FedLab: its standalone pipeline with the trainer and server it ships."""

import copy
from collections.abc import Callable

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, Subset, TensorDataset

from benchmarks.by_hand import evaluate
from benchmarks.workloads import Workload


class Clients:
    """The clients' data in the form FedLab asks for."""

    def __init__(self, workload: Workload) -> None:
        inputs, targets, self.test_inputs, self.test_targets = workload.data()
        data = TensorDataset(inputs, targets)
        self.parts = [Subset(data, indices.tolist()) for indices in workload.clients()]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader:
        return DataLoader(self.parts[client], batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    """Evaluates after each round and waits for the next one to be wanted."""

    def __init__(self, handler, trainer, workload: Workload, pause: Callable[[dict], bool]) -> None:
        super().__init__(handler, trainer)
        self.workload, self.pause = workload, pause

    def evaluate(self) -> None:
        data = self.trainer.dataset
        evaluate(self.workload, self.handler.model, data.test_inputs, data.test_targets)
        if not self.pause({}):
            self.handler.global_round = 0


def run(workload: Workload, pause: Callable[[dict], bool]) -> None:
    """Play rounds until ``pause`` returns False."""
    torch.manual_seed(0)
    model = workload.network()
    trainer = SGDSerialClientTrainer(copy.deepcopy(model), workload.num_clients)
    trainer.setup_dataset(Clients(workload))
    trainer.setup_optim(workload.epochs, workload.batch_size, workload.learning_rate)
    trainer.criterion = workload.loss
    handler = SyncServerHandler(model, 1_000_000, workload.clients_per_round / workload.num_clients)
    if pause({}):
        Pipeline(handler, trainer, workload, pause).main()
