"""A node's side of a secure sum: it answers four questions, in their order and once each.

Keys and seeds are made here. Between two questions they are in the SuperNode's memory (Flower's ``Context.state``), on
the same machine, and they are forgotten with the last answer. A node that is started anew has lost them and so has
dropped out of the sum. Which rounds it has answered, and its own key where it has one, stay on its disk.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message

from fl_lightning.config.compose import ConfigError
from fl_lightning.flower.messages import BadMessageError, Values, entries, value
from fl_lightning.flower.node_settings import Node
from fl_lightning.output import write_durably
from fl_lightning.secure import FixedPoint, Participant
from fl_lightning.secure.primitives import Ring, library

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_RECORD = "secure sum"
_LEAST = 2  # the sum of one update is that update
_BITS = (32, 64)


def answer_keys(message: Message, context: Context, node: Node) -> Values:
    """Return new public keys; the sum before, if it did not end, is forgotten."""
    session = value(message, "session", str)
    party = Participant(node.client, session)
    context.state[_RECORD] = ConfigRecord({"session": session, "secret": list(party.secret), "stage": "keys"})
    masking, sealing = party.public
    return {"masking": masking, "sealing": sealing, "signature": signature(node, session, party.public)}


def answer_shares(message: Message, context: Context, node: Node) -> Values:
    """Return sealed shares of both secrets for all who sent keys."""
    kept, party = _member(message, context, node.client, "keys")
    members = entries(message, "members", int)
    masking, sealing = (entries(message, name, bytes, len(members)) for name in ("masking", "sealing"))
    threshold = value(message, "threshold", int)
    directory = dict(zip(members, zip(masking, sealing, strict=True), strict=True))
    if directory.get(node.client) != party.public or len(directory) < len(members) or min(directory) < 0:
        raise BadMessageError("the server's list of keys lacks this client's, or has somebody twice")
    least = max(_LEAST, len(members) // 2 + 1 if node.min_threshold is None else node.min_threshold)
    if not least <= threshold <= len(members):
        raise BadMessageError(
            f"the server asks for a threshold of {threshold} of {len(members)} clients, but this node wants at least "
            f"{least} (node.min_threshold): that many together can open an update"
        )
    signatures = entries(message, "signatures", bytes, len(members))
    check_members(node, kept["session"], directory, dict(zip(members, signatures, strict=True)))
    shares = party.shares(directory, threshold)
    kept |= {"stage": "shares", "members": members, "masking": masking, "sealing": sealing, "threshold": threshold}
    context.state[_RECORD] = ConfigRecord(kept)
    return {"receivers": list(shares), "shares": list(shares.values())}


def masking(message: Message, context: Context, client: int) -> Callable[[npt.NDArray[np.float64]], Ring]:
    """Check what a node can check before it trains, and return what then puts the masks on its numbers."""
    kept, party = _member(message, context, client, "shares")
    senders = entries(message, "senders", int)
    inbox = entries(message, "sealed", bytes, len(senders))
    directory = {each: keys for each, keys in _directory(kept).items() if each in senders}
    if len(directory) != len(senders) or client not in directory or len(senders) < kept["threshold"]:
        raise BadMessageError("the server names other senders of shares than it gave keys of, or too few")
    bits = value(message, "bits", int)
    if bits not in _BITS:
        raise BadMessageError(f"the server sets bits={bits}")
    ring = FixedPoint(value(message, "bound", float), value(message, "num_parties", int), 64 if bits == 64 else 32)
    if ring.num_parties < len(senders):
        raise BadMessageError(f"the server makes room for {ring.num_parties} of {len(senders)} vectors")
    kept |= {"stage": "masked", "senders": senders, "sealed": inbox}
    context.state[_RECORD] = ConfigRecord(kept)

    def masked(values: npt.NDArray[np.float64]) -> Ring:
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= ring.bound:  # how much above is not for the server to know
            raise BadMessageError(f"an entry of the update is above bound={ring.bound:g}, or not finite")
        return party.masked(ring.encode(values), directory)

    return masked


def answer_reveal(message: Message, context: Context, node: Node) -> Values:
    """Return one share of each sender: of its seed where its vector arrived, of its key where not; then forget all."""
    kept, party = _member(message, context, node.client, "masked")
    survivors, dropped = (set(entries(message, name, int)) for name in ("survivors", "dropped"))
    del context.state[_RECORD]
    if survivors & dropped or survivors | dropped != set(kept["senders"]):
        raise BadMessageError("the server asks for both secrets of a client, or for those of others")
    if node.client not in survivors or len(survivors) < kept["threshold"]:
        raise BadMessageError(f"the server asks for the masks of {len(survivors)} vectors, fewer than agreed on")
    inbox = dict(zip(kept["senders"], kept["sealed"], strict=True))
    shares = party.reveal(inbox, _directory(kept), survivors, dropped)
    return {"owners": list(shares), "shares": [format(share, "x") for share in shares.values()]}


def _member(message: Message, context: Context, client: int, stage: str) -> tuple[dict[str, Any], Participant]:
    """Return what is kept of the sum that a message is about, which must have come so far and no further."""
    found = context.state.get(_RECORD)
    kept: dict[str, Any] = dict(found) if isinstance(found, ConfigRecord) else {}
    if kept.get("session") != value(message, "session", str) or kept["stage"] != stage:
        raise BadMessageError("this node takes no part in the sum, or has answered this question already")
    mask_key, seal_key, seed = kept["secret"]
    return kept, Participant(client, kept["session"], (mask_key, seal_key, seed))


def _directory(kept: dict[str, Any]) -> dict[int, tuple[bytes, bytes]]:
    keys = zip(kept["masking"], kept["sealing"], strict=True)
    return dict(zip(kept["members"], keys, strict=True))


def state_folder(node: Node) -> Path:
    """Return where a node remembers what it answered: ``node.state``, or a folder of this user for file and client."""
    if node.state is not None:
        return Path(node.state)
    given = os.environ.get("XDG_STATE_HOME", "")
    home = Path(given) if os.path.isabs(given) else Path("~/.local/state").expanduser()
    name = hashlib.sha256(os.path.abspath(node.config).encode()).hexdigest()[:16]
    return home / "fl-lightning" / "nodes" / f"{name}-{node.client}"


def claim_round(node: Node, task: str, round_index: int) -> None:
    """Note that a node adds its update of a round of a task to a sum, before it does: once, ever, and in order.

    Two sums of one round, of which the second lacks a client, differ by that client's update. A server that was killed
    after a sum and resumed asks for the same round again; it gets no second answer, and the round is lost.
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
    """Refuse a list of members with somebody whom the node does not know, where it knows its members."""
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
        raise ConfigError(f"node.identity={node.identity} does not hold a key of 32 bytes") from None
    return found
