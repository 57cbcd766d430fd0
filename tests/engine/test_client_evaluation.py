"""Clients' own evaluation: what is held out, what is measured, and what is written down."""

import csv

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fl_lightning.callbacks import RunRecorder
from fl_lightning.data import DatasetFederation
from fl_lightning.data.derived import HeldOut
from fl_lightning.engine.evaluation import ClientEvaluation
from systems import gaussian_federation, linear_module, small_loop


def numbers(federation, sizes):
    return [set(map(tuple, federation.batch(m, np.arange(size))[0].tolist())) for m, size in enumerate(sizes)]


@pytest.mark.parametrize("kind", ["tensors", "data sets"])
def test_nobody_trains_on_what_is_held_out(kind):
    whole = gaussian_federation(4, size=30)
    if kind == "data sets":
        whole = DatasetFederation([TensorDataset(*whole.batch(m, np.arange(30))) for m in range(4)])
    before = numbers(whole, [30] * 4)
    held = HeldOut(whole, 0.2, seed=3)
    training = held.training()
    assert training.sizes.tolist() == [24] * 4
    assert held.num_held_out.tolist() == [6] * 4
    for m, trained in enumerate(numbers(training, [24] * 4)):
        own = set(map(tuple, held.own_batch(m, 100)[0].tolist()))
        assert len(own) == 6
        assert trained | own == before[m]
        assert not trained & own
    again, other = HeldOut(whole, 0.2, 3), HeldOut(whole, 0.2, 4)
    assert torch.equal(held.own_batch(0, 100)[0], again.own_batch(0, 100)[0])
    assert not torch.equal(held.own_batch(0, 100)[0], other.own_batch(0, 100)[0])
    assert whole.sizes.tolist() == [30] * 4  # the given one is left as it is


def test_a_client_with_little_data_is_evaluated_on_what_it_trains_on():
    held = HeldOut(gaussian_federation(4, size=12), 0.2, seed=0)
    assert held.num_held_out.tolist() == [0] * 4
    assert held.training().sizes.tolist() == [12] * 4
    assert len(held.own_batch(0, 100)[0]) == 12
    assert len(held.own_batch(0, 5)[0]) == 5


def play(tmp_path=None, rounds=4, **settings):
    callbacks = [] if tmp_path is None else [RunRecorder(str(tmp_path))]
    loop = small_loop(rounds=rounds, callbacks=callbacks, **settings)
    return loop, list(loop.iterate(linear_module(), gaussian_federation(6, size=40)))


def test_metrics_are_those_of_the_model_on_each_client(tmp_path):
    loop, results = play(tmp_path, evaluate_clients=ClientEvaluation(3))
    assert [bool(result.client_metrics) for result in results] == [False, False, True, True]
    last = results[-1]
    held = HeldOut(gaussian_federation(6, size=40), 0.2, loop.seed)
    for m in range(6):
        inputs, labels = held.own_batch(m, 100)
        with torch.no_grad():
            right = float((loop.module(inputs).argmax(1) == labels).double().mean())
        assert last.client_metrics["test_accuracy"][m] == pytest.approx(right)
    values = last.client_metrics["test_accuracy"]
    assert last.metrics["client_accuracy_mean"] == pytest.approx(values.mean())
    assert last.metrics["client_accuracy_worst"] == pytest.approx(values.min())
    assert last.metrics["client_accuracy_slow"] == pytest.approx(values[:3].mean())  # the first half takes few steps
    with (tmp_path / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == pytest.approx(values.tolist())
    assert [float(row["held_out"]) for row in rows] == [8] * 6


def test_clients_with_own_parameters_are_evaluated_with_them():
    loop, results = play(evaluate_clients=ClientEvaluation(4, held_out=0.0), local_parameters=["network.bias"])
    whole = gaussian_federation(6, size=40)
    for m in range(6):
        loop.load_client(m)
        inputs, labels = whole.batch(m, np.arange(40))
        right = float((loop.module(inputs).argmax(1) == labels).double().mean())
        assert results[-1].client_metrics["test_accuracy"][m] == pytest.approx(right)


def test_without_it_nothing_changes():
    off, _ = play()
    on, _ = play(evaluate_clients=ClientEvaluation(1, held_out=0.0))
    assert torch.equal(off.state.weights, on.state.weights)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: ClientEvaluation(0), "every_n_rounds=0"),
        (lambda: ClientEvaluation(1, held_out=1.0), "held_out=1.0"),
        (lambda: small_loop(evaluate_clients=-1), "evaluate_clients=-1"),
    ],
)
def test_bad_values_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_every_metric_has_columns_and_only_the_monitor_a_worst_tenth():
    _, results = play(evaluate_clients=1, rounds=1)
    metrics, of_clients = results[-1].metrics, results[-1].client_metrics
    for name in ("accuracy", "loss"):
        values = of_clients[f"test_{name}"]
        assert metrics[f"client_{name}_mean"] == pytest.approx(values.mean())
        assert metrics[f"client_{name}_deviation"] == pytest.approx(values.std())
        halves = metrics[f"client_{name}_slow"] + metrics[f"client_{name}_fast"]
        assert halves / 2 == pytest.approx(values.mean())
    assert "client_accuracy_worst" in metrics
    assert "client_loss_worst" not in metrics
