"""A server that asks for more than a node allows, and clients that send nonsense."""

import copy
import csv
import json

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from deployed import OBSERVED, config, deployed, made_grid, node_file, weights
from fl_lightning.config.compose import ConfigError
from fl_lightning.flower.client_app import app, data_of
from fl_lightning.flower.messages import TRAIN, packed
from fl_lightning.flower.node_settings import read_node
from fl_lightning.flower.task import Task, read_task

EVIL = 1003  # the node of client 6


def altered(change):
    """A client whose replies to tasks are changed."""

    def answer(message, context):
        reply = app(message, context)
        return change(message, reply) if message.metadata.message_type == TRAIN else reply

    return answer


def with_values(**values):
    def change(message, reply):
        for name, value in values.items():
            reply.content["values"][name] = value
        return reply

    return change


def with_array(name, array):
    def change(message, reply):
        reply.content["arrays"][name] = array if isinstance(array, Array) else Array(array)
        return reply

    return change


def nan_delta(message, reply):
    length = reply.content["arrays"]["delta"].shape[0] // 4
    numbers = np.full(length, np.nan, dtype=np.float32)
    reply.content["arrays"]["delta"] = Array(numbers.view(np.uint8))
    return reply


LIES = {
    "steps beyond the limit": with_values(num_steps=51),
    "no steps": with_values(num_steps=0),
    "negative steps": with_values(num_steps=-3),
    "steps of another type": with_values(num_steps=3.0),
    "another client": with_values(client=2),
    "no loss": with_values(loss="low"),
    "numbers that are not finite": nan_delta,
    "a shorter array": with_array("delta", np.zeros(8, dtype=np.uint8)),
    "a huge array": with_array("delta", np.zeros(50_000_000, dtype=np.uint8)),
    "another type": with_array("delta", np.zeros(4810, dtype=np.float32)),
    "a false shape": with_array(
        "delta", Array(dtype="uint8", shape=(4810 * 4,), stype="numpy.ndarray", data=b"\x93NUMPY nonsense")
    ),
    "pickled code": with_array(
        "delta", Array(dtype="uint8", shape=(4810 * 4,), stype="pickle", data=b"cos\nsystem\n(S'true'\ntR.")
    ),
    "no arrays": lambda message, reply: Message(packed({"client": 6, "num_steps": 5, "loss": 0.0}), reply_to=message),
    "arrays of other names": lambda message, reply: Message(
        packed({"client": 6, "num_steps": 5, "loss": 0.0}, {"mine": torch.zeros(3)}), reply_to=message
    ),
}


def test_nonsense_counts_as_lost(tmp_path, caplog):
    """A run with another lie in each round is one without client 6."""
    merged = config("full", tmp_path / "lies", rounds=len(LIES), **OBSERVED)
    grid, lies = made_grid(merged, tmp_path), list(LIES.values())
    grid.answer[EVIL] = altered(lambda message, reply: lies[int(message.metadata.group_id) - 1](message, reply))
    run = deployed(grid, merged, max_steps=50)
    run.execute()
    heard = {
        row["client"]: row["arrived"]
        for row in csv.DictReader((tmp_path / "lies" / "deliveries.csv").open())
        if row["arrived"] == "1"
    }
    assert sorted(map(int, heard)) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert [row["num_delivered"] for row in run.loop.record.history] == [9] * len(LIES)
    assert sum(row["num_rejected"] for row in run.loop.record.history) == 1  # the one that is not finite
    assert caplog.text.count("client 6") >= len(LIES) - 2  # the same complaint is made once
    honest = merged | {"run_dir": str(tmp_path / "without")}
    grid = made_grid(merged, tmp_path)
    grid.lose = lambda message: message.metadata.message_type == TRAIN and message.metadata.dst_node_id == EVIL
    without = deployed(grid, honest, timeout=0.02, max_steps=50)
    without.execute()
    assert torch.equal(weights(run), weights(without))


def test_steps_must_be_those_asked_for_unless_clients_decide(tmp_path):
    merged = config("full", tmp_path / "run", rounds=1, **OBSERVED)
    run = deployed(made_grid(merged, tmp_path, steps=7), merged)
    run.execute()
    assert run.loop.record.history[0]["num_delivered"] == 0


