"""Blocks that fit: a limit, what a device says is free, and what happens where memory runs out."""

import logging
import types

import pytest
import torch
from lightning.fabric import Fabric

from fl_lightning.callbacks import SamplerSelection
from fl_lightning.engine import Engine, memory
from fl_lightning.engine.memory import Room, free_memory, is_out_of_memory
from fl_lightning.engine.stacked import StackTrainer
from fl_lightning.module import FederatedModule
from fl_lightning.samplers import Uniform
from systems import gaussian_federation, linear_module, small_loop

CLIENTS = 24
GPU = torch.device("cuda", 0)


def trained(engine, module=None, **settings):
    loop = small_loop(
        rounds=3,
        sampling=SamplerSelection(Uniform(), CLIENTS),
        engine=engine,
        fabric=Fabric(accelerator="cpu", devices=1),
        **settings,
    )
    loop.run(module or linear_module(), gaussian_federation(CLIENTS))
    return loop


@pytest.mark.parametrize("text", ["8 apples", "", "GB", "-1GB", "0", "1e9", "nan", "0.1B"])
def test_nonsense_is_no_amount_of_memory(text):
    with pytest.raises(ValueError, match="must be an amount of memory, such as 8GB"):
        Engine(memory=text)


@pytest.fixture
def most(monkeypatch):
    """Let a stack of more than so many clients run out of memory, and note how many are tried."""
    limit, tried, train = [3], [], StackTrainer.train

    def limited(self, clients, state, work):
        tried.append(len(clients))
        if len(clients) > limit[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return train(self, clients, state, work)

    monkeypatch.setattr(StackTrainer, "train", limited)
    return limit, tried


def test_a_block_that_does_not_fit_is_halved_and_said_once(most, caplog):
    limit, tried = most
    limit[0] = CLIENTS
    expected = trained(Engine("stacked", threads=1)).state.weights
    limit[0] = 3
    tried.clear()
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        found = trained(Engine("stacked", threads=1))
    assert torch.equal(found.state.weights, expected)
    assert tried[:4] == [18, 9, 4, 2]  # of those whose upload arrives
    assert max(tried[4:]) <= 3  # what was learned is kept
    assert sum("do not fit into memory" in line for line in caplog.messages) == 1


def test_clients_train_one_by_one_where_no_stack_fits(most):
    limit, _ = most
    limit[0] = 0
    found = trained(Engine("stacked", threads=1)).state.weights
    expected = trained(Engine("sequential", threads=1)).state.weights
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_limit_makes_smaller_blocks_of_the_same_bits(most):
    limit, tried = most
    limit[0] = CLIENTS
    expected = trained(Engine("stacked", threads=1))
    tried.clear()
    found = trained(Engine("stacked", threads=1, memory="8kB"))
    assert torch.equal(found.state.weights, expected.state.weights)
    assert max(tried) == found.engine.choice.block < CLIENTS
    assert "(loop.engine.memory)" in found.engine.choice.reason


class Narrow(FederatedModule):
    """Evaluates few examples at once."""

    def test_step(self, batch, batch_idx):
        super().test_step(batch, batch_idx)
        if len(batch[0]) > 40:
            raise torch.OutOfMemoryError("out of memory")


def test_the_evaluation_begins_again_in_smaller_batches(caplog):
    def module(kind):
        torch.manual_seed(0)
        return kind(torch.nn.Linear(5, 3), 3)

    wide = trained(Engine(threads=1), module(FederatedModule), evaluate_clients=1)
    narrow = trained(Engine(threads=1), module(Narrow), evaluate_clients=1)
    assert narrow.engine._test_size == 31
    assert sum("does not fit into memory" in line for line in caplog.messages) == 5  # 500, 250, 125, 62, 31
    for found, expected in zip(narrow.record.history, wide.record.history, strict=True):
        assert found["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)
        assert found["test_accuracy"] == pytest.approx(expected["test_accuracy"])


def test_free_memory_is_what_the_device_says(monkeypatch):
    module = types.SimpleNamespace(
        mem_get_info=lambda device: (6_000, 9_000),
        memory_reserved=lambda device: 700,
        memory_allocated=lambda device: 200,
    )
    monkeypatch.setattr(memory.torch, "get_device_module", lambda device: module)
    assert free_memory(GPU) == 6_500
    assert Room.on(GPU, None).limit == 5_200
    assert Room.on(GPU, 1_000) == Room(limit=1_000, known="loop.engine.memory")
    assert Room.on(GPU, 9_000).limit == 5_200  # no more than there is
    assert Room.on(torch.device("cpu"), None) is None


def test_a_device_that_does_not_say_what_is_free():
    assert Room.on(GPU, None).limit == 1 << 30  # this torch has no CUDA
    assert Room.on(GPU, 10).limit == 10


def test_errors_of_memory_are_known_by_type_and_by_words():
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    assert not is_out_of_memory(None)
