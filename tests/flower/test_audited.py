"""Flower's own strategies: the log, the verdict and the cure, on clients that pull towards unit vectors.

The nodes are in this process: real messages and strategies, no network.
"""

import random
import time
from itertools import combinations, product

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian

from fl_lightning.audit import audit, read_log
from fl_lightning.flower import Reported, audited, heterogeneity_aware
from in_process_grid import InProcessGrid

EXAMPLES = np.array([30, 60, 90, 120, 300])
EPOCHS = np.array([4, 1, 2, 1, 2])
LOST = np.array([0.0, 0.5, 0.3, 0.1, 0.2])
BATCH = 10
STEPS = EPOCHS * EXAMPLES // BATCH  # 12, 6, 18, 12, 60
RATE = 0.001


class Grid(InProcessGrid):
    """Clients that take T steps of SGD towards their own unit vector, and lose uploads."""

    def __init__(self, lost=LOST, seed=0, metrics=lambda client: {}):
        super().__init__([{"partition-id": client} for client in range(len(EXAMPLES))])
        self.rng, self.lost, self.metrics, self.dimension = np.random.default_rng(seed), lost, metrics, len(EXAMPLES)
        self.answer = dict.fromkeys(self.nodes, self.train)
        self.models = []

    def train(self, message, context):
        client = context.node_config["partition-id"]
        if self.rng.random() < self.lost[client]:
            return Message(Error(code=0, reason="lost"), reply_to=message)
        (x,) = message.content["arrays"].to_numpy_ndarrays()
        own = np.eye(self.dimension, len(x))[client]
        x = own + (1 - RATE) ** STEPS[client] * (x - own)
        metrics = MetricRecord({"num-examples": int(EXAMPLES[client]), "loss": 1.0, **self.metrics(client)})
        return Message(RecordDict({"arrays": ArrayRecord([x]), "metrics": metrics}), reply_to=message)

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(list(messages)))

    def client(self, name):
        return self.nodes[int(name)]["partition-id"]


def steps_reported(client):
    return {"num-steps": int(STEPS[client])}


def run(strategy, grid, rounds):
    """Return the model averaged over the second half, where it has forgotten its start."""
    random.seed(0)
    grid.models = []
    start = ArrayRecord([np.zeros(len(EXAMPLES))])
    keep = lambda index, arrays: grid.models.append(arrays.to_numpy_ndarrays()[0]) and None  # noqa: E731
    strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, train_config=ConfigRecord(), evaluate_fn=keep)
    return np.mean(grid.models[rounds // 2 :], axis=0)


def shares(values):
    return values / values.sum()


def fedavg_objective(drawn):
    """Return the objective of a mean weighted by examples, over all that can arrive of so many nodes."""
    amounts = np.zeros(len(EXAMPLES))
    for asked in combinations(range(len(EXAMPLES)), drawn):
        for outcome in product((False, True), repeat=drawn):
            chance = np.prod([1 - LOST[c] if there else LOST[c] for c, there in zip(asked, outcome, strict=True)])
            arrived = [client for client, there in zip(asked, outcome, strict=True) if there]
            amounts[arrived] += chance * STEPS[arrived] * EXAMPLES[arrived] / max(1, EXAMPLES[arrived].sum())
    return shares(amounts)


PARTLY = {"fraction_train": 0.6, "fraction_evaluate": 0.0}


def test_audit_theory_and_measured_model_agree(tmp_path, capsys):
    grid = Grid(metrics=steps_reported)
    model = run(audited(FedAvg(**PARTLY), tmp_path / "log.csv"), grid, 1500)
    found = audit(read_log(tmp_path / "log.csv"))
    order = [grid.client(name) for name in found.names]
    assert found.weights == pytest.approx(shares(EXAMPLES)[order])
    assert found.distance.low > 0.35
    truth = fedavg_objective(3)[order]
    assert ((found.objective.low < truth) & (truth < found.objective.high)).sum() >= 4
    assert np.abs(truth - found.objective.value).sum() < 0.06
    assert found.distance.low - 0.01 < np.abs(truth - found.weights).sum() < found.distance.high + 0.01
    assert np.abs(model[order] / model.sum() - truth).sum() < 0.08
    assert "of the objective is in the wrong place" in " ".join(capsys.readouterr().out.split())


def test_the_cure_optimises_what_was_wanted(tmp_path):
    grid = Grid(metrics=steps_reported)
    model = run(heterogeneity_aware(FedAvg(**PARTLY), tmp_path / "log.csv", seed=0), grid, 1500)
    found = audit(read_log(tmp_path / "log.csv"))
    assert found.distance.low == 0
    assert found.distance.high < 0.08
    assert np.abs(model / model.sum() - shares(EXAMPLES)).sum() < 0.08


@pytest.mark.parametrize("make", [FedAvg, FedAvgM, FedAdam, FedMedian])
def test_an_audited_strategy_does_the_same(make, tmp_path, capsys):
    plain, watched = Grid(), Grid()
    own = make(**PARTLY)
    same = audited(own, tmp_path / "log.csv")
    assert same is own
    run(make(**PARTLY), plain, 6)
    capsys.readouterr()
    run(same, watched, 6)
    assert np.array_equal(plain.models, watched.models)
    said = capsys.readouterr().out
    assert "hangs on" in said  # nobody reported steps
    assert ("changes the objective further" in said) == (make is FedAdam)
    assert ("not known to be a weighted mean" in said) == (make is FedMedian)


def test_the_log_has_a_row_for_each_question_and_for_who_was_never_asked(tmp_path):
    grid = Grid(metrics=lambda client: {"local": float(STEPS[client])})
    run(audited(FedAvg(**PARTLY), tmp_path / "log.csv", reported=Reported(steps_key="local"), every=2), grid, 4)
    log = read_log(tmp_path / "log.csv")
    assert log.num_rounds == 4
    assert log.asked.sum() == 12
    assert log.arrived.sum() == sum(not reply.has_error() for reply in grid.received)
    assert len(log.names) == len(EXAMPLES)
    arrived = log.arrived > 0
    order = np.array([grid.client(name) for name in log.names])[log.clients]
    for name, values in (("examples", EXAMPLES), ("weight", EXAMPLES), ("steps", STEPS)):
        assert np.array_equal(log.known[name][arrived], values[order][arrived])


def test_steps_follow_from_epochs_and_batch_size(tmp_path):
    run(audited(FedAvg(), tmp_path / "log.csv", reported=Reported(epochs=2, batch_size=7)), Grid(), 2)
    log = read_log(tmp_path / "log.csv")
    known = log.arrived > 0
    assert np.array_equal(log.known["steps"][known], 2 * np.ceil(log.known["examples"][known] / 7))


def test_an_own_start_is_kept(tmp_path, capsys):
    class Mine(FedAvg):
        def start(self, grid, initial_arrays, **more):
            self.started = True
            return super().start(grid, initial_arrays, **more)

    strategy = audited(Mine(**PARTLY), tmp_path / "log.csv")
    run(strategy, Grid(), 2)
    assert strategy.started
    assert "What this federation optimises" in capsys.readouterr().out


def test_a_log_that_cannot_be_written_ends_no_training(tmp_path, capsys):
    grid = Grid()
    strategy = audited(FedAvg(**PARTLY), tmp_path / "logs" / "log.csv")
    (tmp_path / "logs" / "log.csv").unlink()
    (tmp_path / "logs").rmdir()
    run(strategy, grid, 3)
    assert len(grid.models) == 4
    said = capsys.readouterr().out
    assert said.count("no more is written") == 1
    assert "no verdict" in said


def test_a_node_that_lies_about_its_steps_gains_no_more_than_the_bound(tmp_path):
    liar = lambda client: {"num-steps": 1 if client == 4 else int(STEPS[client])}  # noqa: E731
    grid = Grid(lost=np.zeros(5), metrics=liar)
    run(heterogeneity_aware(FedAvg(**PARTLY), tmp_path / "log.csv", wanted="equal", bound=2.0, seed=0), grid, 400)
    log = read_log(tmp_path / "log.csv")
    asked = np.bincount(log.clients, log.asked)
    honest, lying = (asked[[grid.client(name) == client for name in log.names]][0] for client in (0, 4))
    assert lying < 2.2 * honest  # client 0 takes the median number of steps


def test_the_cure_leaves_metrics_and_whole_cohorts_alone(tmp_path):
    grid = Grid(lost=np.array([0, 0.9, 0, 0.9, 0]), metrics=lambda client: {"num-steps": 5, "mark": float(client)})
    strategy = heterogeneity_aware(FedAvg(fraction_evaluate=0.0), tmp_path / "log.csv", seed=0)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(5)]), num_rounds=20)
    for metrics in result.train_metrics_clientapp.values():
        assert metrics["loss"] == pytest.approx(1.0)  # absent ones pull no metric towards anything
        assert 0 <= metrics["mark"] <= 4


