"""FlowerEngine: the clients of a cohort train on other machines, everything else stays as it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from typing_extensions import override

from fl_lightning.engine.replay import TrainsElsewhere
from fl_lightning.flower.nodes import Content, Questions
from fl_lightning.flower.records import (
    EVALUATE,
    GRADIENT,
    LOSS,
    TRAIN,
    BadMessageError,
    Reply,
    read_metrics,
    read_reply,
)
from fl_lightning.flower.secure_server import SecureTraining
from fl_lightning.flower.task import Task
from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import PLAIN, Engine, Federation, Handout
from fl_lightning.solvers import Solver
from fl_lightning.system.traces import Delivery
from fl_lightning.types import IntVector, ModelState, RoundPlan, Updates, Vector


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


class FlowerEngine(Remembers, TrainsElsewhere):
    """Lets nodes train and answer; a node that is absent, late or talks nonsense counts as lost.

    A reply is believed only in its form: its length, and T within the allowed range. Numbers that are not finite are
    left to the loop's ``faults``.

    Args:
        questions: To the nodes.
        task: What nodes must know to train.
        limits: Of a round.
        local: Evaluates here, and holds the model.
        sums: Finds the sum of updates that nobody sees; without it clients send their updates as they are.
    """

    memory = ("sizes",)

    def __init__(
        self, questions: Questions, task: Task, limits: Limits, local: Engine, sums: SecureTraining | None = None
    ) -> None:
        super().__init__(local)
        self.questions, self.sums = questions, sums
        self.task, self.limits = task, limits
        self.deliveries: list[Delivery] = []  # of the last round
        self.sizes: IntVector = np.empty(0, dtype=np.int64)

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

    def train(self, state: ModelState, plan: RoundPlan, clients: IntVector, handout: Handout = PLAIN) -> Updates:
        """Let the clients train and return what arrives in time, in the given order."""
        planned = plan.profiles.num_steps

        def content(client: int) -> Content:
            tensors = {
                "weights": handout.start(client, state.weights),
                "buffers": handout.start_buffers(client, state.buffers),
            }
            shift = handout.gradient_shift(client)
            if shift is not None:
                tensors["shift"] = shift
            values = {"num_steps": int(planned[client]), "lr": float(plan.learning_rate)}
            return values | {"task": self._text}, tensors

        def check(client: int, num_steps: int) -> None:
            asked, most = int(planned[client]), self.limits.max_steps
            if most is None and num_steps != asked:
                raise BadMessageError(f"reports {num_steps} local steps, but was asked for {asked}")
            if most is not None and not 1 <= num_steps <= most:
                raise BadMessageError(f"reports {num_steps} local steps, which is not in 1..{most}")

        if self.sums is None:
            updates = self._plain(state, clients, plan.index, content, check)
        else:
            updates = self.sums.train(state, plan, clients, content, check)
        reported = dict(zip(updates.clients.tolist(), updates.num_steps.tolist(), strict=True))
        self._note(plan.index, clients, reported)
        return updates

    def _plain(
        self,
        state: ModelState,
        clients: IntVector,
        round_index: int,
        content: Callable[[int], Content],
        check: Callable[[int, int], None],
    ) -> Updates:
        likes = {"delta": state.weights, "buffers": state.buffers}

        def read(message: Message, client: int) -> Reply:
            reply = read_reply(message, client, likes)
            check(client, reply.num_steps)
            return reply

        replies = self.questions.ask(TRAIN, round_index, clients.tolist(), content, read).values()
        return Updates(
            clients=np.array([reply.client for reply in replies], dtype=np.int64),
            deltas=_stacked([reply.tensors[0] for reply in replies], state.weights),
            buffers=_stacked([reply.tensors[1] for reply in replies], state.buffers),
            num_steps=np.array([reply.num_steps for reply in replies], dtype=np.int64),
            losses=np.array([reply.loss for reply in replies], dtype=np.float64),
        )

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client; NaN of those that do not answer."""
        replies = self._answers(LOSS, state, clients, round_index, {})
        return np.array([np.nan if reply is None else reply.loss for reply in replies], dtype=np.float64)

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client; zeros of those that do not answer, (n, d)."""
        replies = self._answers(GRADIENT, state, clients, round_index, {"gradient": state.weights})
        zeros = torch.zeros_like(state.weights)
        return _stacked([zeros if reply is None else reply.tensors[0] for reply in replies], state.weights)

    def _answers(
        self, kind: str, state: ModelState, clients: IntVector, round_index: int, likes: Mapping[str, torch.Tensor]
    ) -> list[Reply | None]:
        """Ask about the global model and return the replies in the order of the clients; None where there is none."""
        content: Content = ({"task": self._text}, {"weights": state.weights, "buffers": state.buffers})
        replies = self.questions.ask(
            kind,
            round_index,
            clients.tolist(),
            lambda client: content,
            lambda message, client: read_reply(message, client, likes),
        )
        self._note(round_index, clients, {client: reply.num_steps for client, reply in replies.items()})
        return [replies.get(client) for client in clients.tolist()]

    @override
    def evaluate_clients(self, state: ModelState, round_index: int, max_examples: int) -> list[dict[str, float]]:
        """Return the metrics of the global model on each client's own data; nothing of those that do not answer."""
        content: Content = (
            {"task": self._text, "max_examples": max_examples},
            {"weights": state.weights, "buffers": state.buffers},
        )
        clients = range(len(self.sizes))
        found = self.questions.ask(EVALUATE, round_index, clients, lambda client: content, read_metrics)
        return [found.get(client, {}) for client in clients]

    def _note(self, round_index: int, clients: IntVector, reported: Mapping[int, int]) -> None:
        """Record who of the clients answered, and with how many steps."""
        if self.deliveries and self.deliveries[0].round_index != round_index:
            self.deliveries = []
        number = self.deliveries[-1].question + 1 if self.deliveries else 0
        self.deliveries += [
            Delivery(
                round_index=round_index,
                question=number,
                client=client,
                arrived=client in reported,
                num_steps=reported.get(client, 0),
            )
            for client in clients.tolist()
        ]


def _stacked(rows: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.stack(rows) if rows else like.new_empty((0, len(like)))
