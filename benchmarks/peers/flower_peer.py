"""Flower: its simulation engine, with one core for each client and as many side by side as there are cores."""

import os
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import ray
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, Subset, TensorDataset

from benchmarks.by_hand import evaluate
from benchmarks.workloads import WORKLOADS, Workload, quick


@cache
def parts(name: str, small: bool) -> tuple[Workload, list[Subset]]:
    """Return a workload and its clients' data, made once in each process."""
    workload = quick(WORKLOADS[name]) if small else WORKLOADS[name]
    inputs, targets, _, _ = workload.data()
    data = TensorDataset(inputs, targets)
    return workload, [Subset(data, indices.tolist()) for indices in workload.clients()]


def get_weights(model: torch.nn.Module) -> list:
    return [value.numpy() for value in model.state_dict().values()]


def set_weights(model: torch.nn.Module, weights: list) -> None:
    names = model.state_dict()
    values = (torch.from_numpy(value.copy()) for value in weights)
    model.load_state_dict(OrderedDict(zip(names, values, strict=True)))


class Client(NumPyClient):
    def __init__(self, workload: Workload, data: Subset) -> None:
        self.workload, self.data = workload, data

    def fit(self, parameters, config):
        model = self.workload.network()
        set_weights(model, parameters)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.workload.learning_rate)
        for _ in range(self.workload.epochs):
            for inputs, targets in DataLoader(self.data, batch_size=self.workload.batch_size, shuffle=True):
                optimizer.zero_grad()
                self.workload.loss(model(inputs), targets).backward()
                optimizer.step()
        return get_weights(model), len(self.data), {}


def cpu_seconds() -> float:
    """Return the CPU-seconds of this process and all it started: Flower's workers are processes (Linux)."""
    parents, seconds = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        process = int(stat.parent.name)
        parents[process], seconds[process] = (
            int(fields[1]),
            (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        )
    family, found = {os.getpid()}, True
    while found:
        found = {process for process, parent in parents.items() if parent in family} - family
        family |= found
    return sum(seconds[process] for process in family)


def run(workload: Workload, pause: Callable[[dict], bool]) -> None:
    """Play rounds until ``pause`` returns False."""
    name = next(key for key, value in WORKLOADS.items() if value.name == workload.name)
    small = workload != WORKLOADS[name]
    cores = torch.get_num_threads()

    def client_fn(context: Context):
        torch.set_num_threads(1)
        its, data = parts(name, small)
        return Client(its, data[int(context.node_config["partition-id"])]).to_client()

    spent = [0.0]
    model = workload.network()
    _, _, *test = workload.data()

    def evaluate_fn(server_round, parameters, config):
        set_weights(model, parameters)
        evaluate(workload, model, *test)
        if not pause({"cpu": cpu_seconds() - spent[0]}):
            ray.shutdown()
            os._exit(0)  # Flower has no way to end a run early
        spent[0] = cpu_seconds()

    def server_fn(context: Context) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_fit=workload.clients_per_round / workload.num_clients,
            fraction_evaluate=0.0,
            min_fit_clients=workload.clients_per_round,
            min_available_clients=workload.num_clients,
            initial_parameters=ndarrays_to_parameters(get_weights(model)),
            evaluate_fn=evaluate_fn,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1_000_000))

    run_simulation(
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=client_fn),
        num_supernodes=workload.num_clients,
        backend_config={
            "init_args": {"num_cpus": cores},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
