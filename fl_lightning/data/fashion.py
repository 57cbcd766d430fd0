"""Fashion-MNIST: pictures of clothes in the place of digits (Xiao, Rasul and Vollgraf, 2017; MIT)."""

from pathlib import Path

from typing_extensions import override

from fl_lightning.data.archives import PinnedFile, gunzipped, unpacked
from fl_lightning.data.fetching import apt_download
from fl_lightning.data.idx import IdxFiles, load_idx
from fl_lightning.data.images import Images, ImageSource

_PACKAGE = PinnedFile(
    name="dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
    num_bytes=30_900_652,
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)


def _unpack(packed: Path, temporary: Path) -> Path:
    members = [f"./usr/share/datasets/fashion-mnist/{name}.gz" for name in _FILES.md5]
    for name, content in zip(_FILES.md5, unpacked(_PACKAGE.read(packed), members, str(packed)), strict=True):
        (temporary / name).write_bytes(gunzipped(content, name))
    return temporary


_FILES = IdxFiles(
    name="FashionMNIST",
    md5={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    package=_PACKAGE.name,
    fetch=lambda temporary: apt_download("dataset-fashion-mnist", _PACKAGE.num_bytes, temporary),
    unpack=_unpack,
)


class FashionMNIST(ImageSource):
    """60,000 + 10,000 pictures of ten kinds of clothes, 28x28 pixels."""

    class_names = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
    class_sizes = (6000,) * 10
    mean, std = (0.2860,), (0.3530,)

    @override
    def images(self) -> Images:
        return load_fashion(self.root)


def load_fashion(root: str | Path) -> Images:
    """Return Fashion-MNIST from ``root``; what is not there is fetched first."""
    return load_idx(_FILES, Path(root))
