"""Rows of clients: what was put comes back, sums follow, memory grows with who arrived, checkpoints keep the bits."""

import io
import os

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import (
    AdaptiveControlVariates,
    ControlVariates,
    EchoedInnovations,
    LastKnownUpdates,
    MemorizedMean,
    PostponedBroadcast,
    StaleMixture,
    client_rows,
)
from fl_lightning.aggregators.client_rows import ClientRows, RowStorage, SummedRows
from fl_lightning.cli.main import main
from fl_lightning.samplers.learned import LastUpdates
from reference.made_rounds import D, M, made_rounds, played

MAKE = {
    "FedVARP": LastKnownUpdates,
    "FedVARP paper": lambda **options: LastKnownUpdates("paper", **options),
    "MIFA": MemorizedMean,
    "FedStale": StaleMixture,
    "SCAFFOLD": ControlVariates,
    "adaptive controls": AdaptiveControlVariates,
    "FedAWE": EchoedInnovations,
    "FedPBC": PostponedBroadcast,
}


def play(aggregator, rounds, x=None):
    """Return the model after each of some rounds; without a start, from the beginning."""
    models = []
    if x is None:
        x = torch.linspace(-1, 1, D)
        aggregator.setup(M, x)
    for made in rounds:
        x = played(aggregator, made, x)
        models.append(x)
    return models


def resumed(make, state):
    aggregator = make()
    aggregator.setup(M, torch.linspace(-1, 1, D))
    aggregator.load_state_dict(through_file(state))
    return aggregator


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(client_rows, "_BLOCK_VALUES", 12)  # so that a few rows need several blocks


@pytest.fixture(params=["ram", "disk"])
def storage(request, tmp_path):
    return RowStorage(folder=str(tmp_path) if request.param == "disk" else None)


def test_rows_are_those_of_a_dense_matrix(small_blocks, storage):
    rng, dense = np.random.default_rng(0), np.zeros((40, 5), dtype=np.float32)
    rows = SummedRows(40, torch.zeros(5), storage)
    weights = rng.dirichlet(np.ones(40))
    for _ in range(300):
        clients = rng.choice(20, size=rng.integers(0, 6), replace=False)
        values = rng.normal(size=(len(clients), 5)).astype(np.float32)
        dense[clients] = values
        rows.replace(clients, torch.from_numpy(values), weights)
        asked = rng.choice(40, size=7)
        assert np.array_equal(rows[asked].numpy(), dense[asked])
        assert np.array_equal(rows.of(int(asked[0])).numpy(), dense[asked[0]])
        np.testing.assert_allclose(rows.total(weights), weights @ dense.astype(np.float64), rtol=1e-6, atol=1e-7)
    assert len(rows) == 20
    assert np.array_equal(rows.dense().numpy(), dense)
    assert sorted(rows.clients) == list(range(20))
    other = rng.dirichlet(np.ones(40))  # weights may change: then the sum is made anew
    np.testing.assert_allclose(rows.total(other), other @ dense.astype(np.float64), rtol=1e-6, atol=1e-7)


def test_the_sum_forgets_what_was_large():
    """What a huge value leaves behind in a running sum is gone when the sum is made anew."""
    rows, weights, one = SummedRows(2, torch.zeros(1)), np.full(2, 0.5), np.array([0])
    rows.replace(one, torch.tensor([[1e25]]), weights)
    rows.replace(one, torch.tensor([[3.0]]), weights)
    assert rows.total(weights).item() != 1.5
    for _ in range(31):
        rows.replace(one, torch.tensor([[3.0]]), weights)
    assert rows.total(weights).item() == 1.5


def test_room_is_taken_by_those_who_were_heard():
    rows = ClientRows(1_000_000, torch.zeros(50_000))
    rows.put(np.array([999_999, 5]), torch.ones(2, 50_000))
    assert sum(block.numel() for block in rows._blocks) <= client_rows._BLOCK_VALUES
    assert len(rows.state_dict()["rows"]) == 2


