"""Real SuperLink and SuperNode processes on loopback. Minutes long: pytest -m slow tests/flower/test_real_nodes.py."""

import csv
import os
import shutil
import signal
import subprocess
import time

import pytest

pytest.importorskip("flwr")

import torch
import yaml

from benchmarks.real_nodes import RealNodes, kill, num_rounds, wait_for
from fl_lightning.cli.main import main
from fl_lightning.system.traces import read_deliveries

pytestmark = pytest.mark.slow

START = 600.0  # seconds: importing torch in ten processes takes long on a busy machine
DATA = {
    "data": {
        "class_path": "fl_lightning.data.Digits",
        "init_args": {
            "partition": {"class_path": "fl_lightning.data.Dirichlet", "init_args": {"num_clients": 4, "alpha": 1.0}}
        },
    }
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "four.yaml").write_text(yaml.safe_dump(DATA))
    return tmp_path


def deploy(folder, *more, rounds=8, configs=("digits_fedacs.yaml",)):
    given = [word for name in (*configs, str(folder / "four.yaml")) for word in ("--config", name)]
    small = ["--loop.rounds", str(rounds), "--loop.sampling.clients_per_round", "3", "--logger", "none"]
    run = ["--run_dir", str(folder / "run"), "--out", str(folder / "app"), "--start_timeout", str(START)]
    assert main(["deploy", *given, *small, *run, "--loop.engine.threads", "1", *more]) == 0


def simulate(folder, *more):
    assert (
        main(["train", "--config", str(folder / "app" / "config.yaml"), "--run_dir", str(folder / "simulated"), *more])
        == 0
    )


def weights(run_dir):
    return torch.load(run_dir / "model_last.ckpt", weights_only=True)["state_dict"]


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def finished(folder):
    return (folder / "run" / "summary.json").is_file()


