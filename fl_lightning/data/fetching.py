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
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from typing_extensions import override

from fl_lightning.output import forgiving, open_flags, open_plain

try:
    import fcntl
except ImportError:  # Windows has no such locks: two processes that fetch at once then both download
    fcntl = None  # type: ignore[assignment]

Result = TypeVar("Result")
_TIMEOUT = 10.0  # seconds without a byte
_ALGORITHMS = {32: "md5", 64: "sha256", 128: "sha512"}  # by the length of a digest
MOST = 1 << 30  # bytes that are taken from anybody
_SECONDS_BETWEEN_LOOKS = 0.1
_STALLED = 120.0  # seconds without growth after which a program is given up


class FetchError(Exception):
    """One way to get the data did not work; its text says why, and the next way is tried."""


def checked(content: bytes, title: str | Path, digest: str) -> bytes:
    """Return a content, or refuse it; the length of the digest says whether it is an md5, a sha256 or a sha512."""
    algorithm = _ALGORITHMS[len(digest)]
    found = hashlib.new(algorithm, content).hexdigest()
    if found != digest:
        raise ValueError(
            f"{title} is damaged or not the right file: {algorithm} {found}, wanted {digest}; delete it and start again"
        )
    return content


def read_checked(path: Path, digest: str, most: int = MOST) -> bytes:
    """Return the content of a plain file, or refuse it; no more than ``most`` bytes are read."""
    with open_plain(path) as file:
        return checked(file.read(most + 1), path, digest)


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

    def __init__(self, url: str, target: Path, most: int) -> None:
        super().__init__(daemon=True)
        self.url, self.target = url, target
        self.most = most  # bytes
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
                    if self.num_bytes > self.most:
                        raise HTTPException(f"more than {self.most} bytes arrived")
                if not self.abandoned and self.total is not None and self.num_bytes < self.total:
                    raise HTTPException(f"{self.num_bytes} of {self.total} bytes arrived")
        except BaseException as error:
            self.error = error


def download(url: str, target: Path, digest: str, most: int = MOST) -> None:
    """Download into ``target`` and verify it by its checksum, see :func:`checked`."""
    transfer = _Transfer(url, target, most)
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
        read_checked(target, digest, most)
    except ValueError:
        raise FetchError("download failed (what arrived has a wrong checksum)") from None


def run_watched(command: Sequence[str], target: Path, growing: Path, num_bytes: int) -> None:
    """Run a program that makes a file, with a bar that follows a growing folder; what it starts ends with it."""
    title = " ".join(command[:3])
    if shutil.which(command[0]) is None:
        raise FetchError(f"{command[0]} is not installed")
    with subprocess.Popen(
        [shutil.which(command[0]) or "", *command[1:]],
        cwd=target.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a group of its own
    ) as process:
        try:
            _watch(process, growing, title, num_bytes)
        finally:
            if hasattr(os, "killpg"):
                with suppress(OSError):  # it has ended already
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
    if process.returncode != 0:
        raise FetchError(f"{title} failed (exit code {process.returncode})")
    made = sorted(target.parent.glob(f"*{target.suffix}"))
    if not made:
        raise FetchError(f"{title} made no file")
    made[0].replace(target)  # one of another version has another checksum


def _watch(process: "subprocess.Popen[bytes]", growing: Path, title: str, num_bytes: int) -> None:
    size, changed = 0, time.monotonic()
    with progress(f"Running {title}", num_bytes) as (bar, task):
        while process.poll() is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            now = _num_bytes(growing)
            if now != size:
                size, changed = now, time.monotonic()
            elif time.monotonic() - changed > _STALLED:
                raise FetchError(f"{title} made no progress for {_STALLED:.0f} s")
            bar.update(task, completed=min(size, num_bytes))
        if process.returncode == 0:
            bar.update(task, completed=num_bytes)


def _num_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # npm moved the file meanwhile
                total += os.stat(os.path.join(parent, name)).st_size
    return total
