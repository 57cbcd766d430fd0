"""The loop a researcher writes by hand in plain PyTorch. It is the yardstick, so nothing here is clever or clumsy."""

import copy
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.workloads import Workload


class ByHand:
    """FedAvg: copy the model, train it on each client with SGD, average the state dicts, evaluate."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.inputs, self.targets, self.test_inputs, self.test_targets = workload.data()
        self.clients = [torch.from_numpy(indices) for indices in workload.clients()]
        torch.manual_seed(0)
        self.model = workload.network()
        self.rng = np.random.default_rng(0)

    def round(self) -> None:
        """Do one round."""
        chosen = self.rng.choice(len(self.clients), self.workload.clients_per_round, replace=False)
        states = []
        for client in chosen:
            local = copy.deepcopy(self.model)
            self.train(local, self.clients[client])
            states.append(local.state_dict())
        average = {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}
        self.model.load_state_dict(average)
        self.evaluate()

    def train(self, model: torch.nn.Module, examples: torch.Tensor) -> None:
        """Take the client's local steps on batches sliced from tensors: a DataLoader would be slower."""
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=self.workload.learning_rate)
        step, size = 0, self.workload.batch_size
        while step < self.workload.num_steps:
            order = examples[torch.randperm(len(examples))]
            for first in range(0, len(order) - size + 1, size):
                batch = order[first : first + size]
                optimizer.zero_grad()
                self.workload.loss(model(self.inputs[batch]), self.targets[batch]).backward()
                optimizer.step()
                step += 1
                if step == self.workload.num_steps:
                    break

    def evaluate(self) -> float:
        """Return the loss on the test data."""
        return evaluate(self.workload, self.model, self.test_inputs, self.test_targets)


def evaluate(workload: Workload, model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the loss on the test data."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for first in range(0, len(inputs), 1000):
            part = targets[first : first + 1000]
            outputs = model(inputs[first : first + 1000])
            total += workload.loss(outputs, part).item() * len(part)
            if workload.num_classes:
                (outputs.argmax(dim=1) == part).sum().item()
    return total / len(inputs)


def run(workload: Workload, pause: Callable[[dict[str, float]], bool]) -> None:
    """Play rounds until ``pause`` returns False."""
    loop = ByHand(workload)
    go_on = pause({})
    while go_on:
        loop.round()
        go_on = pause({})
