"""A data set of Hugging Face, here made in memory, split by its column ``label``."""

import datasets
import torch
from fl_lightning import Dirichlet, FederatedLoop
from lightning.pytorch import LightningModule


class Sentiment(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.EmbeddingBag(100, 8), torch.nn.Linear(8, 2))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch["input_ids"]), batch["label"])

    def test_step(self, batch, batch_idx):
        self.log("test_accuracy", (self.net(batch["input_ids"]).argmax(1) == batch["label"]).float().mean())


torch.manual_seed(0)
labels = torch.randint(0, 2, (400,))
words = torch.randint(0, 50, (400, 12)) + 50 * labels[:, None]
table = datasets.Dataset.from_dict({"input_ids": words.tolist(), "label": labels.tolist()}).with_format("torch")
loop = FederatedLoop(rounds=30, lr=1.0, batch_size=16)
result = loop.run(Sentiment(), table, partition=Dirichlet(num_clients=8, alpha=0.3), test=table)
print(result.summary)
