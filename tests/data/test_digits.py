import numpy as np
import pytest
import torch

from fl_lightning.data import IID, Digits, OneClassPerClient, label_counts, mnist


def test_the_bundled_digits_are_those_of_scikit_learn():
    images, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    with np.load(mnist._DIGITS) as stored:
        assert np.array_equal(stored["pixels"].reshape(-1, 64), images)
        assert np.array_equal(stored["labels"], labels)
    assert tuple(np.bincount(labels)) == mnist._DIGITS_SIZES


def test_digits_are_all_there_scaled_and_split_by_class():
    federation = Digits(IID(20)).load(0)
    (train, train_labels), (test, test_labels) = federation.train, federation.test
    assert train.shape[1:] == (1, 8, 8)
    assert train.dtype == torch.float32
    assert train_labels.dtype == torch.int64
    assert len(train) + len(test) == 1797
    assert (float(train.min()), float(train.max())) == (0.0, 1.0)
    everything = np.concatenate([train.numpy(), test.numpy()]).reshape(1797, 64)
    source = np.load(mnist._DIGITS)["pixels"].reshape(1797, 64) / 16
    assert np.array_equal(everything[np.lexsort(everything.T)], source[np.lexsort(source.T)])
    shares = np.bincount(test_labels) / np.bincount(torch.cat([train_labels, test_labels]))
    np.testing.assert_allclose(shares, 0.2, atol=0.005)


def test_the_test_set_is_the_same_under_every_seed_and_the_partition_is_not():
    first, other = Digits(IID(20)).load(0), Digits(IID(20)).load(1)
    assert torch.equal(first.test[0], other.test[0])
    assert not np.array_equal(first.order, other.order)
    assert np.array_equal(first.order, Digits(IID(20)).load(0).order)


def test_one_class_per_client():
    counts = label_counts(Digits(OneClassPerClient(20)).load(0), 10)
    assert np.array_equal(counts.argmax(axis=1), np.arange(20) // 2)
    assert (np.count_nonzero(counts, axis=1) == 1).all()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fraction_is_checked(fraction):
    with pytest.raises(ValueError, match="test_fraction"):
        Digits(IID(2), fraction)
