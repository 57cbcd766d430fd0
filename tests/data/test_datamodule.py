import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.data import IID, FromDataModule, OneClassPerClient, label_counts
from systems import gaussian_federation, linear_module, small_loop


class Points(LightningDataModule):
    """What a Lightning project has: a training set and a validation set."""

    def setup(self, stage):
        self.dataset = TensorDataset(*gaussian_federation().train)

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=7, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.dataset, batch_size=7)


def test_a_data_module_is_split_by_label():
    federation = FromDataModule(Points(), OneClassPerClient(6)).load(0)
    counts = label_counts(federation, 3)
    assert counts.sum() == 72
    assert ((counts > 0).sum(axis=1) == 1).all()


def test_a_data_module_trains():
    watched = []
    loop = small_loop(rounds=20, batch_size=8)
    loop.callbacks.append(
        type("Watch", (), {"on_round_end": lambda self, loop, result: watched.append(result.metrics)})()
    )
    loop.run(linear_module(), FromDataModule(Points(), IID(6)).load(0))
    assert watched[-1]["test_accuracy"] > 0.7


def test_without_labels_an_even_split_still_works():
    class Unlabelled(Points):
        def setup(self, stage):
            self.dataset = TensorDataset(torch.randn(10, 3), torch.randn(10, 1))

    assert np.sort(FromDataModule(Unlabelled(), IID(4)).load(0).sizes).tolist() == [2, 2, 3, 3]


def test_several_loaders_are_refused():
    class Many(Points):
        def train_dataloader(self):
            return [super().train_dataloader()]

    with pytest.raises(ValueError, match="one DataLoader"):
        FromDataModule(Many(), IID(4)).load(0)
