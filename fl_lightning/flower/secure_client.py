"""A node's side of a secure sum: it answers four questions, in their order and once each.

Keys and seeds are made here. Between two questions they are in the SuperNode's memory (Flower's ``Context.state``), on
the same machine, and they are forgotten with the last answer. A node that is started anew has lost them and so has
dropped out of the sum.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message

from fl_lightning.flower.membership import check_members, signature
from fl_lightning.flower.node import Node
from fl_lightning.flower.records import BadMessageError, Values, entries, value
from fl_lightning.secure import FixedPoint, Participant
from fl_lightning.secure.primitives import Ring

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
    client = node.client
    kept, party = _member(message, context, client, "keys")
    members = entries(message, "members", int)
    masking, sealing = (entries(message, name, bytes, len(members)) for name in ("masking", "sealing"))
    threshold = value(message, "threshold", int)
    directory = dict(zip(members, zip(masking, sealing, strict=True), strict=True))
    if directory.get(client) != party.public or len(directory) < len(members) or min(directory) < 0:
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
    """Return one share of each sender: of its seed where its vector arrived, of its key where it did not.

    The node's own secrets are forgotten with it.
    """
    client = node.client
    kept, party = _member(message, context, client, "masked")
    survivors, dropped = (set(entries(message, name, int)) for name in ("survivors", "dropped"))
    del context.state[_RECORD]
    if survivors & dropped or survivors | dropped != set(kept["senders"]):
        raise BadMessageError("the server asks for both secrets of a client, or for those of others")
    if client not in survivors or len(survivors) < kept["threshold"]:
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
