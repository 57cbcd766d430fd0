import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.data.federation import TensorFederation
from fl_lightning.engine.batches import ClientBatches, batch_indices, stacked_indices


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 15), st.integers(0, 3))
def test_each_pass_shows_an_example_once(size, batch_size, num_steps, client):
    indices = batch_indices(7, 2, client, size, batch_size, num_steps)
    assert indices.shape == (num_steps, min(size, batch_size))
    per_pass = max(1, size // batch_size)
    for first in range(0, num_steps, per_pass):
        seen = indices[first : first + per_pass].ravel()
        assert len(np.unique(seen)) == len(seen)
        assert seen.min() >= 0
        assert seen.max() < size


def test_order_depends_on_seed_round_and_client():
    base = batch_indices(0, 1, 0, 50, 10, 5)
    for other in (
        batch_indices(1, 1, 0, 50, 10, 5),
        batch_indices(0, 2, 0, 50, 10, 5),
        batch_indices(0, 1, 1, 50, 10, 5),
    ):
        assert not np.array_equal(base, other)
    assert np.array_equal(base[:3], batch_indices(0, 1, 0, 50, 10, 3))


@pytest.mark.parametrize(("sizes", "batch_size"), [([9, 6, 30, 6, 7], 6), ([4, 4, 4, 4, 4], 6)])
def test_many_clients_at_once_get_the_batches_of_single_ones(sizes, batch_size):
    sizes, clients = np.array(sizes), np.array([3, 0, 8, 1, 2])
    indices = stacked_indices(5, 3, clients, sizes, batch_size, 7)
    for row, (client, size) in enumerate(zip(clients, sizes, strict=True)):
        assert np.array_equal(indices[row], batch_indices(5, 3, int(client), int(size), batch_size, 7))


def test_a_stack_gathers_the_batches_of_its_clients():
    x = torch.arange(40.0)
    parts = np.split(np.random.default_rng(1).permutation(40), [10, 25])
    batches = ClientBatches(TensorFederation((x, x + 1), (x, x), parts), 4, 3, lambda batch: batch)
    examples, rows = batches.examples(np.array([2, 0])), batches.rows(np.array([2, 0]), 1, 5)
    for place, client in enumerate([2, 0]):
        for step, batch in enumerate(batches.of_client(client, 1, 5)):
            stacked = batches.stacked(examples, rows[step])
            assert torch.equal(stacked[0][place], batch[0])
            assert torch.equal(stacked[1][place], batch[1])


class Noted(TensorFederation):
    """Changes each batch, as an augmentation would, and notes what was asked for."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.asked = []

    def batch(self, client, indices):
        self.asked.append(len(indices))
        return tuple(leaf + len(self.asked) for leaf in super().batch(client, indices))


@pytest.mark.parametrize("size_limit", [1, 40, 1 << 20])
def test_batches_that_are_gathered_together_are_those_of_single_steps(monkeypatch, size_limit):
    monkeypatch.setattr("fl_lightning.engine.batches._CLIENT_BYTES", size_limit)
    monkeypatch.setattr("fl_lightning.engine.batches._STACK_BYTES", 2 * size_limit)
    x = torch.randn(60, 2, 3)
    federation = TensorFederation((x, torch.arange(60)), (x, x), np.split(np.arange(60), [20, 33]))
    batches = ClientBatches(federation, 4, 3, lambda batch: batch)
    clients, num_steps = np.array([1, 0, 2]), [7, 5, 2]
    alone = {}
    for client, steps in zip(clients.tolist(), num_steps, strict=True):
        indices = batch_indices(3, 1, client, int(federation.sizes[client]), 4, steps)
        alone[client] = [federation.batch(client, row) for row in indices]
        found = list(batches.of_client(client, 1, steps))
        assert len(found) == steps
        assert all(
            torch.equal(a, b)
            for one, two in zip(found, alone[client], strict=True)
            for a, b in zip(one, two, strict=True)
        )
    active = [3, 3, 2, 2, 2, 1, 1]
    steps = list(batches.stacked_steps(batches.examples(clients), batches.rows(clients, 1, 7), active))
    assert [len(labels) for _, labels in steps] == active
    for index, (inputs, labels) in enumerate(steps):
        for row in range(active[index]):
            assert torch.equal(inputs[row], alone[int(clients[row])][index][0])
            assert torch.equal(labels[row], alone[int(clients[row])][index][1])


def test_a_federation_with_batches_of_its_own_is_asked_for_each():
    x = torch.randn(20, 3)
    federation = Noted((x, x), (x, x), [np.arange(20)])
    batches = ClientBatches(federation, 4, 3, lambda batch: batch)
    found = list(batches.of_client(0, 1, 3))
    assert federation.asked == [4, 4, 4]
    indices = batch_indices(3, 1, 0, 20, 4, 3)
    assert all(torch.equal(batch[0], x[indices[step]] + (step + 1)) for step, batch in enumerate(found))


def test_batches_that_something_happens_to_are_moved_one_by_one():
    x = torch.randn(20, 3)
    moved = []

    def move(batch):
        moved.append(len(batch[0]))
        return batch

    list(ClientBatches(TensorFederation((x, x), (x, x), [np.arange(20)]), 4, 3, move, hooked=True).of_client(0, 1, 3))
    assert moved == [4, 4, 4]
