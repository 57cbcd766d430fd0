"""What a node holds on to between sums: which rounds it has answered, its own key, and the keys of the others."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.config.compose import ConfigError
from fl_lightning.flower.node import Node
from fl_lightning.flower.records import BadMessageError
from fl_lightning.output import write_durably
from fl_lightning.secure.primitives import library

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KEY_BYTES = 32


def state_folder(node: Node) -> Path:
    """Return where a node remembers what it answered: ``node.state``, or a folder of this user for file and client."""
    if node.state is not None:
        return Path(node.state)
    given = os.environ.get("XDG_STATE_HOME", "")
    home = Path(given) if os.path.isabs(given) else Path("~/.local/state").expanduser()
    name = hashlib.sha256(os.path.abspath(node.config).encode()).hexdigest()[:16]
    return home / "fl-lightning" / "nodes" / f"{name}-{node.client}"


def claim_round(node: Node, task: str, round_index: int) -> None:
    """Note that a node adds its update of a round to a sum, before it does: once, ever.

    Two sums of one round, of which the second lacks a client, differ by that client's update. A server that was killed
    after a sum and resumed asks for the same round again; it gets no second answer, and the round is lost.

    Args:
        node: Whose memory it is.
        task: What the server wants to be trained; rounds are those of a task.
        round_index: Only rounds above all that were answered before are answered.

    Raises:
        ConfigError: If this round, or a later one, was answered before.
    """
    path = state_folder(node) / "answered.json"
    name = hashlib.sha256(task.encode()).hexdigest()
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        last = int(known.get(name, -1))
    except (OSError, ValueError, AttributeError, TypeError):
        raise ConfigError(f"{path} cannot be read, so this node does not know what it has answered") from None
    if round_index <= last:
        raise ConfigError(
            f"this node has added round {last} of this task to a sum and does not answer round {round_index} again: "
            "the difference of two sums would be an update; a new federation takes another seed"
        )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_durably(path, json.dumps({**known, name: round_index}).encode())


def public_identity(node: Node) -> str:
    """Return the public half of a node's own key, for the lists of the others; the key is made where there is none."""
    return str(_identity(node).public_key().public_bytes_raw().hex())


def signature(node: Node, session: str, keys: tuple[bytes, bytes]) -> bytes:
    """Return a node's signature under the keys that it uses in one sum; empty where it has no key of its own."""
    return b"" if node.identity is None else bytes(_identity(node).sign(_signed(node.client, session, keys)))


def check_members(
    node: Node, session: str, directory: Mapping[int, tuple[bytes, bytes]], signatures: Mapping[int, bytes]
) -> None:
    """Refuse a list of members with somebody whom the node does not know, where it knows its members.

    Raises:
        BadMessageError: With the member.
    """
    if node.members is None:
        return
    for client, keys in directory.items():
        known = node.members.get(client, "")
        if not _is_signed(known, signatures.get(client, b""), _signed(client, session, keys)):
            raise BadMessageError(
                f"client {client} is not in this node's list of members (node.members), or its keys are not its own"
            )


def _is_signed(public: str, signature: bytes, content: bytes) -> bool:
    parts = library()
    try:
        parts.ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, content)
    except (ValueError, parts.exceptions.InvalidSignature):
        return False
    return True


def _signed(client: int, session: str, keys: tuple[bytes, bytes]) -> bytes:
    return b"\0".join([b"fl-lightning secure sum", str(client).encode(), session.encode(), *keys])


def _identity(node: Node) -> "Ed25519PrivateKey":
    if node.identity is None:
        raise ConfigError("this node has no key of its own: set node.identity to a file, which is made at first use")
    path, key = Path(node.identity), library().ed25519.Ed25519PrivateKey
    if not path.exists():
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(key.generate().private_bytes_raw().hex())
    try:
        found: Ed25519PrivateKey = key.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (OSError, ValueError):
        raise ConfigError(f"node.identity={node.identity} does not hold a key of {_KEY_BYTES} bytes") from None
    return found
