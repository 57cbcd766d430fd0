"""Sizes that are foretold are those of the real split."""

import numpy as np
import pytest

from fl_lightning.data import (
    IID,
    MNIST,
    Digits,
    Dirichlet,
    FromHub,
    GivenIndices,
    OneClassPerClient,
    Shards,
    label_counts,
)
from fl_lightning.data.partitions import expected_sizes


@pytest.mark.parametrize(
    "partition", [OneClassPerClient(20), OneClassPerClient(20, "random"), Dirichlet(12, 0.3), Shards(8)]
)
@pytest.mark.parametrize("seed", [0, 7])
def test_foretold_sizes_are_the_real_ones(partition, seed):
    data = Digits(partition)
    sizes, counts = expected_sizes(data, seed)
    federation = data.load(seed)
    np.testing.assert_array_equal(sizes, federation.sizes)
    if counts is not None:
        np.testing.assert_array_equal(counts, label_counts(federation, 10))
    assert counts is not None or isinstance(partition, Shards)


def test_what_depends_on_the_order_of_the_examples_is_not_foretold():
    sizes, counts = expected_sizes(Digits(IID(7)), 0)
    np.testing.assert_array_equal(sizes, Digits(IID(7)).load(0).sizes)
    assert counts is None
    sizes, counts = expected_sizes(Digits(GivenIndices([[0, 1], [700, 800, 900]])), 0)
    assert sizes.tolist() == [2, 3]
    assert counts is None


def test_unknown_data_is_left_to_be_loaded():
    class Own:
        def load(self, seed):
            raise AssertionError

    assert expected_sizes(Own(), 0) == (None, None)


@pytest.mark.parametrize("num_clients", [None, 5])
def test_a_number_of_clients_says_nothing_of_their_sizes(num_clients):
    assert expected_sizes(FromHub("set", "user", "x", "y", num_clients=num_clients), 0) == (None, None)


@pytest.mark.realdata
def test_mnist():
    data = MNIST(Dirichlet(20, 0.1))
    np.testing.assert_array_equal(expected_sizes(data, 1)[0], data.load(1).sizes)
