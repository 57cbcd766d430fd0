"""What the loop asks of the parts it is made of.

Any object with these methods will do; nothing needs to be registered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch

from fl_lightning.types import IntVector, ModelState, Profiles, RoundPlan, Updates, Vector

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.pytorch import LightningModule

    from fl_lightning.solvers import Solver

Batch: TypeAlias = object  # whatever a data set collates and a module's steps take
# Makes a local step, given the solver's own, and gradient and weights in place; of one client or of a stack of them.
Step: TypeAlias = Callable[[Callable[[], None], torch.Tensor, torch.Tensor], None]
Forecast = Callable[[], Iterator[Profiles]]  # yields profiles of rounds that will not be played, for expectations


class Federation(Protocol):
    """The clients' data, ready in memory, and the common test data."""

    @property
    def sizes(self) -> IntVector:
        """Number of training examples of each client, (M,)."""

    def batch(self, client: int, indices: IntVector) -> Batch:
        """Return the client's examples ``indices`` (each below its size), collated as ``training_step`` takes them."""

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield the test data in batches as ``test_step`` takes them."""

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return extra metrics of the global weights that only the data knows (the toy's distance to its optimum)."""


class Probe(Protocol):
    """What a sampler may ask of clients before it draws; each question is charged to the round."""

    @property
    def num_steps(self) -> int:
        """Local steps spent on questions so far."""

    def losses(self, clients: IntVector) -> Vector:
        """Loss of the global model on one batch of each client, (n,)."""

    def gradients(self, clients: IntVector) -> torch.Tensor:
        """Gradient of one batch of each client at the global model, (n, d)."""

    def label_counts(self) -> IntVector:
        """How many examples of each class every client has, (M, C); a question for the first round alone."""

    def updates(self, clients: IntVector) -> Updates:
        """Full local training of each client; reused when one of them is drawn."""


def global_weights(client: int, weights: torch.Tensor) -> torch.Tensor:
    """Return the global weights: what a client starts from that has no model of its own."""
    return weights


def no_shift(client: int) -> torch.Tensor | None:
    """Return nothing: what a client adds to its gradients where the aggregator corrects none."""
    return None


def global_buffers(client: int, buffers: torch.Tensor) -> torch.Tensor:
    """Return the global buffers: what a client starts from that keeps none of its own."""
    return buffers


@dataclass(frozen=True, kw_only=True)
class Handout:
    """What clients of a round get besides the global model; an engine need not ask for each client where it is none."""

    start: Callable[[int, torch.Tensor], torch.Tensor] = global_weights  # the weights a client starts from
    gradient_shift: Callable[[int], torch.Tensor | None] = no_shift  # what a client adds to its gradients
    start_buffers: Callable[[int, torch.Tensor], torch.Tensor] = global_buffers  # the float buffers it starts from
    step: Step | None = None  # makes each local step around the solver's own; None: the solver alone


PLAIN = Handout()


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """What the clients of a round have to do, the same whoever does it."""

    round_index: int
    num_steps: IntVector  # T of all M clients
    learning_rate: float
    handout: Handout = PLAIN

    @classmethod
    def planned(cls, plan: RoundPlan, handout: Handout) -> "LocalWork":
        """Return the work of a round."""
        num_steps, rate = plan.profiles.num_steps, plan.learning_rate
        return cls(round_index=plan.index, num_steps=num_steps, learning_rate=rate, handout=handout)


class Answers(Protocol):
    """Asks clients about the global model."""

    def losses(self, state: ModelState, clients: IntVector, round_index: int) -> Vector:
        """Return the loss of the global model on the first batch of each client, (n,)."""

    def gradients(self, state: ModelState, clients: IntVector, round_index: int) -> torch.Tensor:
        """Return the gradient of the first batch of each client at the global model, (n, d)."""


class CountsLabels(Protocol):
    """Asks clients what their data is made of."""

    def label_counts(self) -> IntVector:
        """Return how many training examples of each class every client has, (M, C)."""


class Trains(Answers, Protocol):
    """A way of training the clients of a round."""

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back, in the given order."""


class EvaluatesClients(Protocol):
    """Evaluates a model on data of single clients."""

    def evaluate_clients(self, state: ModelState, round_index: int, max_examples: int) -> list[dict[str, float]] | None:
        """Return the metrics of the global model where each client has its data to itself; None where it is here."""

    def evaluate_batch(self, state: ModelState, batch: Batch) -> dict[str, float]:
        """Return the metrics of a state on one batch of the federation."""


class Engine(Answers, CountsLabels, EvaluatesClients, Protocol):
    """All that the loop knows of how a model is trained and evaluated: here, in processes, or on other machines."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether clients are on other machines, so that training alone shows who answers, with how many steps."""

    def train(self, state: ModelState, plan: RoundPlan, clients: IntVector, handout: Handout = PLAIN) -> Updates:
        """Train each client from the global state as planned and return what they send back, in the given order."""

    def setup(
        self,
        fabric: "Fabric",
        module: "LightningModule",
        federation: Federation,
        solver: "Solver",
        batch_size: int,
        seed: int,
        num_draws: int | None = None,
    ) -> ModelState:
        """Bind the engine to a module and its data and return the initial state."""

    def evaluate(self, state: ModelState) -> tuple[dict[str, float], Vector]:
        """Return the metrics of the global model on the test data, and its accuracy per class."""

    def load(self, state: ModelState) -> None:
        """Put a state into the module."""

    def close(self) -> None:
        """End the run; called once, after the last round or the pause."""
