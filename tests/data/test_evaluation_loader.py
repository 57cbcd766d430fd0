"""Evaluation takes its batches from the data module's own loader."""

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset, default_collate

from fl_lightning.data import IID, DatasetFederation, FromDataModule
from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule
from fl_lightning.server.averaging import NoAverage
from systems import gaussian_federation, small_loop


def augmented(examples):
    inputs, labels = default_collate(examples)
    return inputs + 100, labels


class Augmenting(LightningDataModule):
    """Augments in the collate function of training, and evaluates plainly in batches of 5."""

    def setup(self, stage):
        self.dataset = TensorDataset(*gaussian_federation().train)

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=7, shuffle=True, collate_fn=augmented)

    def val_dataloader(self):
        return DataLoader(self.dataset, batch_size=5)


class WithTestLoader(Augmenting):
    def test_dataloader(self):
        return DataLoader(TensorDataset(*(part[:8] for part in self.dataset.tensors)), batch_size=3)


class Watching(FederatedModule):
    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(5, 3), 3)
        self.trained, self.evaluated = [], []

    def training_step(self, batch, batch_idx):
        self.trained.append(float(batch[0].mean()))
        return super().training_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.evaluated.append((len(batch[0]), float(batch[0].mean())))
        super().test_step(batch, batch_idx)


def plain_loop(engine):
    return small_loop(rounds=1, engine=engine, averaging=NoAverage())  # or the average is evaluated as well


@pytest.mark.parametrize(("datamodule", "sizes"), [(Augmenting, [5] * 14 + [2]), (WithTestLoader, [3, 3, 2])])
def test_collate_function_and_batch_size_are_those_of_the_evaluation_loader(datamodule, sizes):
    module = Watching()
    plain_loop(Engine("sequential")).run(module, FromDataModule(datamodule(), IID(6)).load(0))
    assert [size for size, _ in module.evaluated] == sizes
    assert max(mean for _, mean in module.evaluated) < 50 < min(module.trained)


def test_plain_data_sets_keep_the_batch_size_of_the_engine():
    data = TensorDataset(*gaussian_federation().train)
    for test, sizes in ((data, [40, 32]), (DataLoader(data, batch_size=30), [30, 30, 12])):
        module = Watching()
        federation = DatasetFederation([data, data, data], test)
        plain_loop(Engine("sequential", test_batch_size=40)).run(module, federation)
        assert [size for size, _ in module.evaluated] == sizes
