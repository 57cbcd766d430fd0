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
from fl_lightning.flower import records, secure_client
from fl_lightning.flower.membership import claim_round
from fl_lightning.flower.node import Node, merged_config, read_node
from fl_lightning.flower.task import parser, read_task
from fl_lightning.parts.protocols import Federation, Handout, LocalWork
from fl_lightning.seeding import Purpose, client_seed
from fl_lightning.solvers import as_solver
from fl_lightning.types import IntVector, ModelState, RoundPlan, Updates

_LOG = logging.getLogger("fl_lightning")
_FAILED = 0  # Flower's code of an unknown error
_KEPT = 32  # tasks and data sets that a process keeps, where one serves several messages

_OF_SUMS = {
    records.KEYS: secure_client.answer_keys,
    records.SHARES: secure_client.answer_shares,
    records.REVEAL: secure_client.answer_reveal,
}

app = ClientApp()


class OwnData:
    """The data of one client, under its number in the federation: random streams are functions of the number.

    Every number up to the client's own stands for the same data, so that an engine finds nobody without any.

    Args:
        federation: Where the data is: of several clients, or of this one alone.
        client: Its number.
    """

    def __init__(self, federation: Federation, client: int) -> None:
        sizes = np.asarray(federation.sizes)
        if len(sizes) > 1 and client >= len(sizes):
            raise ValueError(
                f"client={client} is not among the {len(sizes)} clients of the data: give --client a number below it, "
                "or data of this client alone"
            )
        self._federation, self._place = federation, client if len(sizes) > 1 else 0
        self.client, self.size = client, int(sizes[self._place])
        self.datamodule = getattr(federation, "datamodule", None)
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
    """One client, ready to train.

    Args:
        node: Its own settings.
        data: Its own data.
        text: The server's task.
    """

    def __init__(self, node: Node, data: OwnData, text: str) -> None:
        work = read_task(text, node.trust)
        settings = work.settings
        torch.manual_seed(client_seed(settings.seed, Purpose.INITIAL_WEIGHTS, 0, 0))
        with contextlib.redirect_stderr(io.StringIO()):
            made = parser().instantiate(settings)
        fabric = Fabric(accelerator=node.accelerator, devices=1, precision=work.precision)
        solver = as_solver(made.loop.solver)
        self.node, self.engine = node, Engine(**work.engine, threads=node.threads)
        self.held = HeldOut(data, work.held_out, settings.seed)
        federation = self.held.training() if work.held_out else data
        self.state = self.engine.setup(
            fabric, made.model, federation, solver, made.loop.batch_size, settings.seed, work.num_draws
        )
        solver.setup(made.model, made.loop.lr)

    def train(self, message: Message) -> Message:
        """Train and return the update."""
        updates = self._trained(message)
        tensors = {"delta": updates.deltas[0], "buffers": updates.buffers[0]}
        return self._reply(message, int(updates.num_steps[0]), float(updates.losses[0]), tensors)

    def masked(self, message: Message, context: Context) -> Message:
        """Train and return the update times n c, and the loss, under masks."""
        hide = secure_client.masking(message, context, self.node.client)
        claim_round(self.node, records.value(message, "task", str), _round(message))
        updates = self._trained(message)
        values = records.value(message, "factor", float) * updates.deltas[0].double().cpu().numpy()
        hidden = hide(np.append(values, np.nan_to_num(updates.losses[0])))
        reply = {"client": self.node.client, "num_steps": int(updates.num_steps[0])}
        tensors = {"masked": torch.from_numpy(hidden.view(np.uint8))}
        return Message(records.packed(reply, tensors), reply_to=message)

    def _trained(self, message: Message) -> Updates:
        client, asked = self.node.client, records.value(message, "num_steps", int)
        num_steps = self.node.steps or asked
        if not 1 <= num_steps <= self.node.max_steps:
            raise ConfigError(
                f"the server asks for {num_steps} local steps, but this node makes 1..{self.node.max_steps}"
            )
        lr = records.value(message, "lr", float)
        if not 0 < lr < float("inf"):
            raise ConfigError(f"the server sets a learning rate of {lr}")
        shift = records.tensor(message, "shift", self.state.weights) if records.has_tensor(message, "shift") else None
        work = LocalWork(
            round_index=_round(message),
            num_steps=np.full(client + 1, num_steps, dtype=np.int64),
            learning_rate=lr,
            handout=Handout(gradient_shift=lambda client: shift),
        )
        return self.engine.work(self._received(message), np.array([client]), work)

    def loss(self, message: Message) -> Message:
        """Return the loss of the global model on the first batch of a round."""
        clients = np.array([self.node.client])
        return self._reply(message, 0, float(self.engine.losses(self._received(message), clients, _round(message))[0]))

    def gradient(self, message: Message) -> Message:
        """Return the gradient of the first batch of a round at the global model."""
        gradients = self.engine.gradients(self._received(message), np.array([self.node.client]), _round(message))
        return self._reply(message, 0, 0.0, {"gradient": gradients[0]})

    def evaluate(self, message: Message) -> Message:
        """Return the metrics of the global model on what this client holds out."""
        most = records.value(message, "max_examples", int)
        if most < 1:
            raise ConfigError(f"the server asks for an evaluation on {most} examples")
        batch = self.held.own_batch(self.node.client, most)
        found = self.engine.evaluate_batch(self._received(message), batch)
        names, numbers = list(found), [float(number) for number in found.values()]
        values: records.Values = {"client": self.node.client, "names": names, "numbers": numbers}
        return Message(records.packed(values), reply_to=message)

    def _received(self, message: Message) -> ModelState:
        return ModelState(
            records.tensor(message, "weights", self.state.weights),
            records.tensor(message, "buffers", self.state.buffers),
        )

    def _reply(
        self, message: Message, num_steps: int, loss: float, tensors: dict[str, torch.Tensor] | None = None
    ) -> Message:
        values = {"client": self.node.client, "num_steps": num_steps, "loss": loss}
        return Message(records.packed(values, tensors), reply_to=message)


