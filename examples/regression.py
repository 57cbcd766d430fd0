"""A regression with dict batches: the loop never looks inside a batch."""

import numpy as np
import torch
from fl_lightning import Algorithm, FederatedLoop, System
from fl_lightning.callbacks import HeterogeneitySchedule, Ramp, SamplerSelection
from fl_lightning.data import TensorFederation
from fl_lightning.samplers import HeterogeneityAware, Importance
from lightning.pytorch import LightningModule
from sklearn.datasets import load_diabetes
from torch import nn


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 1)

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.linear(batch["features"]).squeeze(1), batch["progression"])

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.training_step(batch, batch_idx))


def federation(num_clients=20):
    """Patients by age: each client has its own age group, so the wrong objective is a wrong model."""
    table = load_diabetes()
    target = (table.target - table.target.mean()) / table.target.std()
    data = {"features": torch.tensor(table.data * 20).float(), "progression": torch.tensor(target).float()}
    return TensorFederation(data, data, np.array_split(np.argsort(table.data[:, 0]), num_clients))


def main(sampler, rounds=300):
    losses = []
    loop = FederatedLoop(
        Algorithm(sampling=SamplerSelection(sampler, clients_per_round=6)),
        System(schedule=HeterogeneitySchedule(num_steps=Ramp(1, 20), failure_rates=Ramp(0.5, 0.0))),
        rounds=rounds,
        lr=0.002,
        batch_size=16,
    )
    loop.callbacks.append(
        type("Watch", (), {"on_round_end": lambda self, loop, result: losses.append(result.metrics)})()
    )
    torch.manual_seed(0)
    loop.run(Regression(), federation())
    return float(np.mean([row["test_loss"] for row in losses[-rounds // 3 :]]))


if __name__ == "__main__":
    print(f"mean squared error: FedAvg {main(Importance()):.3f}, FedACS {main(HeterogeneityAware()):.3f}")
