"""What clients train for themselves in a round, and a second model for each of them."""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from typing_extensions import override

from fl_lightning.aggregators.client_rows import ClientRows, RowStorage
from fl_lightning.parts.memory import Remembers
from fl_lightning.parts.protocols import Engine, Handout, Step
from fl_lightning.server.faults import finite_rows
from fl_lightning.system import Clock
from fl_lightning.types import IntVector, ModelState, RoundCosts, RoundPlan

if TYPE_CHECKING:
    from fl_lightning.engine.local_parts import LocalParts


class Personal(Remembers):
    """Lets the drawn clients train something of their own, whether their upload arrives or not.

    They do it in passes of their own over the batches of the round, so that neither the update nor a random stream
    changes: but for :meth:`before`, the global model is what it would be without.
    """

    def setup(self, num_clients: int, state: ModelState, local: "LocalParts | None") -> None:
        """Get to know the model before the first round, and forget all clients."""

    def before(self, engine: Engine, state: ModelState, plan: RoundPlan, handout: Handout) -> Handout:
        """Train what comes before the update, and return what clients get for the update itself."""
        return handout

    def after(self, engine: Engine, state: ModelState, plan: RoundPlan) -> None:
        """Train what comes after the update; ``state`` is the model that clients got."""

    def of(self, client: int, state: ModelState) -> ModelState | None:
        """Return a client's own model beside the global one; None where there is none but for local parameters."""
        return None

    def num_steps(self, plan: RoundPlan) -> IntVector:
        """Return how many local steps each client makes for itself, besides those of its update, (M,)."""
        return plan.profiles.num_steps

    def charged(self, costs: RoundCosts, plan: RoundPlan, clock: Clock) -> RoundCosts:
        """Return the costs of a round with the own steps of who was drawn; nobody waits for them."""
        own, drawn = self.num_steps(plan), plan.cohort.clients
        seconds = float(clock.times(plan.index, own, clients=drawn)[0].sum())
        steps = costs.local_steps + int(own[drawn].sum())
        return replace(costs, local_steps=steps, computation_time=costs.computation_time + seconds)


class PersonalModels(Personal):
    """Keeps a second model, weights and float buffers, for each client that was ever drawn.

    A client's own model begins as the global one that it first gets, and is the global one until then. What is not
    finite after a round is not kept.

    Args:
        storage: Where and how exactly the models are kept, see :class:`fl_lightning.aggregators.RowStorage`.
    """

    memory: ClassVar[tuple[str, ...]] = ("models",)
    share = 1.0  # of what is kept in a client's model; the rest is the global one

    def __init__(self, storage: RowStorage | None = None) -> None:
        self.storage = storage

    @override
    def setup(self, num_clients: int, state: ModelState, local: "LocalParts | None") -> None:
        if local is not None:
            raise ValueError(
                f"personal={type(self).__name__} keeps a whole model for each client, but local_parameters="
                f"{local.patterns} would stay there as well: leave one of them out"
            )
        like = torch.cat([state.weights, state.buffers.to(state.weights)])
        self.models = ClientRows(num_clients, like, self.storage)

    @override
    def after(self, engine: Engine, state: ModelState, plan: RoundPlan) -> None:
        clients, share = plan.cohort.clients, self.share
        handout = Handout(
            start=lambda client, _: self.of(client, state).weights,
            start_buffers=lambda client, _: self.of(client, state).buffers,
            step=self.step(state),
        )
        own = replace(plan, learning_rate=share**2 * plan.learning_rate)
        updates = engine.train(state, own, clients, handout)
        begun = [self._kept(client, state).weights for client in updates.clients.tolist()]
        weights = [w - share * plan.learning_rate * delta for w, delta in zip(begun, updates.deltas, strict=True)]
        if weights:
            rows = torch.cat([torch.stack(weights), updates.buffers.to(weights[0])], dim=1)
            sound = finite_rows(rows).cpu()
            self.models.put(updates.clients[sound.numpy()], rows[sound.to(rows.device)])

    def step(self, state: ModelState) -> Step | None:
        """Return what is made around each step of a client's own model; None: nothing."""
        return None

    @override
    def of(self, client: int, state: ModelState) -> ModelState:
        kept = self._kept(client, state)
        return ModelState(state.weights.lerp(kept.weights, self.share), kept.buffers)

    def _kept(self, client: int, state: ModelState) -> ModelState:
        if client not in self.models:
            return state
        row = self.models.of(client)
        return ModelState(row[: len(state.weights)], row[len(state.weights) :].to(state.buffers))
