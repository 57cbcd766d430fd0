import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fl_lightning.data import DatasetFederation, TensorFederation, label_counts

X = torch.arange(24.0).view(12, 2)
Y = torch.arange(12) % 3


@given(st.data())
def test_batch_gathers_the_clients_own_examples(data):
    owners = np.array(data.draw(st.lists(st.integers(0, 2), min_size=12, max_size=12)))
    clients = [np.flatnonzero(owners == m) for m in range(3)]
    federation = TensorFederation((X, Y), (X, Y), clients)
    clients = [client for client in clients if len(client)]  # those without an example are left out
    client = data.draw(st.integers(0, len(clients) - 1))
    picks = np.array(data.draw(st.lists(st.integers(0, len(clients[client]) - 1), max_size=5)), dtype=np.int64)
    inputs, targets = federation.batch(client, picks)
    rows = clients[client][picks]
    np.testing.assert_array_equal(inputs.numpy(), X.numpy()[rows])
    np.testing.assert_array_equal(targets.numpy(), Y.numpy()[rows])
    assert federation.sizes.tolist() == [len(c) for c in clients]


def test_structure_of_the_batch_is_the_structure_of_train():
    train = {"image": X, "more": [Y, (X + 1,)]}
    batch = TensorFederation(train, train, [[3], [5, 7]]).batch(1, np.array([1]))
    assert batch["image"].tolist() == [[14.0, 15.0]]
    assert batch["more"][0].tolist() == [1]
    assert batch["more"][1][0].tolist() == [[15.0, 16.0]]


@pytest.mark.parametrize("batch_size", [1, 5, 12, 100])
def test_test_batches_cover_the_test_data_in_order(batch_size):
    tensors = TensorFederation((X, Y), (X, Y), [[0]])
    datasets = DatasetFederation([TensorDataset(X, Y)], TensorDataset(X, Y))
    for federation in (tensors, datasets):
        batches = list(federation.test_batches(batch_size))
        assert all(len(y) == batch_size for _, y in batches[:-1])
        assert torch.equal(torch.cat([x for x, _ in batches]), X)
        assert torch.equal(torch.cat([y for _, y in batches]), Y)


def test_dataset_federation_gives_the_same_batches_and_counts():
    clients = [[0, 4, 8], [1, 2, 3, 9]]
    tensors = TensorFederation((X, Y), (X, Y), clients)
    datasets = DatasetFederation([TensorDataset(X[c], Y[c]) for c in clients], TensorDataset(X, Y))
    picks = np.array([2, 0, 2])
    for mine, theirs in zip(tensors.batch(1, picks), datasets.batch(1, picks), strict=True):
        assert torch.equal(mine, theirs)
    np.testing.assert_array_equal(label_counts(tensors, 4), label_counts(datasets, 4))
    assert label_counts(tensors, 4).tolist() == [[1, 1, 1, 0], [2, 1, 1, 0]]
    assert datasets.sizes.tolist() == [3, 4]
    assert datasets.num_clients == tensors.num_clients == 2


def test_empty_clients_are_named():
    with pytest.raises(ValueError, match=r"2 of 2 clients have no training example \(0, 1\)"):
        TensorFederation((X, Y), (X, Y), [[], []])
    with pytest.raises(ValueError, match="at least one client"):
        TensorFederation((X, Y), (X, Y), [])
    with pytest.raises(ValueError, match=r"\(0\)"):
        DatasetFederation([TensorDataset(X[:0])], TensorDataset(X))


@pytest.mark.parametrize("clients", [[[0], [12]], [[-1], [3]]])
def test_indices_outside_the_data_are_refused(clients):
    with pytest.raises(ValueError, match=r"0\.\.11"):
        TensorFederation((X, Y), (X, Y), clients)


@pytest.mark.parametrize("indices", [[2], [-1]])
def test_a_batch_never_reaches_into_another_client(indices):
    for federation in (
        TensorFederation((X, Y), (X, Y), [[0, 1], [2, 3]]),
        DatasetFederation([TensorDataset(X[:2]), TensorDataset(X[2:4])], TensorDataset(X)),
    ):
        with pytest.raises(IndexError, match="client 0 has 2 examples"):
            federation.batch(0, np.array(indices))


@pytest.mark.parametrize("train", [(X, Y[:5]), (X, "label"), (), torch.tensor(1.0)])
def test_train_must_be_tensors_of_one_length(train):
    with pytest.raises(ValueError, match="train"):
        TensorFederation(train, (X, Y), [[0]])


def test_label_counts_refuses_labels_it_cannot_count():
    with pytest.raises(ValueError, match=r"0\.\.1, got 0\.\.2"):
        label_counts(TensorFederation((X, Y), (X, Y), [range(12)]), 2)
    with pytest.raises(ValueError, match="got 0 such"):
        label_counts(TensorFederation(X, X, [[0]]), 2)


def test_many_clients_are_cheap():
    labels = torch.arange(200_000) % 10
    start = time.perf_counter()
    federation = TensorFederation((labels,), (labels,), np.arange(200_000).reshape(100_000, 2))
    counts = label_counts(federation, 10)
    assert time.perf_counter() - start < 3
    assert counts.sum() == 200_000
    assert federation.order.nbytes + federation.offsets.nbytes < 3_000_000


def test_sizes_cannot_be_changed_from_outside():
    federation = TensorFederation((X, Y), (X, Y), [[0, 1], [2]])
    federation.sizes[0] = 99
    assert federation.sizes.tolist() == [2, 1]
