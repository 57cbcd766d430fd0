"""A regression: the loss is the headline metric, its rate falls over the rounds, and a low loss ends the run."""

import torch
from fl_lightning import IID, Algorithm, CosineRate, FederatedLoop, StopAtTarget
from lightning.pytorch import LightningModule
from sklearn.datasets import load_diabetes
from torch.utils.data import TensorDataset


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(10, 1)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.layer(batch[0]).squeeze(1), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.training_step(batch, batch_idx))


features, target = (torch.tensor(values).float() for values in load_diabetes(return_X_y=True))
patients = TensorDataset(features * 20, (target - target.mean()) / target.std())
settings = {"monitor": "test_loss", "mode": "min", "callbacks": [StopAtTarget(0.5)]}
loop = FederatedLoop(Algorithm(lr_schedule=CosineRate()), rounds=60, lr=0.02, batch_size=16, **settings)
result = loop.run(Regression(), patients, partition=IID(num_clients=10), test=patients)
print(result.summary)
