"""What may be handed to ``run`` as data."""

import logging

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.data import IID, DatasetFederation, Digits, Dirichlet, OneClassPerClient
from fl_lightning.data.given import as_federation
from made import made_loop
from systems import gaussian_federation, linear_module

WHOLE = gaussian_federation()
TABLE = TensorDataset(*WHOLE.train)
CLIENTS = [TensorDataset(*WHOLE.batch(client, np.arange(12))) for client in range(6)]


class Points(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TABLE)

    val_dataloader = train_dataloader


def run(data, **arguments):
    return made_loop(rounds=3, lr=0.1, batch_size=4).run(linear_module(), data, **arguments)


def test_a_list_of_data_sets_is_a_federation():
    assert torch.allclose(run(CLIENTS, test=TABLE).weights, run(WHOLE).weights, atol=1e-6)


def test_an_unloaded_source_is_loaded_with_the_seed_of_the_loop():
    assert as_federation(Digits(IID(5)), seed=3).order.tolist() == Digits(IID(5)).load(3).order.tolist()


def test_a_data_module_and_a_data_set_are_split_by_the_partition():
    split = OneClassPerClient(3)
    first, second = run(Points(), partition=split), run(TABLE, partition=split, test=TABLE)
    assert torch.equal(first.weights, second.weights)
    assert first.history.column("test_accuracy") == second.history.column("test_accuracy")


def test_without_test_data_nothing_is_evaluated_and_it_is_said(caplog):
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        result = run(CLIENTS)
    assert any("no test data is given" in record.message for record in caplog.records)
    assert not any("test_accuracy" in row for row in result.history)
    assert torch.equal(result.weights, run(CLIENTS, test=TABLE).weights)


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (Points(), {}, "Points returns one loader, so it must be said how clients share it"),
        (Points(), {"partition": IID(3), "test": TABLE}, "test= is of no use with a data module"),
        (TABLE, {}, "give partition= to say how clients share a TensorDataset"),
        (WHOLE, {"partition": IID(3)}, "partition= is of no use with a federation"),
        (DatasetFederation(CLIENTS, TABLE), {"test": TABLE}, "test= is of no use with a federation"),
        (Digits(IID(3)), {"partition": IID(3)}, "partition= is of no use with Digits"),
        (CLIENTS, {"partition": Dirichlet(2, alpha=1.0)}, "of no use with a list"),
    ],
)
def test_what_would_be_ignored_or_is_missing_is_refused(data, arguments, message):
    with pytest.raises(ValueError, match=message):
        as_federation(data, 0, **arguments)


@pytest.mark.parametrize("data", [{"train": 3}, [], [1, 2], torch.zeros(3), None, WHOLE.train])
def test_what_is_no_data_is_refused(data):
    with pytest.raises(TypeError, match=r"cannot train on a|one data set per client"):
        as_federation(data, 0)
