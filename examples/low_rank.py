"""Low-rank adaptation: the large layer is frozen, so that only two thin matrices are trained and sent."""

import torch
from fl_lightning import Digits, Dirichlet, FederatedLoop, algorithm
from lightning.pytorch import LightningModule


class Adapted(LightningModule):
    def __init__(self, rank=4):
        super().__init__()
        self.base = torch.nn.Linear(64, 10).requires_grad_(False)
        self.down, self.up = torch.nn.Linear(64, rank, bias=False), torch.nn.Linear(rank, 10, bias=False)

    def forward(self, images):
        flat = images.flatten(1)
        return self.base(flat) + self.up(self.down(flat))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("test_accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())


loop = FederatedLoop(algorithm("fedacs", clients_per_round=0.5), rounds=30, lr=0.2)
result = loop.run(Adapted(), Digits(Dirichlet(num_clients=10, alpha=1.0)))