def task_of(merged, **changes):
    task = json.loads(Task(merged | {"fabric": {}}).text(3))
    for path, value in changes.items():
        *above, name = path.split("__")
        place = task
        for key in above:
            place = place[key]
        place[name] = value
    return json.dumps(task)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": {"class_path": "os.system", "init_args": {"command": "true"}}}, "os.system"),
        ({"model": {"class_path": "stranger.Module"}}, "stranger"),
        ({"model__init_args__network": {"class_path": "subprocess.Popen"}}, "subprocess"),
        ({"loop__solver": {"class_path": "stranger.Solver"}}, "stranger"),
        ({"model": "/etc/passwd"}, "path|table"),
        ({"model__init_args__network": "/etc/passwd"}, "path"),
        ({"model__init_args__network": "pyproject.toml"}, "path"),
        ({"loop__solver": "../secret.yaml"}, "path"),
        ({"loop__weights": "w.csv"}, "path|weights"),
        ({"data": {"class_path": "fl_lightning.data.CIFAR10", "init_args": {"root": "."}}}, "data"),
        ({"loop__callbacks": [{"class_path": "fl_lightning.callbacks.RunRecorder"}]}, "callbacks"),
        ({"engine": {"threads": 512}}, "engine"),
        ({"precision": "transformer-engine"}, "precision"),
        ({"num_draws": "many"}, "num_draws"),
        ({"held_out": 1.5}, "held_out"),
    ],
)
def test_a_server_names_nothing_that_the_node_does_not_allow(changes, named, tmp_path):
    with pytest.raises(ConfigError, match=named):
        read_task(task_of(config("fedavg", tmp_path), **changes), ())


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 50_000, '"' + "a" * 200_000 + '"'])
def test_a_task_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="the server sends a task"):
        read_task(text, ())


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What a server asks one client to do, and the node's own settings."""
    folder = tmp_path_factory.mktemp("asked")
    merged = config("fedavg", folder / "run", rounds=1)
    grid, sent = made_grid(merged, folder, max_steps=1000), []
    grid.lose = lambda message: message.metadata.message_type == TRAIN and (sent.append(message) or True)
    deployed(grid, merged, timeout=0.02).execute()
    message = sent[0]
    return message, grid.nodes[message.metadata.dst_node_id]


def answered(asked, change):
    """How the node answers a message that was changed; the server's own config tries to change the node's."""
    original, node = asked
    message = copy.deepcopy(original)
    change(message)
    run_config = {"config": "/etc/passwd", "trust": "stranger"}
    return app(message, Context(1, message.metadata.dst_node_id, node, RecordDict(), run_config))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_steps": 1001}, "makes 1..1000"),
        ({"num_steps": 0}, "makes 1..1000"),
        ({"lr": float("nan")}, "learning rate"),
        ({"round": -1}, "round -1"),
        ({"client": 1 << 40}, "not the one"),
        ({"task": "{}"}, "task"),
    ],
)
def test_a_node_keeps_to_its_own_limits(change, named, asked):
    reply = answered(asked, lambda message: message.content["values"].update(change))
    assert named in reply.error.reason


def test_wrong_weights_are_refused_by_a_node(asked):
    def change(message):
        message.content["arrays"] = ArrayRecord({"weights": Array(np.zeros(3, dtype=np.uint8))})

    assert "weights" in answered(asked, change).error.reason


def test_the_server_learns_nothing_of_an_error_on_a_node(asked, monkeypatch):
    def fail(self, message):
        raise RuntimeError("the patient is called Smith")

    monkeypatch.setattr("fl_lightning.flower.client_app.LocalTraining.train", fail)
    reply = answered(asked, lambda message: None)
    assert reply.error.reason == "failed with RuntimeError, see the node's log"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "no config"),
        ({"client": "3"}, "client='3'"),
        ({"client": -1}, "say by --client which of them this node is"),
        ({"client": 10}, "client=10 is not among the 10 clients"),
    ],
)
def test_a_node_without_sense_is_refused(given, named, tmp_path):
    path = node_file(config("fedavg", tmp_path), tmp_path)
    given = given | ({"config": str(path)} if given else {})
    with pytest.raises(ValueError, match=named):
        data_of(read_node(given))


@pytest.mark.parametrize(
    "node", [{"steps": 0}, {"max_steps": "many"}, {"trust": "all"}, {"gpu": 1}, {"threads": True}, {"only_sums": "no"}]
)
def test_a_nodes_own_settings_are_checked(node, tmp_path):
    path = node_file(config("fedavg", tmp_path), tmp_path, **node)
    with pytest.raises(ConfigError, match=next(iter(node))):
        read_node({"config": str(path), "client": 1})
