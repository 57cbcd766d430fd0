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