def _round(message: Message) -> int:
    index = records.value(message, "round", int)
    if index < 0:
        raise ConfigError(f"the server asks for round {index}")
    return index


@lru_cache(maxsize=_KEPT)
def data_of(node: Node) -> OwnData:
    """Return the data of a node, loaded once in a process."""
    merged = merged_config(node.config)
    data = building.instantiate_data_of(merged, node.trust)
    return OwnData(data.load(int(merged.get("seed", 0))), node.client)


@lru_cache(maxsize=_KEPT)
def training_of(node: Node, text: str) -> LocalTraining:
    """Return a client that is ready for a task, made once in a process."""
    return LocalTraining(node, data_of(node), text)


def _answered(message: Message, context: Context) -> Message:
    """Answer a message, or say to the server in one line why not; what it may not know stays in the node's log."""
    try:
        return _answer(message, context)
    except (ConfigError, records.BadMessageError) as error:
        reason = " ".join(str(error).split())
        _LOG.error(reason)
    except Exception as error:  # whatever a module or data does: the round goes on without this client
        _LOG.exception("the client failed")
        reason = f"failed with {type(error).__name__}, see the node's log"
    return Message(Error(_FAILED, reason), reply_to=message)


def _answer(message: Message, context: Context) -> Message:
    node, kind = read_node(context.node_config), message.metadata.message_type
    if kind == records.WHO:
        return Message(records.packed({"client": node.client, "size": data_of(node).size}), reply_to=message)
    if records.value(message, "client", int) != node.client:
        raise ConfigError(f"this is client {node.client}, not the one that was asked for")
    if kind in _OF_SUMS:
        found = _OF_SUMS[kind](message, context, node)
        return Message(records.packed({**found, "client": node.client}), reply_to=message)
    if node.only_sums and kind != records.MASKED:
        raise ConfigError("this node sends nothing but what goes into a secure sum (node.only_sums)")
    training = training_of(node, records.value(message, "task", str))
    if kind == records.MASKED:
        return training.masked(message, context)
    ways = {
        records.TRAIN: training.train,
        records.EVALUATE: training.evaluate,
        records.LOSS: training.loss,
        records.GRADIENT: training.gradient,
    }
    return ways[kind](message)


# Flower wants a function for each kind of message that an app answers.
app.train()(_answered)
app.train("masked")(_answered)
app.evaluate()(_answered)
for _question in ("who", "loss", "gradient", "keys", "shares", "reveal"):
    app.query(_question)(_answered)