def test_fourteen_rounds_are_those_of_the_simulator(folder):
    rounds = 14
    deploy(folder, "--timeout", "300", rounds=rounds)
    with RealNodes(folder) as nodes:
        for client in range(4):
            nodes.start(client, folder / "four.yaml")
        began = time.monotonic()
        nodes.flwr("run", "app", "local")
        wait_for(lambda: num_rounds(folder / "run") > 0, START, "the first round")
        print(f"first round after {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        wait_for(lambda: finished(folder), 2 * START, "the last round")
        print(f"{(time.monotonic() - began) / (rounds - 1):.2f} s per round")
        for process in (*nodes.nodes.values(), nodes.superlink):  # the leader of its group alone
            process.terminate()
        wait_for(lambda: not nodes.processes(), 60, "the end of all processes")
    simulate(folder)
    assert_equal(weights(folder / "run"), weights(folder / "simulated"))


def test_three_of_four_start_and_the_fourth_joins_all_numbered_by_the_server(folder):
    own = {"class_path": "fl_lightning.data.IID", "init_args": {"num_clients": 1}}
    alone = {"data": {"class_path": "fl_lightning.data.Digits", "init_args": {"partition": own}}}
    (folder / "node.yaml").write_text(yaml.safe_dump(alone | {"node": {"threads": 1}}))
    wait = ["--start_timeout", "120", "--min-clients", "0.75", "--timeout", "30"]
    deploy(folder, *wait, configs=("digits_full.yaml", "observed.yaml"), rounds=12)
    with RealNodes(folder) as nodes:
        for place in range(3):
            nodes.start(place, folder / "node.yaml", numbered=False)
        nodes.flwr("run", "app", "local")
        wait_for(lambda: num_rounds(folder / "run") >= 2, START, "two rounds")
        nodes.start(3, folder / "node.yaml", numbered=False)
        wait_for(lambda: finished(folder), 2 * START, "the last round")
    rows = list(csv.DictReader((folder / "run" / "metrics.csv").open()))
    delivered = [int(float(row["num_delivered"])) for row in rows]
    assert delivered[:2] == [3, 3]
    assert delivered[-1] == 4
    print(f"clients delivered: {delivered}")


def test_a_killed_node_and_its_successor_are_replayed(folder):
    deploy(folder, "--timeout", "20", "--max_steps", "100", configs=("digits_full.yaml", "observed.yaml"))
    with RealNodes(folder) as nodes:
        for client in range(4):
            nodes.start(client, folder / "four.yaml")
        nodes.flwr("run", "app", "local")
        wait_for(lambda: num_rounds(folder / "run") >= 2, START, "two rounds")
        kill(nodes.nodes[2])
        began, before = time.monotonic(), num_rounds(folder / "run")
        wait_for(lambda: num_rounds(folder / "run") > before, 20 + 2 + 5, "the end of the round")
        print(f"the round without client 2 ended after {time.monotonic() - began:.1f} s")
        nodes.start(2, folder / "four.yaml")
        wait_for(lambda: finished(folder), 2 * START, "the last round")
    assert_replayed(folder)


def assert_replayed(folder):
    """Client 2 was heard at first and later not, and a simulation of what was heard gives the same weights."""
    file = folder / "run" / "deliveries.csv"
    arrived = [each.arrived for each in read_deliveries(file) if each.client == 2]
    assert arrived[0]
    assert not all(arrived)
    simulate(folder, "--loop.engine", "fl_lightning.engine.Replayed", "--loop.engine.path", str(file))
    assert_equal(weights(folder / "run"), weights(folder / "simulated"))


def test_a_killed_node_drops_out_of_a_secure_sum(folder):
    """It is killed while it trains, after its shares were sent: the others' shares take its masks off."""
    everybody = {"sampler": {"class_path": "fl_lightning.samplers.FullParticipation"}, "drawing": None}
    (folder / "all.yaml").write_text(yaml.safe_dump({"loop": {"sampling": {"init_args": everybody}}}))
    (folder / "node.yaml").write_text(yaml.safe_dump(DATA | {"node": {"only_sums": True, "threads": 1}}))
    given = ("digits_secaggfedacs.yaml", "observed.yaml", str(folder / "all.yaml"))
    deploy(folder, "--timeout", "20", rounds=5, configs=given)
    log = folder / "node_2.log"
    with RealNodes(folder) as nodes:
        for client in range(4):
            nodes.start(client, folder / "node.yaml")
        nodes.flwr("run", "app", "local")
        wait_for(lambda: log.is_file() and log.read_text().count("Receiving: train.masked") == 2, START, "training")
        kill(nodes.nodes[2])
        began = time.monotonic()
        wait_for(lambda: num_rounds(folder / "run") >= 2, 20 + 2 + 10, "the end of the round")
        print(f"the secure sum without client 2 was found after {time.monotonic() - began:.1f} s")
        wait_for(lambda: finished(folder), 2 * START, "the last round")
    rows = list(csv.DictReader((folder / "run" / "metrics.csv").open()))
    assert [float(row["failed_sums"]) for row in rows] == [0] * 5
    assert [float(row["num_delivered"]) for row in rows] == [4, 3, 3, 3, 3]
    assert_replayed(folder)


def test_a_killed_server_is_resumed(folder):
    deploy(folder, "--timeout", "300")
    with RealNodes(folder) as nodes:
        for client in range(4):
            nodes.start(client, folder / "four.yaml")
        nodes.flwr("run", "app", "local")
        wait_for(lambda: num_rounds(folder / "run") >= 3, START, "three rounds")
        [server] = nodes.processes("flwr-serverapp")
        os.kill(server, signal.SIGKILL)
        assert not finished(folder)
        nodes.flwr("run", "app", "local")
        wait_for(lambda: finished(folder), 2 * START, "the last round")
    simulate(folder)
    assert_equal(weights(folder / "run"), weights(folder / "simulated"))


def made_certificates(folder):
    """A certificate for 127.0.0.1, signed by itself."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", "server.key", "-out", "ca.crt"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen")
def test_a_node_that_is_not_registered_is_refused(folder):
    made_certificates(folder)
    for name in ("known", "stranger"):
        key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name]
        subprocess.run(key, cwd=folder, check=True, stdin=subprocess.DEVNULL)
    ca, pem, key = (str(folder / name) for name in ("ca.crt", "ca.crt", "server.key"))
    server = ["--ssl-ca-certfile", ca, "--ssl-certfile", pem, "--ssl-keyfile", key, "--enable-supernode-auth"]
    with RealNodes(folder, (server, ["--root_certificates", ca])) as nodes:
        nodes.flwr("supernode", "register", "known.pub", "local")
        nodes.start(0, folder / "four.yaml", "--private_key", str(folder / "known"))
        nodes.start(1, folder / "four.yaml", "--private_key", str(folder / "stranger"))
        log = [folder / f"node_{client}.log" for client in range(2)]
        wait_for(lambda: "SuperNode ID" in log[0].read_text(), START, "the known node's acceptance")
        wait_for(lambda: nodes.nodes[1].poll() is not None, START, "the stranger's refusal")
        assert "SuperNode ID" not in log[1].read_text()
        assert nodes.nodes[1].returncode == 1
        kill(nodes.nodes[0], signal.SIGTERM)
        assert nodes.nodes[0].returncode == 0
