"""A run that ``test_processes_of_engine.py`` plays in one process and in two; not a test itself."""

import random
import sys

from made import made_loop, made_work

import fl_lightning  # noqa: F401  isort: skip  before Lightning: see fl_lightning/_torchvision.py
import numpy as np
import torch
from lightning.fabric import Fabric
from torch import nn
from torchmetrics import SumMetric

from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data.federation import DatasetFederation, TensorFederation
from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule
from fl_lightning.networks import DigitsNet
from fl_lightning.personal import PulledModels
from fl_lightning.samplers import Importance
from fl_lightning.solvers import NotTrueDistillation


class Augmented(torch.utils.data.TensorDataset):
    """Draws from all generators of the process, as augmentations do."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + torch.rand(()) + np.random.rand() + random.random(), label  # noqa: NPY002


class Counting(FederatedModule):
    """Counts its test examples by a metric that is added up over processes where a Trainer splits the data."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self.number = SumMetric()

    def test_step(self, batch, batch_idx):
        super().test_step(batch, batch_idx)
        self.number.update(len(batch[0]))
        self.log("test_number", self.number)


def network(mode: str) -> nn.Module:
    if mode in ("stacked", "augmented"):
        return DigitsNet()
    convolution = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(convolution, nn.Linear(72, 10))


def played(mode: str, fabric: Fabric) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    module = Counting(network(mode))
    x, y = torch.randn(90, 1, 8, 8), torch.randint(0, 10, (90,))
    parts = np.split(np.random.default_rng(0).permutation(90), [4, 20, 28, 36, 44, 60, 68])
    loop = made_loop(
        rounds=3,
        lr=0.05,
        schedule=HeterogeneitySchedule(groups=[Group(1.0, (1, 6), 0.3)]),
        sampling=SamplerSelection(Importance(), 5),
        channel=ChannelFailures(),
        engine=Engine({"local": "sequential", "augmented": "auto"}.get(mode, mode), threads=1),
        personal=PulledModels() if mode in ("stacked", "sequential") else None,
        solver=NotTrueDistillation() if mode == "augmented" else None,
        local_parameters=["network.0.1.*", "network.1.bias"] if mode == "local" else [],
        batch_size=8,
        fabric=fabric,
    )
    federation = TensorFederation((x, y), (x[:20], y[:20]), parts)
    if mode == "augmented":
        federation = DatasetFederation([Augmented(x[part], y[part]) for part in parts], Augmented(x[:20], y[:20]))
    results = [result.metrics for result in loop.iterate(module, federation)]
    state = loop.state
    clients = np.array([0, 2, 3, 7])
    work = made_work(4, np.arange(1, 9), 0.05)
    updates = loop.engine.work(state, clients, work)
    own = {"weights": {}, "buffers": {}} if loop.local_parts is None else loop.local_parts.state_dict()
    return {
        **{f"own weights {client}": values for client, values in own["weights"].items()},
        **{f"own buffers {client}": values for client, values in own["buffers"].items()},
        **{f"own model {client}": loop.personalised(client).weights for client in range(len(parts))},
        "weights": state.weights,
        "test_losses": torch.tensor([metrics["test_loss"] for metrics in results]),
        "test_numbers": torch.tensor([metrics["test_number"] for metrics in results]),
        "buffers": state.buffers,
        "deltas": updates.deltas,
        "update_buffers": updates.buffers,
        "update_losses": torch.from_numpy(updates.losses),
        "losses": torch.from_numpy(loop.engine.losses(state, clients, 4)),
        "gradients": loop.engine.gradients(state, clients, 4),
        "nobody": loop.engine.work(state, np.array([], dtype=np.int64), work).deltas,
    }


def main(devices: int, path: str) -> None:
    fabric = Fabric(accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto")
    fabric.launch()
    result = {mode: played(mode, fabric) for mode in ("stacked", "sequential", "local", "augmented")}
    torch.save(result, f"{path}/{devices}_{fabric.global_rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
