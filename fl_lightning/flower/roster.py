"""Which node is which client."""

import logging
import time
from collections.abc import Callable

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fl_lightning.flower.records import WHO, BadMessageError, packed, value
from fl_lightning.types import IntVector

_LOG = logging.getLogger("fl_lightning")
_MAX_SIZE = 1 << 40  # examples of a client
_QUESTION_SECONDS = 300.0  # that a question to a new node lives


class Roster:
    """Asks each new node who it is, and knows through which node a client can be reached.

    Node ids are random and change when a node is started again. A client belongs to the first node that names it, for
    as long as this node is online: another one that names the same client waits until then.

    Args:
        grid: Knows the nodes.
        num_clients: M.
    """

    def __init__(self, grid: Grid, num_clients: int) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients={num_clients} must be at least 1")
        self._grid, self._num_clients = grid, num_clients
        self._asked: dict[str, tuple[int, float]] = {}  # node and time limit of each open question
        self._known: dict[int, int] = {}  # client of each node that has answered, in the order of the answers
        self._sizes: dict[int, int] = {}  # examples of each client, as first told
        self._told: set[tuple[int, str]] = set()

    def update(self) -> None:
        """Forget nodes that went away, and get to know new ones without waiting for them."""
        online = set(self._grid.get_node_ids())
        now = time.monotonic()
        self._known = {node: client for node, client in self._known.items() if node in online}
        self._asked = {key: (node, end) for key, (node, end) in self._asked.items() if node in online and now < end}
        waiting = {node for node, _ in self._asked.values()}
        new = sorted(online - self._known.keys() - waiting)
        if new:
            questions = [Message(packed({}), node, WHO, ttl=_QUESTION_SECONDS) for node in new]
            for node, key in zip(new, self._grid.push_messages(questions), strict=False):
                if key:
                    self._asked[key] = (node, now + _QUESTION_SECONDS)
        if self._asked:
            for reply in self._grid.pull_messages(list(self._asked)):
                node, _ = self._asked.pop(reply.metadata.reply_to_message_id)
                self._learn(node, reply)

    def _learn(self, node: int, reply: Message) -> None:
        try:
            if reply.has_error():
                raise BadMessageError(f"answers with an error: {reply.error.reason}")
            client, size = value(reply, "client", int), value(reply, "size", int)
            if not 0 <= client < self._num_clients:
                raise BadMessageError(f"says that it is client {client}, but there are {self._num_clients}")
            if not 1 <= size <= _MAX_SIZE:
                raise BadMessageError(f"says that client {client} has {size} examples")
            if self._sizes.setdefault(client, size) != size:
                raise BadMessageError(
                    f"says that client {client} has {size} examples, but it had {self._sizes[client]} before"
                )
        except BadMessageError as problem:
            self._tell(node, f"node {node} {problem}: it takes no part")
            return
        self._known[node] = client

    def _tell(self, node: int, text: str) -> None:
        if (node, text) not in self._told:
            self._told.add((node, text))
            _LOG.warning(text)

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each client that can be reached."""
        found: dict[int, int] = {}
        for node, client in self._known.items():
            if client in found:
                self._tell(node, f"node {node} says that it is client {client}, which node {found[client]} is")
            else:
                found[client] = node
        return found

    def meet(self, timeout: float, sleep: Callable[[float], None] = time.sleep) -> IntVector:
        """Wait until every client can be reached, and return how many examples each of them has, (M,).

        Raises:
            ConnectionError: If not all of them come in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.update()
            missing = sorted(set(range(self._num_clients)) - set(self.nodes))
            if not missing:
                return np.array([self._sizes[client] for client in range(self._num_clients)], dtype=np.int64)
            if time.monotonic() >= deadline:
                shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
                raise ConnectionError(
                    f"{len(missing)} of {self._num_clients} clients did not come within {timeout:g} s (clients "
                    f"{shown}): start their nodes by fl-lightning node, or raise start-timeout"
                )
            sleep(0.5)