def test_all_clients_can_be_given_the_same_row(small_blocks):
    rows = ClientRows(5, torch.zeros(3))
    rows.put(np.array([1]), torch.ones(1, 3))
    rows.fill(torch.tensor([1.0, 2.0, 3.0]))
    rows.put(np.array([4]), torch.zeros(1, 3))
    assert rows.dense().tolist() == [[1.0, 2.0, 3.0]] * 4 + [[0.0] * 3]
    again = ClientRows(5, torch.zeros(3))
    again.load_state_dict(through_file(rows.state_dict()))
    assert torch.equal(again.dense(), rows.dense())


def test_half_precision_rounds_by_what_is_documented():
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 100)).astype(np.float32))
    rows, weights = SummedRows(30, values[0], RowStorage(precision="bfloat16")), np.full(30, 1 / 30)
    rows.replace(np.arange(30), values, weights)
    kept = rows.dense()
    assert float(((kept - values) / values).abs().max()) <= 2**-8
    assert not torch.equal(kept, values)
    assert rows._blocks[0].element_size() == 2
    np.testing.assert_allclose(rows.total(weights), weights @ kept.double().numpy(), rtol=1e-5, atol=1e-7)


def test_the_file_has_no_name_and_holds_the_rows(tmp_path):
    rows = ClientRows(10, torch.zeros(1000), RowStorage(folder=str(tmp_path)))
    rows.put(np.array([3]), torch.full((1, 1000), 7.0))
    assert list(tmp_path.iterdir()) == []
    rows._blocks[0].numpy()  # a view of the mapping
    assert os.fstat(rows._file.fileno()).st_size == 10 * 1000 * 4


@pytest.mark.parametrize("name", MAKE)
def test_resuming_in_the_middle_changes_no_bit(name, storage, small_blocks):
    rounds, half = list(made_rounds(60)), 33  # enough rounds for a sum to be made anew
    whole = play(MAKE[name](), rounds)
    first = MAKE[name](storage=storage)
    before = play(first, rounds[:half])
    second = resumed(lambda: MAKE[name](storage=storage), first.state_dict())
    after = play(second, rounds[half:], before[-1])
    for expected, found in zip(whole, [*before, *after], strict=True):
        assert torch.equal(expected, found)


def test_memory_of_other_clients_or_another_model_is_refused():
    state = MemorizedMean()
    state.setup(3, torch.zeros(4))
    for num_clients, length in ((2, 4), (3, 5)):
        other = MemorizedMean()
        other.setup(num_clients, torch.zeros(length))
        with pytest.raises(ValueError, match=r"remembers 3 clients with 4 values each, but \d with \d are wanted"):
            other.load_state_dict(through_file(state.state_dict()))


def test_a_config_can_say_how_rows_are_kept(tmp_path, capsys):
    settings = ["--config", "toy_mifa.yaml", "--loop.rounds", "2", "--logger", "none", "--run_dir", str(tmp_path / "r")]
    assert main(["train", *settings, "--loop.aggregator.storage.folder", str(tmp_path / "nowhere")]) == 2
    assert "nowhere' of the clients' vectors is not there" in capsys.readouterr().err
    assert main(["train", *settings, "--loop.aggregator.storage.precision", "bfloat16"]) == 0
    assert "precision: bfloat16" in (tmp_path / "r" / "config.yaml").read_text()


def test_bad_storage_is_refused(tmp_path):
    with pytest.raises(ValueError, match="precision='float8'"):
        RowStorage(precision="float8")
    with pytest.raises(ValueError, match="is not there: make it"):
        RowStorage(folder=str(tmp_path / "nowhere"))


def test_vectors_of_a_sampler_come_back_from_a_checkpoint():
    rng = np.random.default_rng(0)
    first = LastUpdates()
    for clients in (np.array([4, 1]), np.array([1, 7])):
        first.store(9, clients, torch.from_numpy(rng.normal(size=(2, 3))))
    second = LastUpdates()
    second.load_state_dict(through_file(first.state_dict()))
    assert np.array_equal(second.products, first.products)
    assert np.array_equal(second.seen, first.seen)
    assert torch.equal(second.rows.dense(), first.rows.dense())
    second.store(9, np.array([0]), torch.ones(1, 3, dtype=torch.float64))
    assert second.products[0, 4] == pytest.approx(float(first.rows.of(4).sum()))