@pytest.mark.parametrize("megabytes", [0.3, 45])
def test_what_it_costs_does_not_grow_with_the_model(megabytes, tmp_path):
    strategy, grid = FedAvg(fraction_evaluate=0.0), Grid(lost=np.zeros(5))
    arrays = ArrayRecord([np.zeros(int(megabytes * 250_000), dtype=np.float32)])
    metrics = MetricRecord({"num-examples": 3, "num-steps": 2})
    used = 0.0
    strategy.configure_train = lambda *_: [
        Message(RecordDict({"arrays": arrays}), message_type="train", dst_node_id=node) for node in grid.nodes
    ]
    strategy.aggregate_train = lambda *_: (None, None)  # so that the rest is what audited adds
    audited(strategy, tmp_path / "log.csv")
    for index in range(1, 6):
        messages = strategy.configure_train(index, arrays, ConfigRecord(), grid)
        replies = [Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=each) for each in messages]
        began = time.process_time()
        strategy.aggregate_train(index, replies)
        used += time.process_time() - began
    print(f"{megabytes} MB: {200 * used:.2f} ms of CPU per round")
    assert used / 5 < 0.03
    assert read_log(tmp_path / "log.csv").num_rounds == 5


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda path: heterogeneity_aware(FedMedian(), path), "FedMedian is no weighted mean"),
        (lambda path: heterogeneity_aware(FedAvg(), path, bound=0.5), "at least 1"),
        (lambda path: heterogeneity_aware(FedAvg(), path, wanted="all"), "'examples' or 'equal'"),
        (lambda path: run(heterogeneity_aware(FedAvg(**PARTLY), path), Grid(), 1), "reports no num-steps"),
        (lambda path: Reported(epochs=1), "give both or neither"),
        (lambda path: Reported(epochs=0, batch_size=3), "above 0"),
        (lambda path: path.write_text("my thesis\n") and audited(FedAvg(), path), "is no log of participation"),
    ],
)
def test_what_cannot_be_done_is_refused(call, said, tmp_path):
    with pytest.raises((TypeError, ValueError), match=said):
        call(tmp_path / "log.csv")
