"""A module with Adam and a cosine schedule of its own: both are made anew for each client and round."""

import torch
from fl_lightning import Digits, Dirichlet, FederatedLoop, algorithm
from lightning.pytorch import LightningModule


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("test_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)]


loop = FederatedLoop(algorithm("fedavg", solver="module"), rounds=20, lr=None)
result = loop.run(Classifier(), Digits(Dirichlet(num_clients=10, alpha=1.0)))
print(result.summary)
