"""FLGo: its runner with the FedAvg it ships, on a benchmark made from a config; drops come from its simulator."""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import flgo
import flgo.algorithm.fedavg
import numpy as np
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from flgo.benchmark.toolkits.partition import IIDPartitioner
from flgo.experiment.logger import BasicLogger
from flgo.simulator import BasicSimulator

from benchmarks.by_hand import evaluate
from benchmarks.workloads import WORKLOADS, Workload

_CONFIG = """from torch.utils.data import TensorDataset
from benchmarks.peers.flgo_peer import WORKLOAD
inputs, targets, test_inputs, test_targets = WORKLOAD.data()
train_data, test_data = TensorDataset(inputs, targets), TensorDataset(test_inputs, test_targets)
def get_model():
    return WORKLOAD.network()
"""
WORKLOAD: Workload = WORKLOADS["W2"]  # what the config of the benchmark looks at


class Losses(BasicSimulator):
    """Half the clients drop out with probability 0.4 to 0.5."""

    def initialize(self) -> None:
        lossy = np.arange(len(self.all_clients)) < len(self.all_clients) // 2
        rates = np.where(lossy, np.random.default_rng(0).uniform(0.4, 0.5, len(lossy)), 0.0)
        self.set_variable(self.all_clients, "prob_drop", rates.tolist())


def run(workload: Workload, pause: Callable[[dict], bool]) -> None:
    """Play rounds until ``pause`` returns False."""
    global WORKLOAD
    WORKLOAD = workload
    _, _, test_inputs, test_targets = workload.data()
    going = [True]

    class Pace(BasicLogger):
        """Evaluates after each round and waits for the next one to be wanted."""

        def log_once(self, *args: object) -> None:
            evaluate(workload, self.coordinator.model, test_inputs, test_targets)
            going[0] = pause({})

    sys.argv = sys.argv[:1]  # FLGo parses them
    # torch 2.13 refuses FLGo's subset, which has no way to fetch several examples at once.
    FromDatasetPipe.TaskDataset.__getitems__ = lambda self, indices: [self[index] for index in indices]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        Path("config.py").write_text(_CONFIG)
        flgo.gen_benchmark_from_file("made", "config.py", data_type="cv", task_type="classification")
        made = importlib.import_module("made")
        made.visualize = None  # a picture of the labels, which takes minutes
        flgo.gen_task_by_(made, IIDPartitioner(workload.num_clients), "task")
        options = {
            "num_rounds": 10**6,
            "num_steps": workload.num_steps,
            "batch_size": float(workload.batch_size),
            "learning_rate": workload.learning_rate,
            "proportion": workload.clients_per_round / workload.num_clients,
            "sample": "uniform",
            "train_holdout": 0.0,
            "torch_num_threads": int(os.environ["OMP_NUM_THREADS"]),
            "no_log_console": True,
        }
        simulator = Losses if workload.lossy_half else flgo.simulator.DefaultSimulator
        runner = flgo.init("task", flgo.algorithm.fedavg, options, Logger=Pace, Simulator=simulator)
        runner.register_exit_condition(lambda server: not going[0])
        runner.run()
