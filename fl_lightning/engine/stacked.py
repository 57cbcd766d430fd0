"""Local training of many small clients at once: one row of a matrix for each."""

import logging
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TypeVar, cast

import numpy as np
import torch
from torch import nn
from torch.func import grad_and_value, vmap

from fl_lightning.engine.client import ClientTrainer, precise
from fl_lightning.engine.memory import give_back, is_out_of_memory
from fl_lightning.engine.model import training_loss
from fl_lightning.engine.ways import SideBySide, empty_updates, stepping, train_row
from fl_lightning.parts.protocols import Batch, LocalWork, global_weights, no_shift
from fl_lightning.types import IntVector, ModelState, Updates, Vector

_LOG = logging.getLogger("fl_lightning")
_First = TypeVar("_First")
_Second = TypeVar("_Second")
Places = MutableMapping[str, torch.Tensor]  # of a module's parameters, which stand aside while others are tried
_FLOATS_IN_STACK = 1 << 20  # weights of a stack: together with gradients and activations they stay in the cache


class StackTrainer:
    """Trains clients that share a batch length together; the rows of a stack are independent of each other.

    Clients are sorted by T, so that those still at work are the first rows, and each step is taken by a shrinking
    prefix. The model of the trainer of single clients gives the shapes; its own weights are left alone.
    """

    def __init__(self, single: ClientTrainer) -> None:
        self.model = model = single.model
        self.solver = single.solver
        self.batches = single.batches
        self.autocast = single.autocast
        self.position = single.position
        self._places = [_places(model.module, parameter) for parameter in model.parameters]
        self._shapes = [parameter.shape for parameter in model.parameters]
        self._lengths = [parameter.numel() for parameter in model.parameters]
        self._differentiate = vmap(grad_and_value(self._loss), in_dims=(0, 0, None))

    def _loss(self, parameters: Sequence[torch.Tensor], batch: Batch, index: int) -> torch.Tensor:
        """Return the loss of a training step with other parameters in place of the module's own.

        ``torch.func.functional_call`` does the same; it looks for the places anew in each call, which takes longer than
        a small step.
        """
        try:
            self._put(parameters)
            return training_loss(self.model.module, batch, index)
        finally:
            self._put(self.model.parameters)

    def _put(self, parameters: Sequence[torch.Tensor]) -> None:
        for places, parameter in _pairs(self._places, parameters):
            for owner, name in places:
                owner[name] = parameter

    @property
    def in_cache(self) -> int:
        """Clients of a stack that stays in the cache of a processor."""
        return max(2, _FLOATS_IN_STACK // len(self.model.weights))

    def stacks(self, clients: IntVector, work: LocalWork, size: int | None = None) -> list[IntVector]:
        """Return the positions in ``clients`` that are trained together: one batch length, longest T first."""
        size = size or self.in_cache
        order = np.lexsort((np.arange(len(clients)), -work.num_steps[clients], self.batches.lengths[clients]))
        lengths = self.batches.lengths[clients][order]
        groups = np.split(order, np.flatnonzero(np.diff(lengths)) + 1)
        return [group[first : first + size] for group in groups for first in range(0, len(group), size)]

    def train(self, clients: IntVector, state: ModelState, work: LocalWork) -> tuple[torch.Tensor, Vector]:
        """Return the updates (n, d) and mean losses (n,) of clients that :meth:`stacks` put together."""
        starts = _starts(clients, state.weights, work)
        weights = starts.clone() if len(starts) == len(clients) > 1 else starts.repeat(len(clients), 1)
        gradient = torch.empty_like(weights)
        shifts = _shifts(clients, weights, work)
        steps = self.solver.begin(weights, gradient, (), work.learning_rate)
        num_steps = work.num_steps[clients]
        examples = self.batches.examples(clients)
        rows = self.batches.rows(clients, work.round_index, int(num_steps[0]))
        total = weights.new_zeros(len(clients), dtype=precise(weights.dtype))
        # How many have T > index: a prefix, because the longest come first.
        still = np.searchsorted(-num_steps, -np.arange(int(num_steps[0])), side="left").tolist()
        self.position.begin(work.round_index)
        for index, batch in enumerate(self.batches.stacked_steps(examples, rows, still)):
            active = still[index]
            if index and active < still[index - 1]:
                steps.narrow(active)
            self.position.global_step = index
            total[:active] += self.gradients(weights[:active], batch, index, gradient[:active])
            if shifts is not None:
                gradient[:active].add_(shifts[:active])
            with torch.no_grad():
                steps.step()
        deltas = torch.sub(starts, weights, out=gradient).div_(work.learning_rate)
        return deltas, total.cpu().double().numpy() / num_steps

    def gradients(self, weights: torch.Tensor, batch: Batch, index: int, out: torch.Tensor) -> torch.Tensor:
        """Write the gradients of a stack of batches into ``out`` and return their losses, (n,)."""
        count = len(weights)
        if count == 1:  # a stack of one takes other kernels, and its row would depend on being alone
            weights = weights.expand(2, -1)
            batch = torch.utils._pytree.tree_map(_twice, batch)
        parts = weights.split(self._lengths, dim=1)
        parameters = [part.unflatten(1, shape) if shape else part[:, 0] for part, shape in _pairs(parts, self._shapes)]
        with self.autocast():
            gradients, losses = self._differentiate(parameters, batch, index)
        for target, gradient in _pairs(out.split(self._lengths, dim=1), gradients):
            target.copy_(gradient[:count].reshape(target.shape))
        return losses[:count]


class Stacked(SideBySide):
    """Trains stacks of clients side by side; questions are answered client by client.

    ``block`` clients are stacked at most; 0: as many as the cache holds. A block that runs out of memory is halved.
    """

    def __init__(self, trainers: Sequence[ClientTrainer], cpu_tuning: bool, threads: int, block: int = 0) -> None:
        super().__init__(trainers, cpu_tuning, threads)
        self.stack_trainers = {trainer: StackTrainer(trainer) for trainer in trainers}
        first = trainers[0]
        if not block:
            block = self.stack_trainers[first].in_cache
        elif first.model.weights.device.type == "cpu":
            block = min(max(2, block // len(trainers)), self.stack_trainers[first].in_cache)
        self.block, self._halved = block, False

    def train(self, state: ModelState, clients: IntVector, work: LocalWork) -> Updates:
        """Train each client from the global state and return what they send back, in the given order."""
        updates = empty_updates(state, clients, work)
        updates.buffers[:] = state.buffers
        stacks = self.stack_trainers[self.trainers[0]].stacks(clients, work, self.block)

        def task(trainer: ClientTrainer, number: int) -> None:
            stack = stacks[number]
            try:
                for group in trainer.batches.alike(clients[stack]):
                    self._train_rows(trainer, stack[group], state, work, updates)
            except Exception:
                for row in stack.tolist():  # one by one, to find out whose data it was
                    train_row(trainer, row, state, work, updates)
                raise

        stacked = list(self.stack_trainers.values())
        with self.at_work(state, work), stepping(stacked, work.handout.step):
            self.spread(task, range(len(stacks)))
        return updates

    def _train_rows(
        self, trainer: ClientTrainer, rows: IntVector, state: ModelState, work: LocalWork, out: Updates
    ) -> None:
        """Train the clients of some rows in blocks; one that runs out of memory is tried again in halves."""
        waiting = [rows]
        while waiting:
            some = waiting.pop(0)
            if len(some) > self.block:  # it was halved meanwhile
                waiting[:0] = [some[: self.block], some[self.block :]]
                continue
            try:
                deltas, out.losses[some] = self.stack_trainers[trainer].train(out.clients[some], state, work)
                out.deltas.index_copy_(0, torch.from_numpy(some).to(deltas.device), deltas)
                continue
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            give_back(state.weights.device)  # only here, when nothing holds the tensors of the error any more
            if len(some) == 1:
                train_row(trainer, int(some[0]), state, work, out)
                continue
            self._halve(len(some))
            waiting.insert(0, some)

    def _halve(self, tried: int) -> None:
        self.block = min(self.block, tried // 2)
        if not self._halved:
            _LOG.warning(
                f"{tried} clients at once do not fit into memory: at most {self.block} are stacked from now on, and "
                "fewer where that is too many; loop.engine.memory sets a limit beforehand"
            )
        self._halved = True


def _places(module: nn.Module, parameter: nn.Parameter) -> list[tuple[Places, str]]:
    """Return where modules keep a parameter; several may share one."""
    return [
        (cast(Places, part._parameters), name)
        for part in module.modules()
        for name, other in part._parameters.items()
        if other is parameter
    ]


def _pairs(first: Iterable[_First], second: Iterable[_Second]) -> Iterator[tuple[_First, _Second]]:
    return zip(first, second, strict=True)


def _twice(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.expand(2, *leaf.shape[1:])


def _starts(clients: IntVector, weights: torch.Tensor, work: LocalWork) -> torch.Tensor:
    """Return the weights the clients start from, (n, d), or (1, d) where all start from the same."""
    if work.handout.start is global_weights:
        return weights[None]
    starts = [work.handout.start(client, weights) for client in clients.tolist()]
    return weights[None] if all(start is weights for start in starts) else torch.stack(starts)


def _shifts(clients: IntVector, weights: torch.Tensor, work: LocalWork) -> torch.Tensor | None:
    """Return what the clients add to their gradients, (n, d), or nothing if none adds anything."""
    if work.handout.gradient_shift is no_shift:
        return None
    shifts = [work.handout.gradient_shift(client) for client in clients.tolist()]
    if all(shift is None for shift in shifts):
        return None
    return torch.stack([torch.zeros_like(weights[0]) if shift is None else shift for shift in shifts])
