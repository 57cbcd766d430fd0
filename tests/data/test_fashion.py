import gzip
import hashlib
import io
import lzma
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from fl_lightning.data import FashionMNIST, load_fashion, mnist
from fl_lightning.data.archives import unpacked

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def debian(members):
    """Return a Debian package with some files."""
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    package = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0"), ("data.tar.xz", lzma.compress(tarred.getvalue()))):
        package += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        package += b"\n" * (len(content) % 2)
    return package


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Return a package with two training pictures and one to test on, which torchvision's addresses do not have."""
    rng = np.random.default_rng(0)
    contents = {}
    for name, number in zip(NAMES, (2, 2, 1, 1), strict=True):
        head, size = (16, 28 * 28 * number) if "images" in name else (8, number)
        contents[name] = bytes(head) + rng.integers(0, 10, size, dtype=np.uint8).tobytes()
    package = debian(
        {f"./usr/share/datasets/fashion-mnist/{name}.gz": gzip.compress(value) for name, value in contents.items()}
    )
    file = replace(mnist._FASHION.package, num_bytes=len(package), digest=hashlib.sha256(package).hexdigest())
    md5 = tuple(hashlib.md5(value).hexdigest() for value in contents.values())
    monkeypatch.setattr(mnist, "_FASHION", replace(mnist._FASHION, package=file, md5=md5))
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-get
    return package, contents


def test_a_debian_package_that_is_put_into_the_root_is_taken(made, tmp_path):
    package, contents = made
    with pytest.raises(FileNotFoundError, match=r"apt-get is not installed\. Put the four files .*FashionMNIST"):
        load_fashion(tmp_path)
    (tmp_path / mnist._FASHION.package.name).write_bytes(package)
    images = load_fashion(tmp_path)
    assert images.train_images.numpy().tobytes() == contents[NAMES[0]][16:]
    assert images.test_labels.tolist() == list(contents[NAMES[3]][8:])
    (tmp_path / mnist._FASHION.package.name).unlink()
    assert torch.equal(load_fashion(tmp_path).train_images, images.train_images)


@pytest.mark.parametrize("cut", [10, 100, -1])
def test_a_cut_package_is_refused(made, tmp_path, cut):
    (tmp_path / mnist._FASHION.package.name).write_bytes(made[0][:cut])
    with pytest.raises(ValueError, match="damaged or not the right file"):
        load_fashion(tmp_path)
    assert not (tmp_path / "FashionMNIST").exists()
    with pytest.raises(ValueError, match=r"it .*(cannot be unpacked|plain file)"):  # even if its checksum were right
        unpacked(made[0][:cut], ["./a"], "it")


def test_a_package_that_is_a_bomb_is_refused():
    with pytest.raises(ValueError, match="more than 1000000 bytes"):
        unpacked(debian({"./a": bytes(3_000_000)}), ["./a"], "it", most=1_000_000)


@pytest.mark.realdata
def test_the_real_pictures():
    images = load_fashion(Path(os.environ.get("FL_LIGHTNING_DATA", "datasets")))
    assert images.train_images.shape == (60_000, 1, 28, 28)
    assert images.train_labels.bincount().tolist() == list(FashionMNIST.class_sizes)
    assert images.test_labels.bincount().tolist() == [1000] * 10
