import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_lightning.data import IID, Images
from fl_lightning.data.images import ImageSource, normalise, read_images, save_images

RNG = np.random.default_rng(0)
IMAGES = Images(
    train_images=torch.from_numpy(RNG.integers(0, 256, (30, 3, 4, 4), dtype=np.uint8)),
    train_labels=torch.arange(30) % 10,
    test_images=torch.from_numpy(RNG.integers(0, 256, (7, 3, 4, 4), dtype=np.uint8)),
    test_labels=torch.arange(7),
)


def test_normalise_against_numpy():
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    pixels = IMAGES.train_images.numpy().astype(np.float64) / 255
    expected = np.stack([(pixels[:, c] - mean[c]) / std[c] for c in range(3)], axis=1)
    got = normalise(IMAGES.train_images, mean, std)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)


class Made(ImageSource):
    mean, std = (0.0,) * 3, (1.0,) * 3

    @staticmethod
    def read(root):
        return IMAGES


def test_federation_keeps_image_and_label_together_and_depends_on_the_seed_alone():
    def federation(seed):
        return Made(IID(4)).load(seed)

    inputs, targets = federation(5).batch(2, np.arange(3))
    for image, label in zip(inputs, targets, strict=True):
        row = int((IMAGES.train_images.float() / 255 - image).abs().flatten(1).sum(dim=1).argmin())
        assert IMAGES.train_labels[row] == label
    assert np.array_equal(federation(5).order, federation(5).order)
    assert not np.array_equal(federation(5).order, federation(6).order)


def test_saved_images_come_back_and_their_digests_are_plain_sha256(tmp_path):
    (tmp_path / "made").mkdir()
    save_images(IMAGES, tmp_path / "x.pt", {"note": "hello"}, tmp_path / "made")
    images, extra = read_images(tmp_path / "x.pt")
    assert extra == {"note": "hello"}
    assert images.digests() == IMAGES.digests()
    assert images.digests()[1] == hashlib.sha256(bytes(i % 10 for i in range(30))).hexdigest()
    assert images.digests()[2] == hashlib.sha256(IMAGES.test_images.numpy().tobytes()).hexdigest()
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no tensor file", {"train_images": 3}, [1]])
def test_a_file_that_holds_something_else_is_refused(tmp_path, content):
    path = tmp_path / "x.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=r"x\.pt is damaged"):
        read_images(path)


class Evil:
    def __reduce__(self):
        return (print, ("code was run",))


def test_code_in_a_file_is_not_run(tmp_path, capsys):
    torch.save({"train_images": Evil()}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"x\.pt is damaged"):
        read_images(tmp_path / "x.pt")
    assert "code was run" not in capsys.readouterr().out


def test_importing_the_data_room_imports_nothing_heavy():
    script = (
        "import sys, fl_lightning.data\n"
        "print([m for m in ('sklearn', 'matplotlib', 'PIL', 'torchvision', 'lightning') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    shown = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
