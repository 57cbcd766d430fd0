"""Federate a LightningModule and a LightningDataModule that know nothing of federated learning."""

import torch
from fl_lightning import Algorithm, FederatedLoop, System
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, RoundProgress, SamplerSelection
from fl_lightning.data import Dirichlet, FromDataModule
from fl_lightning.samplers import HeterogeneityAware
from lightning.pytorch import LightningDataModule, LightningModule
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Classifier(LightningModule):  # yours
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Digits(LightningDataModule):  # yours
    def setup(self, stage):
        digits = load_digits()
        data = TensorDataset(torch.tensor(digits.data / 16).float(), torch.tensor(digits.target))
        self.train, self.val = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=256)


def main(rounds=60):
    federation = FromDataModule(Digits(), Dirichlet(num_clients=20, alpha=0.5)).load(seed=0)
    slow, fast = Group(0.5, num_steps=(1, 10), failure_rates=(0.4, 0.5)), Group(0.5, (20, 30), (0.0, 0.1))
    accuracy = []
    loop = FederatedLoop(
        Algorithm(sampling=SamplerSelection(HeterogeneityAware(), clients_per_round=0.3)),
        System(schedule=HeterogeneitySchedule(groups=[slow, fast]), channel=ChannelFailures()),
        rounds=rounds,
        lr=0.1,
        batch_size=32,
        callbacks=[RoundProgress("val_accuracy"), Remember(accuracy)],
    )
    torch.manual_seed(0)
    loop.run(Classifier(), federation)
    return accuracy[-1]


class Remember:
    def __init__(self, into):
        self.into = into

    def on_round_end(self, loop, result):
        self.into.append(result.metrics["val_accuracy"])


if __name__ == "__main__":
    print(f"validation accuracy {main():.3f}")
