"""A LightningModule and a LightningDataModule of yours, federated by FedACS."""

import torch
from fl_lightning import Dirichlet, FederatedLoop, algorithm
from lightning.pytorch import LightningDataModule, LightningModule
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_accuracy", (self.layer(batch[0]).argmax(1) == batch[1]).float().mean())


pixels, labels = (torch.tensor(values) for values in load_digits(return_X_y=True))
digits = TensorDataset(pixels.float() / 16, labels)
loop = FederatedLoop(algorithm("fedacs", clients_per_round=0.3), rounds=20, lr=0.1, monitor="val_accuracy")
data = LightningDataModule.from_datasets(digits, digits)
result = loop.run(Classifier(), data, partition=Dirichlet(num_clients=20, alpha=0.5))
print(result.summary)
