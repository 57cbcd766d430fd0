"""Which way of training fits a module: a rule, so that equal settings give equal results."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.hooks import overrides, redirected_logs
from fl_lightning.engine.inspection import Inspection, inspect_training
from fl_lightning.engine.machine import as_it_is, channels_last, has_images, kept_streams, plain_dropout, seed_streams
from fl_lightning.engine.memory import Room, client_bytes, example_bytes
from fl_lightning.engine.model import FlatModel
from fl_lightning.engine.stacked import StackTrainer

Mode = Literal["auto", "stacked", "threads", "sequential", "reference"]

# Floating-point operations of one local step, measured on two cores: below the first, calling the operators costs more
# than computing; above the second, one step keeps all cores busy by itself.
_STACK_BELOW, _THREADS_BELOW = 2e7, 2e9
_STACK_FROM = 16  # clients in a round; a short stack costs more to set up than it saves
_SO = ", so clients are trained one after another"


@dataclass(frozen=True)
class Choice:
    """A way of training and why."""

    mode: str
    reason: str
    random: bool = True  # whether the streams are seeded for each client; never where clients train at the same time
    warning: str = ""  # what is not exact, and why
    block: int = 0  # clients that are stacked at most; 0: as many as the cache of a processor holds
    test_examples: int = 0  # examples that are evaluated at once at most; 0: as many as asked for


def choose(
    mode: str, trainer: ClientTrainer, hooks: Sequence[str], num_draws: int | None = None, room: Room | None = None
) -> Choice:
    """Return how to train, after trying a few steps on a copy of the module.

    ``hooks`` of module and data, while a client trains, may do anything, also remember what they saw.
    """
    original = trainer.model.module
    if hooks:
        return _one_by_one(mode, f"{type(original).__name__} or its data module overrides {', '.join(hooks)}{_SO}")
    try:
        module = copy.deepcopy(original)
    except Exception as error:
        reason = f"the module cannot be copied ({type(error).__name__}: {error})"
        return _one_by_one(mode, reason, _warning(original, f"something unknown, because {reason}"))
    copied = ClientTrainer(FlatModel(module), trainer.solver, trainer.batches, trainer.autocast)
    with redirected_logs(module):
        module.train()
        found = inspect_training(copied)
        warning = _warning(original, found.module_state) + _data_warning(found.data_state)
        why_alone = _why_one_by_one(found)
        if why_alone or mode in ("reference", "sequential"):
            choice = _one_by_one(mode, why_alone, warning)
        else:
            choice = _side_by_side(mode, copied, found, num_draws)
        return choice if room is None else _within(room, choice, copied, num_draws)


def _within(room: Room, choice: Choice, trainer: ClientTrainer, num_draws: int | None) -> Choice:
    """Return a choice with the numbers of clients and of test examples that fit."""
    with kept_streams(trainer.model.weights.device):
        each, example = client_bytes(trainer), example_bytes(trainer)
    test_examples = max(1, room.limit // max(1, example))
    if choice.mode != "stacked":
        return replace(choice, test_examples=test_examples)
    updates = (num_draws or len(trainer.batches.sizes)) * trainer.model.weights.nbytes
    block = max(2, (room.limit - updates) // max(1, each))  # a stack of one is one of two
    fits = f"blocks of at most {block} clients of {each / 1e6:.3g} MB in {room.limit / 1e9:.3g} GB ({room.known})"
    return replace(choice, reason=f"{choice.reason}; {fits}", block=block, test_examples=test_examples)


def _side_by_side(mode: str, trainer: ClientTrainer, found: Inspection, num_draws: int | None) -> Choice:
    """Return how to train clients that have nothing to do with each other."""
    device = trainer.model.weights.device
    on_cpu = device.type == "cpu"
    if mode == "threads" and not on_cpu:
        raise _impossible(mode, f"the model is on {device}, and threads are for CPUs")
    if mode == "threads":
        return Choice(mode, "asked for", random=False)
    obstacle = None
    small = found.operations < _STACK_BELOW or not on_cpu  # a device is kept busy by many clients alone
    many = num_draws is None or num_draws >= (_STACK_FROM if on_cpu else 2)
    if mode == "stacked" or (small and many):
        obstacle = _obstacle_to_stacking(trainer, found)
        if obstacle is None:
            where = "" if on_cpu else f" on {device}"
            return Choice("stacked", f"{found.operations:.2g} operations a step{where}", random=False)
        if mode == "stacked":
            raise _impossible(mode, obstacle)
    side_by_side = on_cpu and found.operations < _THREADS_BELOW and torch.get_num_threads() > 1
    reason = f"{found.operations:.2g} operations a step" + (f"; not stacked: {obstacle}" if obstacle else "")
    return Choice("threads" if side_by_side else "sequential", reason, random=not side_by_side)


def _one_by_one(mode: str, reason: str, warning: str = "") -> Choice:
    if mode in ("reference", "sequential"):
        return Choice(mode, "asked for", warning=warning)
    if mode != "auto":
        raise _impossible(mode, reason)
    return Choice("sequential", reason, warning=warning)


def _impossible(mode: str, reason: str) -> ValueError:
    return ValueError(f"engine mode {mode!r} is impossible here: {reason}; use mode='auto' or 'sequential'")


def _why_one_by_one(found: Inspection) -> str:
    """Return why clients cannot be trained at the same time, or nothing: the streams they share have one order."""
    reasons = (
        (found.module_draws, "training_step draws random numbers"),
        (found.data_draws, "the data draws random numbers"),
        (bool(found.module_state), f"training_step changes its own attributes ({found.module_state})"),
        (bool(found.data_state), f"{found.data_state} gives other values each time"),
        (found.counts_metrics, "training_step updates a metric"),
    )
    what = next((text for applies, text in reasons if applies), "")
    return what and what + _SO


def _warning(module: LightningModule, state: str) -> str:
    if not state:
        return ""
    name = type(module).__name__
    what = (
        f"several processes are not exact, and resume only as far as {name}.on_save_checkpoint saves it"
        if overrides(module, "on_save_checkpoint")
        else "resume and several processes are not exact; keep it in a buffer (register_buffer) if it is a tensor, or "
        "save it in on_save_checkpoint and on_load_checkpoint"
    )
    return (
        f"{name} keeps state outside its parameters and buffers ({state}): clients are trained one after another, each "
        f"finds what those before it left, and {what}."
    )


def _data_warning(state: str) -> str:
    return state and (
        f"{state.capitalize()} gives other values for the same examples under the same seed, as from a generator of "
        "its own: repeat, resume and several processes are not exact; draw from torch, numpy.random or random, "
        "which are seeded for each client and round."
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
            device = model.weights.device
            with kept_streams(device), redirected_logs(model.module), plain_dropout(model.module):
                seed_streams(0, device)
                copied.backward(arranged(batch), 0)
                found.append(model.gradient.clone())
    except Exception:  # a view of what is no longer contiguous, for example
        return False
    return bool(torch.linalg.vector_norm(found[0] - found[1]) <= 1e-3 * torch.linalg.vector_norm(found[0]))


def _same_row(alone: torch.Tensor, together: torch.Tensor) -> bool:
    """Return whether a row is the same in another stack: on a CPU bit by bit, elsewhere the kernels may differ."""
    if alone.device.type == "cpu":
        return torch.equal(alone, together)
    return bool(torch.linalg.vector_norm(alone - together) <= 1e-4 * torch.linalg.vector_norm(alone) + 1e-7)


def _obstacle_to_stacking(trainer: ClientTrainer, found: Inspection) -> str | None:
    """Return why clients cannot be stacked, or nothing: the stack must give the gradients of single clients."""
    if not trainer.solver.stackable:
        return f"{type(trainer.solver).__name__} steps one client at a time"
    if not trainer.batches.stackable:
        return "the federation has neither one set of tensors nor those of each client"
    if found.changes_buffers:
        return "the module changes its buffers, as BatchNorm does"
    lengths = trainer.batches.lengths
    clients = np.flatnonzero(lengths == lengths[0])[:4]
    try:
        clients = clients[trainer.batches.alike(clients)[0]]
        examples = trainer.batches.examples(clients)
        stack = StackTrainer(trainer)
        rows = stack.batches.rows(clients, 1, 1)[0]
        weights = trainer.model.weights.repeat(len(clients), 1)
        together = torch.empty_like(weights)
        losses = stack.gradients(weights, stack.batches.stacked(examples, rows), 0, together)
        alone = torch.empty_like(weights[:1])
        stack.gradients(weights[-1:], stack.batches.stacked(examples, rows[-1:]), 0, alone)
    except Exception as error:  # whatever a module does that cannot be vectorised shows here
        return f"training_step cannot be vectorised ({type(error).__name__})"
    if not _same_row(alone[0], together[-1]):
        return "a client's result would depend on who is stacked with it"
    state = trainer.model.state()
    for row, client in enumerate(clients.tolist()):
        gradient, loss = trainer.gradient(client, state, 1)
        close = torch.linalg.vector_norm(gradient - together[row]) <= 1e-3 * torch.linalg.vector_norm(gradient) + 1e-7
        if not (bool(close) and torch.allclose(loss, losses[row], rtol=1e-3, atol=1e-6)):
            return "the stacked gradients differ from those of single clients"
    return None
