"""The server's side of a secure sum over nodes: four questions, of which the third is the training."""

import logging
import secrets
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Message

from fl_lightning.aggregators import SecureSum
from fl_lightning.flower import messages
from fl_lightning.flower.messages import BadMessageError, Content, Value, entries, read_sender, tensor, value
from fl_lightning.flower.nodes import Questions
from fl_lightning.secure import FixedPoint, ServerView
from fl_lightning.secure.primitives import PRIME, KeyPair, Ring
from fl_lightning.types import IntVector, ModelState, RoundPlan, Updates, Vector

_LOG = logging.getLogger("fl_lightning")
_MOST_DIGITS = 131  # of a share in base 16
_SIGNATURE = 64  # bytes (Ed25519)


class _Keys(NamedTuple):
    masking: bytes
    sealing: bytes
    signature: bytes  # of the client's own key, for members who know it; empty where it has none


class SecureTraining:
    """Lets those who were drawn train and upload under masks, and finds the sum of what arrives.

    The last entry of a vector is the training loss, so that the server learns the mean loss and that of nobody. The
    aggregator says how many must arrive, and how numbers become whole numbers.
    """

    def __init__(self, questions: Questions, aggregator: SecureSum) -> None:
        self._questions = questions
        self._aggregator = aggregator

    def train(
        self,
        state: ModelState,
        plan: RoundPlan,
        clients: IntVector,
        content: Callable[[int], Content],
        check: Callable[[int, int], None],
    ) -> Updates:
        """Return whose upload was delivered and the sum of their updates; of single ones nothing is known.

        Everybody who was drawn agrees on masks; who is not among the clients then drops out, as does one whose upload
        is lost. Where too few are delivered the sum is 0, and where the masks cannot be taken off, none was delivered.
        ``check`` raises BadMessageError where a client may not have made so many steps.
        """
        ring = self._aggregator.ring(plan)
        needed = self._aggregator.needed(plan)
        view = ServerView(session=f"{secrets.token_hex(16)} round {plan.index}", threshold=needed)
        self._agree(view, plan)
        present = [client for client in clients.tolist() if client in view.directory]
        like = torch.empty((len(state.weights) + 1) * np.dtype(ring.dtype).itemsize, dtype=torch.uint8)

        def read(message: Message) -> tuple[int, Ring]:
            num_steps = value(message, "num_steps", int)
            check(read_sender(message), num_steps)
            return num_steps, tensor(message, "masked", like).numpy().view(ring.dtype)

        asked = self._under_masks(content, plan, view, ring)
        uploads = self._questions.ask(messages.MASKED, plan.index, present, asked, read)
        view.masked = {client: vector for client, (_, vector) in uploads.items()}
        total = np.zeros(len(state.weights) + 1)
        if len(uploads) >= needed:
            found = self._unmasked(view, ring, plan.index)
            uploads, total = ({}, total) if found is None else (uploads, found)
        delivered = np.array(list(uploads), dtype=np.int64)
        loss = float(total[-1]) / len(delivered) if len(delivered) >= needed else float("nan")
        return Updates(
            clients=delivered,
            deltas=torch.zeros_like(state.weights).expand(len(delivered), -1),
            buffers=state.buffers.expand(len(delivered), -1),
            num_steps=np.array([num_steps for num_steps, _ in uploads.values()], dtype=np.int64),
            losses=np.full(len(delivered), loss),
            total=torch.from_numpy(total[:-1]).to(state.weights.device),
        )

    def _agree(self, view: ServerView, plan: RoundPlan) -> None:
        """Collect keys and sealed shares; whoever sends both is in the directory. With too few it stays empty."""
        named: Content = ({"session": view.session}, {})
        drawn = plan.cohort.clients.tolist()
        keys = self._questions.ask(messages.KEYS, plan.index, drawn, lambda client: named, _keys)
        if len(keys) < view.threshold:
            return
        listed: dict[str, Value] = {
            "session": view.session,
            "threshold": view.threshold,
            "members": list(keys),
            "masking": [each.masking for each in keys.values()],
            "sealing": [each.sealing for each in keys.values()],
            "signatures": [each.signature for each in keys.values()],
        }
        sealed = self._questions.ask(
            messages.SHARES, plan.index, keys, lambda client: (listed, {}), lambda message: _shares(message, list(keys))
        )
        if len(sealed) < view.threshold:
            return
        view.directory = {client: (keys[client].masking, keys[client].sealing) for client in sealed}
        view.sealed = {receiver: {sender: sealed[sender][receiver] for sender in sealed} for receiver in sealed}

    @staticmethod
    def _under_masks(
        content: Callable[[int], Content], plan: RoundPlan, view: ServerView, ring: FixedPoint
    ) -> Callable[[int], Content]:
        """Return the content of a message to a client with what the client needs for its masks."""
        shared: dict[str, Value] = {"session": view.session, "senders": list(view.directory)}
        shared |= {"bound": ring.bound, "num_parties": ring.num_parties, "bits": ring.bits}

        def asked(client: int) -> Content:
            values, tensors = content(client)
            factor = float(plan.cohort.counts[client] * plan.coefficients[client])
            return {**values, **shared, "factor": factor, "sealed": list(view.sealed[client].values())}, tensors

        return asked

    def _unmasked(self, view: ServerView, ring: FixedPoint, index: int) -> Vector | None:
        """Return the sum as numbers; None where too few reveal their shares."""
        lists: Content = ({"session": view.session, "survivors": list(view.masked), "dropped": view.dropped}, {})
        members = list(view.directory)
        revealed = self._questions.ask(
            messages.REVEAL, index, view.masked, lambda client: lists, lambda message: _revealed(message, members)
        )
        if len(revealed) < view.threshold:
            return None
        holders = list(revealed)[: view.threshold]
        view.shares = {owner: {holder + 1: revealed[holder][owner] for holder in holders} for owner in view.directory}
        try:
            return ring.decode(view.total())
        except ValueError as problem:
            _LOG.warning(f"round {index}: {problem}: the round fails, and the model stays")
            return None


def _keys(message: Message) -> _Keys:
    found = _Keys(*(value(message, name, bytes) for name in ("masking", "sealing", "signature")))
    if len(found.signature) not in (0, _SIGNATURE):
        raise BadMessageError(f"sends a signature of {len(found.signature)} bytes")
    try:
        for key in (found.masking, found.sealing):
            KeyPair().agree(key, "try")  # or it would be the others who fail
    except ValueError:
        raise BadMessageError("sends a public key that is none") from None
    return found


def _shares(message: Message, members: list[int]) -> dict[int, bytes]:
    receivers = entries(message, "receivers", int)
    if sorted(receivers) != sorted(members):
        raise BadMessageError("sends shares for other clients than those with keys")
    return dict(zip(receivers, entries(message, "shares", bytes, len(receivers)), strict=True))


def _revealed(message: Message, members: list[int]) -> dict[int, int]:
    owners = entries(message, "owners", int)
    shares = entries(message, "shares", str, len(owners))
    if sorted(owners) != sorted(members) or any(len(share) > _MOST_DIGITS for share in shares):
        raise BadMessageError("reveals other shares than those asked for")
    try:
        numbers = [int(share, 16) for share in shares]
    except ValueError:
        raise BadMessageError("reveals a share that is no number") from None
    if not all(0 <= number < PRIME for number in numbers):
        raise BadMessageError("reveals a share out of range")
    return dict(zip(owners, numbers, strict=True))
