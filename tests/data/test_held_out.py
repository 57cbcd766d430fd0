"""What is held out for tuning: never trained on, never the test data, a function of the seed."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fl_lightning.data import (
    IID,
    DatasetFederation,
    Digits,
    OneClassPerClient,
    Quadratic,
    ValidationSplit,
    label_counts,
)
from fl_lightning.parts.bases import DataSource


def rows(images):
    return {image.numpy().tobytes() for image in images}


def test_training_validation_and_test_have_nothing_in_common():
    whole, part = Digits(OneClassPerClient(20)).load(3), ValidationSplit(Digits(OneClassPerClient(20)), 0.2).load(3)
    kept = set(part.order.tolist())
    held = set(whole.order.tolist()) - kept
    assert len(part.test[1]) == len(held) == sum(round(0.2 * size) for size in whole.sizes)
    order = [
        row
        for client in range(20)
        for row in whole.order[whole.offsets[client] : whole.offsets[client + 1]]
        if row in held
    ]
    assert torch.equal(part.test[1], whole.train[1][order])
    assert torch.equal(part.test[0], whole.train[0][order])
    assert not rows(part.test[0]) & rows(whole.test[0])
    assert np.array_equal((label_counts(part, 10) > 0), (label_counts(whole, 10) > 0))  # the partition stays


def test_it_is_a_function_of_the_seed():
    one, same, other = (ValidationSplit(Digits(IID(5)), 0.3).load(seed) for seed in (0, 0, 1))
    assert np.array_equal(one.order, same.order)
    assert not np.array_equal(one.order, other.order)


class Tables(DataSource):
    def load(self, seed):
        tables = [TensorDataset(torch.arange(size) + 100 * client) for client, size in enumerate((1, 10, 40))]
        return DatasetFederation(tables, tables[0])


def test_data_sets_are_split_and_a_client_keeps_an_example():
    part = ValidationSplit(Tables(), 0.5).load(0)
    assert part.sizes.tolist() == [1, 5, 20]
    held = torch.cat([batch[0] for batch in part.test_batches(7)])
    kept = torch.cat([part.batch(client, np.arange(size))[0] for client, size in enumerate(part.sizes)])
    assert sorted([*held.tolist(), *kept.tolist()]) == [0, *range(100, 110), *range(200, 240)]


@pytest.mark.parametrize("share", [0.0, 1.0, -1, float("nan")])
def test_a_share_is_a_share(share):
    with pytest.raises(ValueError, match="must be a share between 0 and 1"):
        ValidationSplit(Tables(), share)


def test_what_cannot_be_held_out_is_refused():
    with pytest.raises(ValueError, match="nothing can be held out of Quadratic"):
        ValidationSplit(Quadratic(), 0.1).load(0)
    with pytest.raises(ValueError, match="use a larger share"):
        ValidationSplit(Tables(), 0.01).load(0)
