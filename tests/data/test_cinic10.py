import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.data import CINIC10, IID, load_cinic10
from fl_lightning.data.cifar10 import CLASS_NAMES


def make_tree(root, seed=0):
    rng = np.random.default_rng(seed)
    for split, number in (("train", 3), ("valid", 1), ("test", 2)):
        for name in CLASS_NAMES:
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(number):
                pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"cifar10-{index}.png")


@pytest.mark.parametrize("inside", ["", "CINIC-10"])
def test_pictures_are_read_by_class(tmp_path, inside):
    make_tree(tmp_path / inside)
    images = load_cinic10(tmp_path)
    assert images.train_images.shape == (30, 3, 32, 32)
    assert images.test_images.shape == (20, 3, 32, 32)
    assert images.train_labels.tolist() == [label for label in range(10) for _ in range(3)]
    with Image.open(tmp_path / inside / "train" / "bird" / "cifar10-1.png") as picture:
        assert np.array_equal(images.train_images[7].permute(1, 2, 0).numpy(), np.asarray(picture))


def test_federation_is_normalised(tmp_path):
    make_tree(tmp_path)
    federation = CINIC10(IID(5), root=str(tmp_path)).load(0)
    assert federation.sizes.tolist() == [6] * 5
    pixels = load_cinic10(tmp_path).train_images.numpy() / 255
    expected = (pixels[:, 2] - CINIC10.mean[2]) / CINIC10.std[2]
    np.testing.assert_allclose(federation.train[0][:, 2].numpy(), expected, atol=1e-5)


def test_stored_file_is_used_until_the_tree_changes(tmp_path):
    make_tree(tmp_path)
    first = load_cinic10(tmp_path)
    assert (tmp_path / "cinic10.pt").is_file()
    stored = (tmp_path / "cinic10.pt").stat().st_mtime_ns
    assert load_cinic10(tmp_path).digests() == first.digests()
    assert (tmp_path / "cinic10.pt").stat().st_mtime_ns == stored
    Image.new("RGB", (32, 32)).save(tmp_path / "train" / "truck" / "one-more.png")
    assert len(load_cinic10(tmp_path).train_images) == 31
    for split in ("train", "test"):
        (tmp_path / split).rename(tmp_path / f"{split}-gone")
    assert len(load_cinic10(tmp_path).train_images) == 31


def test_damaged_stored_file_is_refused(tmp_path):
    make_tree(tmp_path)
    load_cinic10(tmp_path)
    content = torch.load(tmp_path / "cinic10.pt", weights_only=True)
    content["train_images"][0, 0, 0, 0] ^= 1
    torch.save(content, tmp_path / "cinic10.pt")
    with pytest.raises(ValueError, match=r"cinic10\.pt is damaged"):
        load_cinic10(tmp_path)


def test_grey_pictures_are_read_and_other_sizes_refused(tmp_path):
    make_tree(tmp_path)
    Image.new("L", (32, 32), 77).save(tmp_path / "test" / "airplane" / "cifar10-0.png")
    assert (load_cinic10(tmp_path).test_images[0] == 77).all()
    Image.new("RGB", (16, 32)).save(tmp_path / "test" / "airplane" / "cifar10-0.png")
    with pytest.raises(ValueError, match=r"cifar10-0\.png must have 32x32 pixels, got 16x32"):
        load_cinic10(tmp_path)


def test_damaged_picture_is_named(tmp_path):
    make_tree(tmp_path)
    (tmp_path / "train" / "frog" / "cifar10-2.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"frog.cifar10-2\.png is damaged"):
        load_cinic10(tmp_path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"CINIC-10 is not in .*Unpack.*airplane"):
        load_cinic10(tmp_path)
    make_tree(tmp_path)
    (tmp_path / "train" / "ship").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"train.ship is missing"):
        load_cinic10(tmp_path)
    (tmp_path / "train" / "ship").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no \*\.png in .*ship"):
        load_cinic10(tmp_path)
