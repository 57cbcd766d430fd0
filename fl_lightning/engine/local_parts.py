"""What is asked of clients and what stays there: questions before the draw, and parameters of their own."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from fl_lightning.parts.memory import Remembers, State
from fl_lightning.parts.protocols import Engine, Handout
from fl_lightning.server.faults import finite_rows, zeroed
from fl_lightning.types import Asked, IntVector, ModelState, RoundPlan, Updates, Vector

LAST_LAYER = "last layer"


class LocalParts(Remembers):
    """Keeps each client's own values of some parameters and buffers (FedBN, local heads).

    A client starts from the global values and continues from its own as soon as it has trained; its upload has none of
    them. What a client trains for itself is kept whether its upload arrives or not, unless it is not finite. The server
    never sees these values, so the global model keeps the initial ones, and they are what an evaluation of the global
    model uses; :meth:`personalised` gives a client's model.

    Args:
        patterns: Names of parameters and float buffers as in ``named_parameters``, with the wildcards of ``fnmatch``:
            ``["head.*", "*.bn*"]``; ``last layer`` stands for what is trained in the same part as the last parameter.
    """

    memory = ("patterns", "weights", "buffers")

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = list(patterns)
        self.weights: dict[int, torch.Tensor] = {}  # own values of each client that has trained, (k,)
        self.buffers: dict[int, torch.Tensor] = {}
        self._names: list[str] = []  # the patterns as they fit the module
        self._places = self._buffer_places = torch.empty(0, dtype=torch.int64)

    def setup(self, module: nn.Module, state: ModelState) -> None:
        """Find what stays in a module, and forget all clients."""
        self.weights, self.buffers = {}, {}
        trained = [(name, each.numel()) for name, each in module.named_parameters() if each.requires_grad]
        float_buffers = [
            (f"{prefix}.{name}" if prefix else name, buffer.numel())
            for prefix, owner in module.named_modules()
            for name, buffer in owner.named_buffers(recurse=False)
            if buffer.is_floating_point()
        ]
        names = [name for name, _ in trained + float_buffers]
        last = trained[-1][0].rpartition(".")[0]
        self._names = [(f"{last}.*" if last else "*") if each == LAST_LAYER else each for each in self.patterns]
        for pattern in self._names:
            if not any(fnmatchcase(name, pattern) for name in names):
                shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                raise ValueError(f"local_parameters={pattern!r} fits no trainable parameter and no buffer of: {shown}")
        self._places = self._found(trained, len(state.weights)).to(state.weights.device)
        self._buffer_places = self._found(float_buffers, len(state.buffers)).to(state.buffers.device)

    def _found(self, named: list[tuple[str, int]], total: int) -> torch.Tensor:
        """Return the places of what stays in a flat vector of all of it."""
        lengths = [length for _, length in named]
        if self.patterns and sum(lengths) != total:
            raise ValueError(
                f"local_parameters needs the flat state to hold the module's parameters and float buffers in order: "
                f"found {sum(lengths)} values by name, but the state has {total}"
            )
        stays = [any(fnmatchcase(name, pattern) for pattern in self._names) for name, _ in named]
        return torch.from_numpy(np.flatnonzero(np.repeat(np.array(stays, dtype=bool), lengths)))

    def marks(self, weights: torch.Tensor) -> torch.Tensor:
        """Return which weights stay at a client, (d,)."""
        return torch.zeros_like(weights, dtype=torch.bool).index_fill(0, self._places, True)

    @property
    def num_kept(self) -> tuple[int, int]:
        """How many weights and how many buffer values stay at a client."""
        return len(self._places), len(self._buffer_places)

    def start(self, client: int, weights: torch.Tensor) -> torch.Tensor:
        """Return the weights that a client starts from, given those it gets."""
        return _with_own(self.weights.get(client), self._places, weights)

    def start_buffers(self, client: int, buffers: torch.Tensor) -> torch.Tensor:
        """Return the buffers that a client starts from, given the global ones."""
        return _with_own(self.buffers.get(client), self._buffer_places, buffers)

    def personalised(self, client: int, state: ModelState) -> ModelState:
        """Return a client's own model: the global one with the client's values in place of the global ones."""
        return ModelState(self.start(client, state.weights), self.start_buffers(client, state.buffers))

    def added_to(self, handout: Handout) -> Handout:
        """Return what clients get, with their own values in place of the global ones."""
        given = handout.start

        def start(client: int, weights: torch.Tensor) -> torch.Tensor:
            return self.start(client, given(client, weights))

        return replace(handout, start=start, start_buffers=self.start_buffers)

    def keep(
        self, updates: Updates, uploading: IntVector, state: ModelState, plan: RoundPlan, handout: Handout
    ) -> Updates:
        """Take over the own values of those who trained and were drawn, and return what the others see of it.

        ``updates`` are of all who trained, from ``state`` and ``handout``; only the uploads of ``uploading`` are used.
        """
        sound = finite_rows(updates.deltas) & finite_rows(updates.buffers)
        for row in np.flatnonzero(sound.cpu().numpy() & np.isin(updates.clients, plan.cohort.clients)).tolist():
            client = int(updates.clients[row])
            began = handout.start(client, state.weights)[self._places]
            self.weights[client] = began - plan.learning_rate * updates.deltas[row, self._places]
            self.buffers[client] = updates.buffers[row, self._buffer_places].clone()
        return self.shared(updates.rows(np.searchsorted(updates.clients, uploading)), state)

    def shared(self, updates: Updates, state: ModelState) -> Updates:
        """Return updates with nothing in place of what stays: no step, and the global buffers."""
        buffers = updates.buffers.clone()
        buffers[:, self._buffer_places] = state.buffers[self._buffer_places]
        return replace(updates, deltas=self.without_local(updates.deltas), buffers=buffers)

    def without_local(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows with 0 in place of what stays; what is not finite shows that a client failed."""
        finite = rows.clone()
        finite[:, self._places] = torch.where(torch.isfinite(rows[:, self._places]), 0.0, rows[:, self._places])
        return finite

    def restored(self, weights: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Return aggregated weights with the global values of what stays as they were, to the last bit."""
        return _with_own(before[self._places], self._places, weights) if len(self._places) else weights

    @override
    def load_state_dict(self, state: State) -> None:
        """Take back the clients' values, if they are of the same patterns."""
        if state.get("patterns") != self.patterns:
            raise ValueError(
                f"the checkpoint is of a run with local_parameters={state.get('patterns')}, but this one has "
                f"{self.patterns}: resume with the same, or start anew"
            )
        super().load_state_dict(state)


def _with_own(own: torch.Tensor | None, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if own is None or not len(places):
        return values
    return values.index_copy(0, places, own.to(values))


class EngineProbe:
    """Asks clients through the engine, counts the steps, and keeps what was trained: nobody trains twice.

    A sampler sees what clients would upload, with zeros for what is not finite or overflows; gradients and losses are
    those of the global model.
    """

    def __init__(
        self, engine: Engine, state: ModelState, plan: RoundPlan, handout: Handout, parts: LocalParts | None = None
    ) -> None:
        self._engine, self._state = engine, state
        self._plan, self._handout = plan, handout
        self._parts = parts
        self._trained: Updates | None = None
        self.num_steps = 0  # local steps spent on questions
        self.asked = Asked()

    def losses(self, clients: IntVector) -> Vector:
        """Loss of the global model on one batch of each client; a forward pass is charged as a third of a step."""
        self._count(clients, -(-len(clients) // 3))
        losses = self._engine.losses(self._state, clients, self._plan.index)
        return np.where(np.isfinite(losses), losses, 0.0)

    def gradients(self, clients: IntVector) -> torch.Tensor:
        """Gradient of one batch of each client at the global model."""
        self._count(clients, len(clients))
        gradients = self._engine.gradients(self._state, clients, self._plan.index)
        return zeroed(gradients if self._parts is None else self._parts.without_local(gradients))

    def updates(self, clients: IntVector) -> Updates:
        """Full local training of each client."""
        self._count(clients, int(self._plan.profiles.num_steps[clients].sum()))
        self._trained = self._engine.train(self._state, self._plan, clients, self._handout)
        absent = np.setdiff1d(clients, self._trained.clients)
        if len(absent):
            raise ValueError(
                f"round {self._plan.index}: the sampler asks clients for their updates before it draws, but "
                f"client {absent[0]} did not answer ({len(absent)} such clients): use one that asks nothing, or "
                "norms='stale'"
            )
        updates = self._trained if self._parts is None else self._parts.shared(self._trained, self._state)
        return replace(updates, deltas=zeroed(updates.deltas), losses=np.nan_to_num(updates.losses, nan=0.0))

    def _count(self, clients: IntVector, num_steps: int) -> None:
        self.num_steps += num_steps
        self.asked = replace(self.asked, clients=np.union1d(self.asked.clients, clients))

    def label_counts(self) -> IntVector:
        """How many examples of each class every client has; each number that is told is charged."""
        counts = self._engine.label_counts()
        self.asked = replace(self.asked, numbers=self.asked.numbers + counts.size)
        return counts

    def trained(self, clients: IntVector, learning_rate: float) -> Updates | None:
        """Return the updates of these clients if all of them were trained already at this learning rate."""
        known = self._trained
        if known is None or abs(learning_rate - self._plan.learning_rate) > 1e-9 * learning_rate:
            return None
        if not np.isin(clients, known.clients).all():
            return None
        return known.rows(np.searchsorted(known.clients, clients))
