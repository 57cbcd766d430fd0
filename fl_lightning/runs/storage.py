"""Checkpoints: files that show when they are damaged."""

import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fl_lightning.output import open_plain, write_durably
from fl_lightning.parts.memory import decode

FORMAT = 2  # rises whenever an older program could not read what a newer one writes
_HEADER = re.compile(rb"fl_lightning checkpoint (\d{1,4}) ([0-9a-f]{64}) (\d{1,18})\n")
_HEADER_ROOM = 128
_NAME = re.compile(r"round_(\d{1,18})\.ckpt", re.ASCII)

Checkpoint = dict[str, Any]  # tensors, numbers, strings and containers of them; who wrote a part of it knows its kind


class DamagedFileError(ValueError):
    """A file that is not what was written."""


def checkpoint_name(round_index: int) -> str:
    """Return the file name of the checkpoint of a round.

    >>> checkpoint_name(7)
    'round_00000007.ckpt'
    """
    return f"round_{round_index:08d}.ckpt"


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in a folder with their rounds, oldest first."""
    found = ((_NAME.fullmatch(path.name), path) for path in folder.glob("round_*.ckpt"))
    return sorted((int(match[1]), path) for match, path in found if match and path.is_file())


def is_checkpoint_name(name: str) -> bool:
    """Whether a file of this name would be a checkpoint."""
    return _NAME.fullmatch(name) is not None


def load_latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is not damaged, if there is any, and what is wrong with newer ones."""
    errors: list[str] = []
    for _, path in reversed(checkpoints(folder)):
        try:
            return read_checkpoint(path), errors
        except (DamagedFileError, OSError) as error:  # noqa: PERF203
            errors.append(str(error))
    if errors:
        raise DamagedFileError("; ".join(errors) + ": no checkpoint before it is left, --resume never starts anew")
    return None, []


def write_checkpoint(path: Path, content: Checkpoint) -> None:
    """Write one line with format, checksum and length, then the content in pieces: a copy may not fit in memory."""

    def fill(file: BinaryIO) -> None:
        file.write(_header("0" * 64, 0))
        hashed = _Hashed(file)
        try:
            torch.save(content, hashed)  # type: ignore[arg-type]  # it asks for no more than write
        except Exception as error:  # torch's writer has errors of its own for what the disk refused
            raise hashed.error or error from None
        file.seek(0)
        file.write(_header(hashed.digest.hexdigest(), hashed.length))

    write_durably(path, fill)


def _header(digest: str, length: int) -> bytes:
    return f"fl_lightning checkpoint {FORMAT} {digest} {length:018d}\n".encode()


class _Hashed:
    """Passes what is written on to a file and keeps its checksum and length."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.length = 0
        self.error: OSError | None = None  # the first of the disk

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.digest.update(data)
        self.length += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def is_checkpoint(path: Path) -> bool:
    """Whether a file begins as one that :func:`write_checkpoint` wrote."""
    try:
        with open_plain(path) as file:
            return _HEADER.match(file.read(_HEADER_ROOM)) is not None
    except OSError:
        return False


def read_checkpoint(path: Path) -> Checkpoint:
    """Return what :func:`write_checkpoint` wrote; nothing in the file is ever run as code.

    Raises:
        DamagedFileError: If the file is not a checkpoint, is of a newer format, or was changed since it was written.
    """
    with open_plain(path) as file:
        header = _HEADER.match(file.read(_HEADER_ROOM))
        length = 0 if header is None else int(header[3])
        is_whole = header is not None and os.fstat(file.fileno()).st_size == header.end() + length
        file.seek(0 if header is None else header.end())
        payload = file.read(length) if is_whole else b""
    if header is None:
        raise DamagedFileError(f"{path} is not a checkpoint of fl_lightning, or its first line is damaged")
    version = int(header[1])
    if version > FORMAT:
        known = f"this version reads up to {FORMAT}"
        raise DamagedFileError(f"{path} has format {version}, but {known}: update fl_lightning")
    if not is_whole or hashlib.sha256(payload).hexdigest() != header[2].decode():
        raise DamagedFileError(f"{path} is damaged: its checksum does not match its content")
    try:
        content = decode(io.BytesIO(payload))
    except Exception as error:  # the loader has a long list of its own, and refuses code with one of them
        raise DamagedFileError(f"{path} holds something else than a checkpoint ({type(error).__name__})") from None
    if not isinstance(content, dict):
        raise DamagedFileError(f"{path} holds something else than a checkpoint")
    return content
