"""Which way of training fits a module: a rule, so that equal settings give equal results."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.cpu.layout import as_it_is, channels_last, has_images, plain_dropout
from fl_lightning.engine.evaluation import batch_length, silent_logs
from fl_lightning.engine.flat import FlatModel
from fl_lightning.engine.stacked import StackTrainer

Mode = Literal["auto", "stacked", "threads", "sequential", "reference"]

# Floating-point operations of one local step, measured on two cores: below the first, calling the operators costs more
# than computing; above the second, one step keeps all cores busy by itself.
_STACK_BELOW, _THREADS_BELOW = 2e7, 2e9
_STACK_FROM = 16  # clients in a round; a short stack costs more to set up than it saves


@dataclass(frozen=True)
class Choice:
    """A way of training and why."""

    mode: str
    reason: str
    random: bool = True  # whether the module draws random numbers while training


@dataclass(frozen=True)
class _Inspection:
    """What one local step of a module does besides computing a loss."""

    operations: int
    random: bool
    changes_itself: bool  # attributes other than parameters and buffers
    changes_buffers: bool


def choose(
    mode: str, trainer: ClientTrainer, make_stack: Callable[[FlatModel], StackTrainer], num_draws: int | None = None
) -> Choice:
    """Return how to train, after trying one step on a copy of the module.

    Args:
        mode: What the user asked for.
        trainer: Trains one client of this federation.
        make_stack: Makes the trainer of stacks for a copy of the model.
        num_draws: How many clients a round draws, where that is known.
    """
    if mode in ("reference", "sequential"):
        return Choice(mode, "asked for")
    try:
        module = copy.deepcopy(trainer.model.module)
    except Exception as error:
        return _refused(mode, f"the module cannot be copied ({type(error).__name__}: {error})", random=True)
    model = FlatModel(module)
    copied = ClientTrainer(model, trainer.solver, trainer.batches, trainer.autocast)
    with torch.random.fork_rng(devices=[]), silent_logs(module):
        module.train()
        found = _inspect(copied)
        if found.random or found.changes_itself:
            what = "draws random numbers" if found.random else "changes its own attributes"
            return _refused(mode, f"training_step {what}, so clients are trained one after another", found.random)
        if mode == "threads":
            return Choice(mode, "asked for", random=False)
        on_cpu = model.weights.device.type == "cpu"
        obstacle = None
        many = num_draws is None or num_draws >= _STACK_FROM
        if mode == "stacked" or (found.operations < _STACK_BELOW and many):
            obstacle = _obstacle_to_stacking(copied, make_stack, found)
            if obstacle is None:
                return Choice("stacked", f"{found.operations:.2g} operations a step", random=False)
            if mode == "stacked":
                return _refused(mode, obstacle, random=False)
        side_by_side = on_cpu and found.operations < _THREADS_BELOW and torch.get_num_threads() > 1
        reason = f"{found.operations:.2g} operations a step" + (f"; not stacked: {obstacle}" if obstacle else "")
        return Choice("threads" if side_by_side else "sequential", reason, random=False)


def _refused(mode: str, reason: str, random: bool) -> Choice:
    if mode != "auto":
        raise ValueError(f"engine mode {mode!r} is impossible here: {reason}; use mode='auto' or 'sequential'")
    return Choice("sequential", reason, random)


def _inspect(trainer: ClientTrainer) -> _Inspection:
    state, module = trainer.model.state(), trainer.model.module
    before = _attributes(module)
    batch = trainer.batches.sample()
    random_state = torch.get_rng_state()
    with FlopCounterMode(display=False) as counter:
        trainer.backward(batch, 0)
    return _Inspection(
        operations=counter.get_total_flops() * int(np.median(trainer.batches.lengths)) // max(1, batch_length(batch)),
        random=not torch.equal(random_state, torch.get_rng_state()),
        changes_itself=before != _attributes(module),
        changes_buffers=not torch.equal(state.buffers, trainer.model.buffers),
    )


def layout_is_harmless(trainer: ClientTrainer) -> bool:
    """Return whether a module takes images in the other memory layout and gives the same gradients, on a copy of it."""
    batch = trainer.batches.sample()
    if not has_images(batch) or not any(isinstance(part, nn.Conv2d) for part in trainer.model.module.modules()):
        return False
    try:
        model = FlatModel(copy.deepcopy(trainer.model.module))
        copied = ClientTrainer(model, trainer.solver, trainer.batches, trainer.autocast)
        model.module.train()
        found = []
        for arranged in (as_it_is, channels_last):
            with torch.random.fork_rng(devices=[]), silent_logs(model.module), plain_dropout(model.module):
                torch.manual_seed(0)
                copied.backward(arranged(batch), 0)
                found.append(model.gradient.clone())
    except Exception:  # a view of what is no longer contiguous, for example
        return False
    return bool(torch.linalg.vector_norm(found[0] - found[1]) <= 1e-3 * torch.linalg.vector_norm(found[0]))


def _attributes(module: LightningModule) -> list[Any]:
    """Return what a module remembers outside its parameters and buffers, as far as it can be compared."""
    found: list[Any] = []
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, (bool, int, float, str)):
                found.append((name, value))
            elif isinstance(value, (list, dict, set)):
                found.append((name, len(value)))
            elif isinstance(value, torch.Tensor):
                found.append((name, value.detach().double().sum().item()))
    return found


def _obstacle_to_stacking(
    trainer: ClientTrainer, make_stack: Callable[[FlatModel], StackTrainer], found: _Inspection
) -> str | None:
    """Return why clients cannot be stacked, or nothing: the stack must give the gradients of single clients."""
    if not trainer.solver.stackable:
        return f"{type(trainer.solver).__name__} steps one client at a time"
    if not trainer.batches.stackable:
        return "the federation's data is not one set of tensors"
    if found.changes_buffers:
        return "the module changes its buffers, as BatchNorm does"
    lengths = trainer.batches.lengths
    clients = np.flatnonzero(lengths == lengths[0])[:4]
    try:
        stack = make_stack(trainer.model)
        rows = stack.batches.rows(clients, 1, 1)[0]
        weights = trainer.model.weights.repeat(len(clients), 1)
        together = torch.empty_like(weights)
        losses = stack.gradients(weights, stack.batches.stacked(rows), 0, together)
        alone = torch.empty_like(weights[:1])
        stack.gradients(weights[-1:], stack.batches.stacked(rows[-1:]), 0, alone)
    except Exception as error:  # whatever a module does that cannot be vectorised shows here
        return f"training_step cannot be vectorised ({type(error).__name__})"
    if not torch.equal(alone[0], together[-1]):
        return "a client's result would depend on who is stacked with it"
    state = trainer.model.state()
    for row, client in enumerate(clients.tolist()):
        gradient, loss = trainer.gradient(client, state, 1)
        close = torch.linalg.vector_norm(gradient - together[row]) <= 1e-3 * torch.linalg.vector_norm(gradient) + 1e-7
        if not (bool(close) and torch.allclose(loss, losses[row], rtol=1e-3, atol=1e-6)):
            return "the stacked gradients differ from those of single clients"
    return None
