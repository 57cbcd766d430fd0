"""The nodes as the server sees them: which client each of them is, how much data it has, and questions to it."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fl_lightning.flower.messages import WHO, BadMessageError, Content, Written, packed, read_sender, value
from fl_lightning.parts.bases import DataSource
from fl_lightning.parts.protocols import Federation
from fl_lightning.parts.traits import traits_of_federation
from fl_lightning.types import IntVector, RoundPlan

_LOG = logging.getLogger("fl_lightning")
_MAX_SIZE = 1 << 40  # examples of a client
_QUESTION_SECONDS = 300.0  # that a question to a new node lives
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 0.5  # seconds between two looks for replies

Answer = TypeVar("Answer")


def _warn_once(shown: set[str], what: str, when: str = "") -> None:
    if what not in shown:
        shown.add(what)
        _LOG.warning(when + what)


class Roster:
    """Asks each new node who it is, and knows through which node a client can be reached.

    Node ids are random and change when a node is started again. A client belongs to the first node that names it, for
    as long as this node is online: another one that names the same client waits until then. In a run that is resumed,
    ``stored`` has the examples of each client: a node that has others takes no part.
    """

    def __init__(self, grid: Grid, num_clients: int, stored: Sequence[int] = ()) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients={num_clients} must be at least 1")
        if stored and len(stored) != num_clients:
            raise ValueError(f"the run that is resumed had {len(stored)} clients, not {num_clients}")
        self._grid = grid
        self._num_clients = num_clients
        self._asked: dict[str, tuple[int, float]] = {}  # node and time limit of each open question
        self._known: dict[int, int] = {}  # client of each node that has answered, in the order of the answers
        self._sizes = dict(enumerate(stored))  # examples of each client, as first reported
        self._shown: set[str] = set()

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
            client = read_sender(reply)
            size = value(reply, "size", int)
            if not 0 <= client < self._num_clients:
                raise BadMessageError(f"says that it is client {client}, but there are {self._num_clients}")
            if not 1 <= size <= _MAX_SIZE:
                raise BadMessageError(f"says that client {client} has {size} examples")
            if self._sizes.setdefault(client, size) != size:
                raise BadMessageError(
                    f"says that client {client} has {size} examples, but it had {self._sizes[client]} before"
                )
        except BadMessageError as problem:
            _warn_once(self._shown, f"node {node} {problem}: it takes no part")
            return
        self._known[node] = client

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each client that can be reached."""
        found: dict[int, int] = {}
        for node, client in self._known.items():
            if client in found:
                _warn_once(self._shown, f"node {node} says that it is client {client}, which node {found[client]} is")
            else:
                found[client] = node
        return found

    def meet(self, timeout: float, minimum: int | None = None) -> IntVector:
        """Wait until every client can be reached, and return how many examples each of them has, (M,).

        When the time is up, ``minimum`` of them are enough where the sizes of all are known.
        """
        needed = self._num_clients if minimum is None else minimum
        deadline = time.monotonic() + timeout
        while True:
            self.update()
            missing = sorted(set(range(self._num_clients)) - set(self.nodes))
            is_late = time.monotonic() >= deadline
            shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            is_enough = len(self._sizes) == self._num_clients and self._num_clients - len(missing) >= needed
            if not missing or (is_late and is_enough):
                if missing:
                    _LOG.warning("resumed without clients %s: until they come, their uploads are lost", shown)
                return np.array([self._sizes[client] for client in range(self._num_clients)], dtype=np.int64)
            if is_late:
                raise ConnectionError(
                    f"{len(missing)} of {self._num_clients} clients did not come within {timeout:g} s (clients "
                    f"{shown}): start their nodes by fl-lightning node, or raise start-timeout"
                )
            time.sleep(0.5)


class NodesFederation:
    """What the server knows: how much data each client has, (M,), and the test data, which is its own.

    A module is tried on the examples of the first client in the server's own data.
    """

    def __init__(self, own: Federation, sizes: IntVector) -> None:
        self._own = own
        self._sizes = sizes
        traits = traits_of_federation(own)
        self.test = traits.test
        self.datamodule = traits.datamodule

    @property
    def sizes(self) -> IntVector:
        """Number of training examples of each client, (M,)."""
        return self._sizes.copy()

    def batch(self, client: int, indices: IntVector) -> object:
        """Return examples of the server's own: those of the clients stay where they are."""
        return self._own.batch(0, indices % int(self._own.sizes[0]))

    def test_batches(self, batch_size: int) -> Iterator[object]:
        """Yield the test data in batches as ``test_step`` takes them."""
        return self._own.test_batches(batch_size)

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return what the server's data knows of the global weights."""
        return self._own.measure(weights, plan)


class NodesData(DataSource):
    """A data source that waits for the nodes, see :meth:`Roster.meet`."""

    def __init__(self, own: DataSource, roster: Roster, timeout: float, minimum: int | None = None) -> None:
        self._own = own
        self._roster = roster
        self._timeout = timeout
        self._minimum = minimum

    def load(self, seed: int) -> NodesFederation:
        """Load the server's data and meet the nodes."""
        return NodesFederation(self._own.load(seed), self._roster.meet(self._timeout, self._minimum))


class Questions:
    """Asks clients through a grid; one that is absent, later than the timeout or talks nonsense has not answered."""

    def __init__(self, grid: Grid, roster: Roster, timeout: float) -> None:
        self.grid = grid
        self.roster = roster
        self.timeout = timeout
        self._sleep: Callable[[float], None] = time.sleep  # between two looks for replies
        self._shown: set[str] = set()

    def ask(
        self,
        kind: str,
        round_index: int,
        clients: Iterable[int],
        content: Callable[[int], Content],
        read: Callable[[Message], Answer],
    ) -> dict[int, Answer]:
        """Ask clients at once and return the sound answers, in the order of the clients.

        ``content`` is that of the message to a client; ``read`` makes an answer of a reply, or raises BadMessageError.
        """
        asked = list(clients)
        when = f"round {round_index}: "
        self.roster.update()
        nodes = self.roster.nodes
        reachable = [client for client in asked if client in nodes]
        written: Written = {}  # what several get is written once
        messages = []
        for client in reachable:
            values, tensors = content(client)
            record = packed({**values, "round": round_index, "client": client}, tensors, written)
            messages.append(Message(record, nodes[client], kind, ttl=self.timeout, group_id=str(round_index)))
        for client in asked:
            if client not in nodes:
                _warn_once(self._shown, f"client {client} has no node: its uploads are lost", when)
        received = self._received(reachable, messages)
        answers = {}
        for client in reachable:
            if client in received:
                try:
                    if (sender := read_sender(received[client])) != client:
                        raise BadMessageError(f"answers as client {sender}")
                    answers[client] = read(received[client])
                except BadMessageError as problem:
                    _warn_once(self._shown, f"client {client} {problem}: its uploads are lost", when)
        return answers

    def _received(self, clients: list[int], messages: list[Message]) -> dict[int, Message]:
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
