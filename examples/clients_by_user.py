"""Each user of the data is a client."""

import torch
from fl_lightning import ByColumn, FederatedLoop
from lightning.pytorch import LightningModule


class Tastes(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.layer(batch["film"]), batch["liked"])

    def test_step(self, batch, batch_idx):
        self.log("test_accuracy", (self.layer(batch["film"]).argmax(1) == batch["liked"]).float().mean())


films = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
ratings = [{"film": film, "liked": int(film.sum() > 0), "user_id": f"u{i % 7}"} for i, film in enumerate(films)]
table = torch.utils.data.Subset(ratings, range(len(ratings)))  # any data set with a length
loop = FederatedLoop(rounds=20, lr=0.5, batch_size=8)
result = loop.run(Tastes(), table, partition=ByColumn("user_id"), test=table)
print(result.summary)
