"""The nodes as the server sees them: which client each of them is, how much data it has, and questions to it."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fl_lightning.flower.records import WHO, BadMessageError, Values, Written, error_text, packed, value
from fl_lightning.parts.bases import DataSource
from fl_lightning.parts.protocols import Federation
from fl_lightning.types import IntVector, RoundPlan

_LOG = logging.getLogger("fl_lightning")
_MAX_SIZE = 1 << 40  # examples of a client
_QUESTION_SECONDS = 300.0  # that a question to a new node lives
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 0.5  # seconds between two looks for replies

Content = tuple[Values, dict[str, torch.Tensor]]  # of a message
Answer = TypeVar("Answer")


class _Warnings:
    """Says the same of somebody once, not in every round."""

    def __init__(self) -> None:
        self._shown: set[tuple[int, str]] = set()

    def show(self, who: int, what: str, when: str = "") -> None:
        """Log a warning, unless it was shown before."""
        if (who, what) not in self._shown:
            self._shown.add((who, what))
            _LOG.warning(when + what)


class Roster:
    """Asks each new node who it is, and knows through which node a client can be reached.

    Node ids are random and change when a node is started again. A client belongs to the first node that names it, for
    as long as this node is online: another one that names the same client waits until then.

    Args:
        grid: Knows the nodes.
        num_clients: M.
        stored: Examples of each client in the run that is resumed, if one is: a node that has others takes no part.
    """

    def __init__(self, grid: Grid, num_clients: int, stored: Sequence[int] = ()) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients={num_clients} must be at least 1")
        if stored and len(stored) != num_clients:
            raise ValueError(f"the run that is resumed had {len(stored)} clients, not {num_clients}")
        self._grid, self._num_clients = grid, num_clients
        self._asked: dict[str, tuple[int, float]] = {}  # node and time limit of each open question
        self._known: dict[int, int] = {}  # client of each node that has answered, in the order of the answers
        self._sizes = dict(enumerate(stored))  # examples of each client, as first reported
        self._warnings = _Warnings()

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
                raise BadMessageError(f"answers with an error: {error_text(reply)}")
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
            self._warnings.show(node, f"node {node} {problem}: it takes no part")
            return
        self._known[node] = client

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each client that can be reached."""
        found: dict[int, int] = {}
        for node, client in self._known.items():
            if client in found:
                self._warnings.show(node, f"node {node} says that it is client {client}, which node {found[client]} is")
            else:
                found[client] = node
        return found

    def meet(
        self, timeout: float, minimum: int | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> IntVector:
        """Wait until every client can be reached, and return how many examples each of them has, (M,).

        Args:
            timeout: Seconds to wait.
            minimum: Clients that are enough when the time is up, where the sizes of all are known; all by default.
            sleep: Waits between two looks.

        Raises:
            ConnectionError: If not all of them come in time, or not the minimum.
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
            sleep(0.5)


class NodesFederation:
    """What the server knows: how much data each client has, and the test data, which is its own.

    Args:
        own: The server's data; its first client's examples are what a module is tried on.
        sizes: Number of training examples of each client, as the nodes report, (M,).
    """

    def __init__(self, own: Federation, sizes: IntVector) -> None:
        self._own, self._sizes = own, sizes
        self.test = getattr(own, "test", own)
        self.datamodule = getattr(own, "datamodule", None)

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
    """A data source that waits for the nodes.

    Args:
        own: The server's data.
        roster: Knows the nodes.
        timeout: Seconds to wait for all of them.
        minimum: Clients with which a run is resumed when the time is up; all of them by default.
    """

    def __init__(self, own: DataSource, roster: Roster, timeout: float, minimum: int | None = None) -> None:
        self._own, self._roster = own, roster
        self._timeout, self._minimum = timeout, minimum

    def load(self, seed: int) -> NodesFederation:
        """Load the server's data and meet the nodes."""
        return NodesFederation(self._own.load(seed), self._roster.meet(self._timeout, self._minimum))


class Questions:
    """Asks clients through a grid; one that is absent, late or talks nonsense has not answered.

    Args:
        grid: Flower's connection to the nodes.
        roster: Knows which node is which client.
        timeout: Seconds; what comes later is lost.
        sleep: Waits between two looks for replies.
    """

    def __init__(self, grid: Grid, roster: Roster, timeout: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self.grid, self.roster = grid, roster
        self.timeout, self._sleep = timeout, sleep
        self._warnings = _Warnings()

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
        asked, when = list(clients), f"round {round_index}: "
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
                self._warnings.show(client, f"client {client} has no node: its uploads are lost", when)
        received = self._received(reachable, messages)
        answers = {}
        for client in reachable:
            if client in received:
                try:
                    answers[client] = read(received[client], client)
                except BadMessageError as problem:
                    self._warnings.show(client, f"client {client} {problem}: its uploads are lost", when)
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
