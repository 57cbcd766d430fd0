"""FlowerEngine: the clients of a cohort train on other machines, everything else stays as it is."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from typing_extensions import override

from fl_lightning.deliveries import Delivery
from fl_lightning.flower.records import GRADIENT, LOSS, TRAIN, BadMessageError, Reply, packed, read_reply
from fl_lightning.flower.roster import Roster
from fl_lightning.flower.task import Task
from fl_lightning.memory import Remembers
from fl_lightning.protocols import Engine, Federation, LocalWork
from fl_lightning.solvers import Solver
from fl_lightning.types import IntVector, ModelState, Updates, Vector

_LOG = logging.getLogger("fl_lightning")
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 0.5  # seconds between two looks for replies


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a round may take, and what is believed of a client."""

    timeout: float = 60.0  # seconds; what comes later is lost
    max_steps: int | None = None  # clients decide about T themselves, up to this; None: they do what they are asked

    def __post_init__(self) -> None:
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout={self.timeout} must be a positive number of seconds")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps={self.max_steps} must be at least 1, or None where clients do what is asked")


class FlowerEngine(Remembers):
    """Lets nodes train and answer; a node that is absent, late or talks nonsense counts as lost.

    A reply is believed only in its form: its length, and T within the allowed range. Numbers that are not finite are
    left to the loop's ``faults``.

    Args:
        grid: Flower's connection to the nodes.
        roster: Knows which node is which client.
        task: What nodes must know to train.
        limits: Of a round.
        local: Evaluates here, and holds the model.
        sleep: Waits between two looks for replies.
    """

    memory = ("sizes",)

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        task: Task,
        limits: Limits,
        local: Engine,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.roster, self.task, self.limits, self.local = grid, roster, task, limits, local
        self.deliveries: list[Delivery] = []  # of the last round
        self.sizes: IntVector = np.empty(0, dtype=np.int64)
        self._sleep = sleep
        self._told: set[tuple[int, str]] = set()

    def setup(
        self,
        fabric: Fabric,
        module: LightningModule,
        federation: Federation,
        solver: Solver,
        batch_size: int,
        seed: int,
        num_draws: int | None = None,
    ) -> ModelState:
        """Bind the engine to a module and return the initial state."""
        self.sizes, self._text = federation.sizes, self.task.text(num_draws)
        return self.local.setup(fabric, module, federation, solver, batch_size, seed, num_draws)

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare the clients' data with that of the run that is resumed.

        Raises:
            ValueError: If a client has more or fewer examples than before.
        """
        here = self.sizes
        super().load_state_dict(state)
        changed = np.flatnonzero(here != self.sizes)
        if len(changed):
            client = int(changed[0])
            raise ValueError(
                f"client {client} has {here[client]} examples, but had {self.sizes[client]} when the run was paused "
                f"({len(changed)} such clients): bring its data back, or start anew in another run_dir"
            )

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Let the clients train and return what arrives in time, in the given order."""
        likes = {"delta": state.weights, "buffers": state.buffers}

        def content(client: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
            tensors = {
                "weights": work.start(client, state.weights),
                "buffers": work.start_buffers(client, state.buffers),
            }
            shift = work.gradient_shift(client)
            if shift is not None:
                tensors["shift"] = shift
            return {"num_steps": int(work.num_steps[client]), "lr": float(work.learning_rate)}, tensors

        def allowed(reply: Reply) -> None:
            asked, most = int(work.num_steps[reply.client]), self.limits.max_steps
            if most is None and reply.num_steps != asked:
                raise BadMessageError(f"reports {reply.num_steps} local steps, but was asked for {asked}")
            if most is not None and not 1 <= reply.num_steps <= most:
                raise BadMessageError(f"reports {reply.num_steps} local steps, which is not in 1..{most}")

        replies = self._ask(TRAIN, work.round_index, clients, content, likes, allowed)
        heard = [reply for reply in replies if reply is not None]
        return Updates(
            clients=np.array([reply.client for reply in heard], dtype=np.int64),
            deltas=_stacked([reply.tensors[0] for reply in heard], state.weights),
            buffers=_stacked([reply.tensors[1] for reply in heard], state.buffers),
            num_steps=np.array([reply.num_steps for reply in heard], dtype=np.int64),
            losses=np.array([reply.loss for reply in heard], dtype=np.float64),
        )

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client; NaN of those that do not answer."""
        replies = self._ask(LOSS, round_index, clients, _global(state), {})
        return np.array([np.nan if reply is None else reply.loss for reply in replies], dtype=np.float64)

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client; zeros of those that do not answer, (n, d)."""
        replies = self._ask(GRADIENT, round_index, clients, _global(state), {"gradient": state.weights})
        zeros = torch.zeros_like(state.weights)
        return _stacked([zeros if reply is None else reply.tensors[0] for reply in replies], state.weights)

    def _ask(
        self,
        question: str,
        round_index: int,
        clients: IntVector,
        content: Callable[[int], tuple[dict[str, Any], dict[str, torch.Tensor]]],
        likes: Mapping[str, torch.Tensor],
        check: Callable[[Reply], None] = lambda reply: None,
    ) -> list[Reply | None]:
        """Ask clients at once and return their sound replies in the given order; None where there is none."""
        self.roster.update()
        nodes = self.roster.nodes
        messages, reachable = [], []
        for client in clients.tolist():
            if client in nodes:
                values, tensors = content(client)
                values |= {"task": self._text, "round": round_index, "client": client}
                seconds = self.limits.timeout
                reachable.append(client)
                messages.append(
                    Message(packed(values, tensors), nodes[client], question, ttl=seconds, group_id=str(round_index))
                )
            else:
                self._tell(client, f"round {round_index}: client {client} has no node: its uploads are lost")
        received = self._received(reachable, messages)
        replies = {client: self._checked(round_index, client, each, likes, check) for client, each in received.items()}
        found = [replies.get(client) for client in clients.tolist()]
        self._note(round_index, clients, found)
        return found

    def _checked(
        self,
        round_index: int,
        client: int,
        message: Message,
        likes: Mapping[str, torch.Tensor],
        check: Callable[[Reply], None],
    ) -> Reply | None:
        """Return a reply that can be believed."""
        try:
            reply = read_reply(message, client, likes)
            check(reply)
        except BadMessageError as problem:
            self._tell(client, f"round {round_index}: client {client} {problem}: its uploads are lost")
            return None
        return reply

    def _received(self, clients: list[int], messages: list[Message]) -> dict[int, Message]:
        """Send messages and return what comes back in time, by client."""
        deadline = time.monotonic() + self.limits.timeout
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

    def _note(self, round_index: int, clients: IntVector, replies: list[Reply | None]) -> None:
        if self.deliveries and self.deliveries[0].round_index != round_index:
            self.deliveries = []
        number = self.deliveries[-1].question + 1 if self.deliveries else 0
        self.deliveries += [
            Delivery(
                round_index=round_index,
                question=number,
                client=client,
                arrived=reply is not None,
                num_steps=0 if reply is None else reply.num_steps,
            )
            for client, reply in zip(clients.tolist(), replies, strict=True)
        ]

    def _tell(self, client: int, text: str) -> None:
        """Say the same of a client once, not in every round."""
        key = (client, text.partition(": ")[2])
        if key not in self._told:
            self._told.add(key)
            _LOG.warning(text)

    def evaluate(self, state: ModelState) -> tuple[dict[str, float], Vector]:
        """Return the metrics of the global model on the server's test data, and its accuracy per class."""
        return self.local.evaluate(state)

    def load(self, state: ModelState) -> None:
        """Put a state into the module."""
        self.local.load(state)

    def close(self) -> None:
        """End the run."""
        self.local.close()


def _global(state: ModelState) -> Callable[[int], tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    return lambda client: ({}, {"weights": state.weights, "buffers": state.buffers})


def _stacked(rows: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.stack(rows) if rows else like.new_empty((0, len(like)))
