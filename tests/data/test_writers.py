import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from fl_lightning.data import Images, Writers, writers
from fl_lightning.data.archives import PinnedFile
from fl_lightning.data.writers import writer_ids

IDS = np.array([7, 3, 7, 9, 3, 7])


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Serve six digits and their writers where torchvision's addresses would."""
    rows = np.zeros((len(IDS), 8), dtype=">i4")
    rows[:, 2] = IDS
    packed = gzip.compress(bytes(12) + rows.tobytes())
    name = "qmnist-train-labels-idx2-int.gz"
    (tmp_path / name).write_bytes(packed)
    address = ((tmp_path / name).as_uri(), hashlib.md5(packed).hexdigest())
    monkeypatch.setattr(datasets.QMNIST, "resources", {"train": [("http://127.0.0.1:9/images.gz", ""), address]})
    file = PinnedFile(name=name, num_bytes=len(packed), digest=hashlib.sha256(packed).hexdigest())
    monkeypatch.setattr(writers, "_IDS", {"train": file})
    images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1).expand(6, 1, 28, 28)
    labels = torch.arange(6)
    whole = Images(train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    monkeypatch.setattr(writers, "load_mnist", lambda root: whole)
    return tmp_path / "root"


def test_each_writer_has_its_digits(made):
    federation = Writers(str(made)).load(0)
    assert list(federation.names) == ["writer 3", "writer 7", "writer 9"]
    assert [federation.batch(m, np.arange(size))[1].tolist() for m, size in enumerate(federation.sizes)] == [
        [1, 4],
        [0, 2, 5],
        [3],
    ]
    assert list(Writers(str(made), min_size=2).load(0).names) == ["writer 3", "writer 7"]
    with pytest.raises(ValueError, match="no writer has min_size=4 digits, most: 3"):
        Writers(str(made), min_size=4).load(0)


def test_ids_with_a_wrong_checksum_are_refused(made):
    writer_ids(made, "train")
    path = made / "qmnist-train-labels-idx2-int.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="damaged or not the right file"):
        writer_ids(made, "train")


def test_without_a_network_it_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(
        datasets.QMNIST, "resources", {"test": [("http://127.0.0.1:9/qmnist-test-labels-idx2-int.gz", "")]}
    )
    with pytest.raises(FileNotFoundError, match=r"Put the file qmnist-test-labels-idx2-int\.gz into"):
        writer_ids(tmp_path, "test")


@pytest.mark.realdata
def test_the_real_writers():
    root = Path(os.environ.get("FL_LIGHTNING_DATA", "datasets"))
    federation = Writers(str(root)).load(0)
    assert (federation.num_clients, federation.sizes.min(), federation.sizes.max()) == (539, 19, 131)
    assert int(federation.sizes.sum()) == 60_000
    train, test = (set(writer_ids(root, part).tolist()) for part in ("train", "test"))
    assert len(test) == 297
    assert not train & test
