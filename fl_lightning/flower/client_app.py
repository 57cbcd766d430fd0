"""The ClientApp: one client trains with the local engine, on its own data, what the server asks for."""

import contextlib
import io
import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from lightning.fabric import Fabric

from fl_lightning.config import building
from fl_lightning.config.compose import ConfigError
from fl_lightning.data.derived import HeldOut
from fl_lightning.engine import Engine
from fl_lightning.flower import messages, secure_client
from fl_lightning.flower.messages import Content, value
from fl_lightning.flower.node_settings import Node, merged_config, read_node
from fl_lightning.flower.task import parser, read_task
from fl_lightning.parts.protocols import Federation, Handout, LocalWork
from fl_lightning.parts.traits import traits_of_federation
from fl_lightning.seeding import Purpose, client_seed
from fl_lightning.solvers import as_solver
from fl_lightning.types import IntVector, ModelState, RoundPlan, Updates

_LOG = logging.getLogger("fl_lightning")
_FAILED = 0  # Flower's code of an unknown error
_KEPT = 32  # tasks and data sets that a process keeps, where one serves several messages

_OF_SUMS = {
    messages.KEYS: secure_client.answer_keys,
    messages.SHARES: secure_client.answer_shares,
    messages.REVEAL: secure_client.answer_reveal,
}

app = ClientApp()


class OwnData:
    """The data of one client, under its number in the federation: random streams are functions of the number.

    Every number up to the client's own stands for the same data, so that an engine finds nobody without any. The
    federation that holds it is of several clients, or of this one alone.
    """

    def __init__(self, federation: Federation, client: int) -> None:
        sizes = np.asarray(federation.sizes)
        if len(sizes) > 1 and client >= len(sizes):
            raise ValueError(
                f"client={client} is not among the {len(sizes)} clients of the data: give --client a number below it, "
                "or data of this client alone"
            )
        self._federation = federation
        self._place = client if len(sizes) > 1 else 0
        self.client = client
        self.size = int(sizes[self._place])
        self.datamodule = traits_of_federation(federation).datamodule
        data: Any = federation
        if all(hasattr(data, name) for name in ("train", "order", "offsets")):  # one set of tensors, from which
            first = int(data.offsets[self._place])  # an engine gathers by itself
            self.train, self.order = data.train, data.order[first : first + self.size]
            self.offsets = np.zeros(client + 2, dtype=np.int64)
        elif hasattr(data, "tensors"):  # or one of each client
            self.tensors = lambda client: data.tensors(self._place)

    @property
    def sizes(self) -> IntVector:
        """Number of training examples under each number up to the client's own."""
        return np.full(self.client + 1, self.size, dtype=np.int64)

    def batch(self, client: int, indices: IntVector) -> object:
        """Return some of the client's examples."""
        return self._federation.batch(self._place, indices)

    def test_batches(self, batch_size: int) -> Iterator[object]:
        """Yield nothing: the server evaluates."""
        return iter(())

    def measure(self, weights: torch.Tensor, plan: RoundPlan) -> dict[str, float]:
        """Return nothing."""
        return {}


