"""Questions to clients behind nodes: sent at once, answered in time or not at all, believed only in their form."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fl_lightning.flower.records import BadMessageError, Written, packed
from fl_lightning.flower.roster import Roster

_LOG = logging.getLogger("fl_lightning")
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 0.5  # seconds between two looks for replies

Content = tuple[dict[str, Any], dict[str, torch.Tensor]]  # values and tensors of a message
Answer = TypeVar("Answer")


class Questions:
    """Asks clients through a grid; one that is absent, late or talks nonsense has not answered.

    Args:
        grid: Flower's connection to the nodes.
        roster: Knows which node is which client.
        timeout: Seconds; what comes later is lost.
        sleep: Waits between two looks for replies.
    """

    def __init__(self, grid: Grid, roster: Roster, timeout: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self.grid, self.roster, self.timeout = grid, roster, timeout
        self._sleep = sleep
        self._told: set[tuple[int, str]] = set()

    def ask(
        self,
        kind: str,
        round_index: int,
        clients: Iterable[int],
        content: Callable[[int], Content],
        read: Callable[[Message, int], Answer],
    ) -> dict[int, Answer]:
        """Ask clients at once and return the sound answers, in the order of the clients.

        Args:
            kind: Of the question, the type of a message.
            round_index: Of the round.
            clients: Who is asked.
            content: Of the message to a client.
            read: Makes an answer of the reply of a client, or raises BadMessageError.
        """
        asked = list(clients)
        self.roster.update()
        nodes = self.roster.nodes
        reachable = [client for client in asked if client in nodes]
        written: Written = {}  # what several get is written once
        messages = []
        for client in reachable:
            values, tensors = content(client)
            record = packed(values | {"round": round_index, "client": client}, tensors, written)
            messages.append(Message(record, nodes[client], kind, ttl=self.timeout, group_id=str(round_index)))
        for client in asked:
            if client not in nodes:
                self._tell(client, f"round {round_index}: client {client} has no node: its uploads are lost")
        received = self._received(reachable, messages)
        answers = {}
        for client in reachable:
            if client in received:
                try:
                    answers[client] = read(received[client], client)
                except BadMessageError as problem:
                    self._tell(client, f"round {round_index}: client {client} {problem}: its uploads are lost")
        return answers

    def _received(self, clients: list[int], messages: list[Message]) -> dict[int, Message]:
        """Send messages and return what comes back in time, by client."""
        deadline = time.monotonic() + self.timeout
        keys = list(self.grid.push_messages(messages)) if messages else []
        if len(keys) != len(messages):
            raise ConnectionError("the SuperLink did not take the messages of a round: see its log")
        waiting = {key: client for key, client in zip(keys, clients, strict=True) if key}
        received: dict[int, Message] = {}
        pause = _FIRST_LOOK
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is not None:
                    received[client] = reply
            left = deadline - time.monotonic()
            if not waiting or left <= 0:
                break
            self._sleep(min(pause, left))
            pause = min(1.5 * pause, _LONGEST_LOOK)
        return received

    def _tell(self, client: int, text: str) -> None:
        """Say the same of a client once, not in every round."""
        key = (client, text.partition(": ")[2])
        if key not in self._told:
            self._told.add(key)
            _LOG.warning(text)
