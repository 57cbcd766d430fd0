"""What a program writes: complete files, standard streams that never end a run, and what is shown while it loads."""

import contextlib
import functools
import io
import logging
import operator
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


def write_durably(path: Path, content: bytes | Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """Replace a file so that it holds, whatever happens, either what it held before or all of the new content.

    The content goes to a new file beside it, is forced to the disk and takes the place by a rename, which is forced to
    the disk as well. A full disk or a folder that cannot be written leaves the old file untouched. No link is followed:
    not one in the place of the file, and not one in the place of the new file, whose name nobody can guess.

    A function as content writes it piece by piece. The user's mask takes away from the mode.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}; what was there before is intact") from None
    finally:
        with contextlib.suppress(OSError):  # it has taken its place, unless something failed
            temporary.unlink(missing_ok=True)


def open_flags(*names: str) -> int:
    """Return flags for ``os.open`` by their names; one that a system does not have counts for nothing."""
    return functools.reduce(operator.or_, (getattr(os, name, 0) for name in names), 0)


def open_plain(path: Path, largest: int | None = None) -> BinaryIO:
    """Open a file for reading, unless it is a pipe or a device, which may never end, or has too many bytes."""
    handle = os.open(path, open_flags("O_RDONLY", "O_NONBLOCK", "O_BINARY"))
    status = os.fstat(handle)
    error = None if stat.S_ISREG(status.st_mode) else f"{path} is not a plain file"
    if error is None and largest is not None and status.st_size > largest:
        error = f"{path} has {status.st_size:,} bytes, at most {largest:,} are read"
    if error is None:
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(error)


def read_plain(path: Path, largest: int) -> bytes:
    """Return the content of a plain file of limited size, see :func:`open_plain`."""
    with open_plain(path, largest) as file:
        return file.read(largest)


def replace_file(path: Path) -> TextIO:
    """Open a text file for writing in place of what has its name; a link is taken away, not followed."""
    path.unlink(missing_ok=True)
    return path.open("x", encoding="utf-8")


def half_written(folder: Path, is_ours: Callable[[str], bool]) -> list[Path]:
    """Return the files that a killed process began to write for files of some names."""
    found = ((_TEMPORARY.fullmatch(path.name), path) for path in folder.glob(".*.tmp"))
    return [path for match, path in found if match and is_ours(match[1]) and path.is_file() and not path.is_symlink()]


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    if os.name == "nt":  # does so by itself, and cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


class ForgivingStream:
    """A text stream whose reader may go away, whose disk may be full and whose encoding may lack a character.

    After the first failure nothing more is written, and the process's own standard output or error is led to nowhere,
    so that Python's last flush cannot fail either. None stands for a stream that was closed from the start.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: TextIO | _Nowhere = _Nowhere() if stream is None else stream

    def write(self, text: str) -> int:
        """Write what can be written; characters that the stream does not know are escaped."""
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
        except (OSError, ValueError):
            self._give_up()
        return len(text)

    def flush(self) -> None:
        """Pass on what is waiting."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def isatty(self) -> bool:
        """Whether a person may be looking."""
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False

    @property
    def encoding(self) -> str:
        """The encoding of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def _give_up(self) -> None:
        stream, self._stream = self._stream, _Nowhere()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            number = stream.fileno()
            if number in (1, 2):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def forgiving(stream: TextIO | None) -> TextIO:
    """Return a stream to which writing never fails."""
    return stream if isinstance(stream, ForgivingStream) else cast(TextIO, ForgivingStream(stream))


@contextlib.contextmanager
def forgiving_output() -> Iterator[None]:
    """Make sure, while a command runs, that no ``print``, progress bar or log line can end it."""
    for number in (0, 1, 2):  # the next file to be opened would get the number of a closed one, and what is printed
        try:
            os.fstat(number)
        except OSError:  # noqa: PERF203
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    streams = forgiving(sys.stdout), forgiving(sys.stderr)
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            yield
        finally:
            for stream in streams:
                stream.flush()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Say that torch is being loaded, unless it is there already; in a terminal the line goes away afterwards."""
    if "torch" in sys.modules or os.environ.get("LOCAL_RANK", "0") != "0":  # the first process speaks for all
        yield
        return
    in_terminal = sys.stderr.isatty()
    print("loading PyTorch and Lightning ...", end="" if in_terminal else "\n", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if in_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def not_installed(package: str, extra: str) -> str:
    """Return what is missing and how to get it, for all errors of that kind.

    >>> not_installed("shtab", "completion")
    "shtab is not installed: pip install -e '.[completion]' in your clone"
    """
    return f"{package} is not installed: pip install -e '.[{extra}]' in your clone"


@contextlib.contextmanager
def only_planning() -> Iterator[None]:
    """Keep warnings about training back while rounds are planned that nobody trains."""
    logger = logging.getLogger("fl_lightning")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
