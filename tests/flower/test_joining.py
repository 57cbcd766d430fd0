"""Deployments that start without everybody, clients that join later, and numbers that the server assigns."""

import csv

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
import yaml

from deployed import NUM_CLIENTS, OBSERVED, config, deployed, made_grid, node_file
from fl_lightning.cli.main import main
from fl_lightning.config.compose import ConfigError
from fl_lightning.flower.options import Options, read_options
from in_process_grid import InProcessGrid


def test_a_deployment_starts_without_everybody_and_others_join(tmp_path, caplog):
    merged = config("full", tmp_path / "run", **OBSERVED)
    grid = made_grid(merged, tmp_path)
    grid.offline |= {1000, 1001}  # the nodes of clients 9 and 8
    run = deployed(grid, merged, timeout=1.0, min_clients=0.8, start_timeout=0.3)
    delivered = []
    for result in run.loop.iterate(run.module, run.data.load(0)):
        delivered.append(result.delivered[8:].tolist())
        if result.plan.index == 2:
            grid.offline.discard(1001)
    assert delivered == [[0, 0], [0, 0], [1, 0], [1, 0]]
    assert "started without clients 8, 9" in caplog.text
    assert "clients [8, 9] count as having" in caplog.text
    sizes = run.loop.federation.sizes
    assert sizes[8] == sizes[9] == round(np.median(sizes[:8]))


def test_too_few_are_still_refused(tmp_path):
    merged = config("full", tmp_path / "run", **OBSERVED)
    grid = made_grid(merged, tmp_path)
    grid.offline |= {1000, 1001, 1002}
    run = deployed(grid, merged, min_clients=0.8, start_timeout=0.3)
    with pytest.raises(ConnectionError, match=r"3 of 10 clients did not come .* let min-clients of them be enough"):
        run.execute("auto")


def test_who_was_absent_at_the_start_joins_the_resumed_run(tmp_path):
    merged = config("full", tmp_path / "run", **OBSERVED)
    grid = made_grid(merged, tmp_path)
    grid.offline.add(1000)
    first = deployed(grid, merged, timeout=1.0, min_clients=9, start_timeout=0.3)
    first.loop.callbacks.append(PauseAfter(2))
    first.execute("auto")
    grid.offline.clear()
    second = deployed(grid, merged, timeout=1.0, min_clients=9, start_timeout=0.3)
    second.execute("auto")
    with (tmp_path / "run" / "deliveries.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["client"] == "9"]
    assert [row["arrived"] for row in rows] == ["0", "0", "1", "1"]


class PauseAfter:
    def __init__(self, rounds):
        self.rounds = rounds

    def on_round_end(self, loop, result):
        loop.interrupted = result.plan.index == self.rounds


def alone(merged, folder, size, **node):
    """The config of a node that has data of its own alone."""
    own = {"class_path": "fl_lightning.data.Digits", "init_args": {"partition": {
        "class_path": "fl_lightning.data.IID", "init_args": {"num_clients": 1}}}}  # fmt: skip
    merged = merged | {"data": own}
    folder = folder / f"node_{size}"
    folder.mkdir(exist_ok=True)
    return str(node_file(merged, folder, **node))


def test_nodes_without_a_number_get_one_and_keep_it(tmp_path):
    merged = config("full", tmp_path / "run", **OBSERVED)
    grid = InProcessGrid({"config": alone(merged, tmp_path, 1)} for _ in range(NUM_CLIENTS))
    run = deployed(grid, merged, timeout=1.0)
    delivered = []
    for result in run.loop.iterate(run.module, run.data.load(0)):
        delivered.append(int(result.delivered[3]))
        if result.plan.index == 1:
            grid.offline.add(1003)
        if result.plan.index == 2:
            grid.nodes[2000] = grid.nodes[1003]  # started again under another id
    assert delivered == [1, 0, 1, 1]
    assert run.loop.engine.questions.roster.nodes == {
        client: 2000 if client == 3 else 1000 + client for client in range(NUM_CLIENTS)
    }


def test_given_numbers_are_served_first_and_equal_those_of_a_server(tmp_path):
    merged = config("full", tmp_path / "one", **OBSERVED)
    file = alone(merged, tmp_path, 1)
    given = InProcessGrid({"config": file, "client": client} for client in range(NUM_CLIENTS))
    one = deployed(given, merged)
    one.execute("never")
    mixed = InProcessGrid({"config": file} | ({"client": 0} if place == 9 else {}) for place in range(NUM_CLIENTS))
    other = deployed(mixed, merged | {"run_dir": str(tmp_path / "two")})
    other.execute("never")
    assert other.loop.engine.questions.roster.nodes[0] == 1009
    assert torch.equal(one.loop.state.weights, other.loop.state.weights)


def test_a_node_with_data_of_several_must_say_which_client_it_is(tmp_path, caplog):
    merged = config("full", tmp_path / "run", **OBSERVED)
    grid = made_grid(merged, tmp_path)
    del grid.nodes[1000]["client"]
    run = deployed(grid, merged, start_timeout=0.3)
    with pytest.raises(ConnectionError, match=r"\(clients 9\)"):
        run.data.load(0)
    assert "the data is of 10 clients: say by --client which of them this node is" in caplog.text


def test_a_secure_sum_needs_numbers_of_the_nodes_own(tmp_path, caplog):
    merged = config("secaggfedacs", tmp_path / "run", **OBSERVED)
    grid = InProcessGrid({"config": alone(merged, tmp_path, 1)} for _ in range(NUM_CLIENTS))
    run = deployed(grid, merged, timeout=1.0)
    run.loop.rounds = 1
    run.loop.run(run.module, run.data.load(0))
    assert "a node needs a number of its own in a secure sum: start it with --client" in caplog.text


@pytest.mark.parametrize("given", [-1, 11, 2.5])
def test_min_clients_is_a_number_or_a_share(given):
    with pytest.raises(ConfigError, match=r"must be a number from 0 to num-clients=10, or a share such as 0.8"):
        Options(name="a", num_clients=10, min_clients=given)


def test_deploy_writes_min_clients(tmp_path):
    assert main(["deploy", "--config", "digits_full.yaml", "--out", str(tmp_path / "app"), "--min-clients", "0.8"]) == 0
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    assert "\nmin-clients = 0.8 " in text
    given = yaml.safe_load("{name: a, num-clients: 10, min-clients: 0.8}")
    assert read_options(given).needed(False) == 8