class LocalTraining:
    """One client, ready to train on its own data what the text of the server's task says; each answer is a content."""

    def __init__(self, node: Node, text: str) -> None:
        work = read_task(text, node.trust)
        data = data_of(node)
        settings = work.settings
        torch.manual_seed(client_seed(settings.seed, Purpose.INITIAL_WEIGHTS, 0, 0))
        with contextlib.redirect_stderr(io.StringIO()):
            made = parser().instantiate(settings)
        fabric = Fabric(accelerator=node.accelerator, devices=1, precision=work.precision)
        solver = as_solver(made.loop.solver).clipped(made.loop.gradient_clip_val, made.loop.gradient_clip_algorithm)
        self.node = node
        self.engine = Engine(**work.engine, threads=node.threads)
        self.held = HeldOut(data, work.held_out, settings.seed)
        federation = self.held.training() if work.held_out else data
        self.state = self.engine.setup(
            fabric, made.model, federation, solver, made.loop.batch_size, settings.seed, work.num_draws
        )
        solver.setup(made.model, made.loop.lr)

    def train(self, message: Message) -> Content:
        """Train and return the update."""
        updates = self._trained(message)
        values = {"num_steps": int(updates.num_steps[0]), "loss": float(updates.losses[0])}
        return values, {"delta": updates.deltas[0], "buffers": updates.buffers[0]}

    def masked(self, message: Message, context: Context) -> Content:
        """Train and return the update times n c, and the loss, under masks."""
        hide = secure_client.masking(message, context, self.node.client)
        secure_client.claim_round(self.node, value(message, "task", str), _round(message))
        updates = self._trained(message)
        values = value(message, "factor", float) * updates.deltas[0].cpu().double().numpy()
        hidden = hide(np.append(values, np.nan_to_num(updates.losses[0])))
        return {"num_steps": int(updates.num_steps[0])}, {"masked": torch.from_numpy(hidden.view(np.uint8))}

    def _trained(self, message: Message) -> Updates:
        client = self.node.client
        asked = value(message, "num_steps", int)
        num_steps = self.node.steps or asked
        if not 1 <= num_steps <= self.node.max_steps:
            raise ConfigError(
                f"the server asks for {num_steps} local steps, but this node makes 1..{self.node.max_steps}"
            )
        lr = value(message, "lr", float)
        if not 0 < lr < float("inf"):
            raise ConfigError(f"the server sets a learning rate of {lr}")
        shift = messages.tensor(message, "shift", self.state.weights) if messages.has_tensor(message, "shift") else None
        work = LocalWork(
            round_index=_round(message),
            num_steps=np.full(client + 1, num_steps, dtype=np.int64),
            learning_rate=lr,
            handout=Handout(gradient_shift=lambda client: shift),
        )
        return self.engine.work(self._received(message), np.array([client]), work)

    def loss(self, message: Message) -> Content:
        """Return the loss of the global model on the first batch of a round."""
        losses = self.engine.losses(self._received(message), np.array([self.node.client]), _round(message))
        return {"num_steps": 0, "loss": float(losses[0])}, {}

    def gradient(self, message: Message) -> Content:
        """Return the gradient of the first batch of a round at the global model."""
        gradients = self.engine.gradients(self._received(message), np.array([self.node.client]), _round(message))
        return {"num_steps": 0, "loss": 0.0}, {"gradient": gradients[0]}

    def evaluate(self, message: Message) -> Content:
        """Return the metrics of the global model on what this client holds out."""
        most = value(message, "max_examples", int)
        if most < 1:
            raise ConfigError(f"the server asks for an evaluation on {most} examples")
        batch = self.held.own_batch(self.node.client, most)
        found = self.engine.evaluate_batch(self._received(message), batch)
        return {"names": list(found), "numbers": [float(number) for number in found.values()]}, {}

    def _received(self, message: Message) -> ModelState:
        return ModelState(
            messages.tensor(message, "weights", self.state.weights),
            messages.tensor(message, "buffers", self.state.buffers),
        )


def _round(message: Message) -> int:
    index = value(message, "round", int)
    if index < 0:
        raise ConfigError(f"the server asks for round {index}")
    return index


@lru_cache(maxsize=_KEPT)
def data_of(node: Node) -> OwnData:
    """Return the data of a node, loaded once in a process."""
    merged = merged_config(node.config)
    data = building.instantiate_data_of(merged, node.trust)
    return OwnData(data.load(int(merged.get("seed", 0))), node.client)


training_of = lru_cache(maxsize=_KEPT)(LocalTraining)  # made once in a process


def _answered(message: Message, context: Context) -> Message:
    """Answer a message, or say to the server in one line why not; what it may not know stays in the node's log."""
    try:
        node = read_node(context.node_config)
        values, tensors = _content(node, message, context)
        return Message(messages.packed({**values, "client": node.client}, tensors), reply_to=message)
    except (ConfigError, messages.BadMessageError) as error:
        reason = " ".join(str(error).split())
        _LOG.error(reason)
    except Exception as error:  # whatever a module or data does: the round goes on without this client
        _LOG.exception("the client failed")
        reason = f"failed with {type(error).__name__}, see the node's log"
    return Message(Error(_FAILED, reason), reply_to=message)


def _content(node: Node, message: Message, context: Context) -> Content:
    kind = message.metadata.message_type
    if kind == messages.WHO:
        return {"size": data_of(node).size}, {}
    if value(message, "client", int) != node.client:
        raise ConfigError(f"this is client {node.client}, not the one that was asked for")
    if kind in _OF_SUMS:
        return _OF_SUMS[kind](message, context, node), {}
    if node.only_sums and kind != messages.MASKED:
        raise ConfigError("this node sends nothing but what goes into a secure sum (node.only_sums)")
    training = training_of(node, value(message, "task", str))
    if kind == messages.MASKED:
        return training.masked(message, context)
    ways = {
        messages.TRAIN: training.train,
        messages.EVALUATE: training.evaluate,
        messages.LOSS: training.loss,
        messages.GRADIENT: training.gradient,
    }
    return ways[kind](message)


# Flower wants a function for each kind of message that an app answers.
app.train()(_answered)
app.train("masked")(_answered)
app.evaluate()(_answered)
for _question in ("who", "loss", "gradient", "keys", "shares", "reveal"):
    app.query(_question)(_answered)
