"""Flower's strategies, audited and cured, in a real SuperLink with real SuperNodes. Minutes: pytest -m slow."""

import re

import numpy as np
import pytest

pytest.importorskip("flwr")

from benchmarks.real_nodes import BIN, RealNodes, in_group, wait_for
from fl_lightning.audit import audit, read_log

EXAMPLES = np.array([30, 60, 120])
STEPS = np.array([12, 6, 24])
APP = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()
EXAMPLES, EPOCHS, LOST = [30, 60, 120], [4, 1, 2], [0.0, 0.5, 0.2]


@client.train()
def train(message, context):
    place = int(context.node_config["partition-id"])
    if np.random.default_rng().random() < LOST[place]:
        raise RuntimeError("lost")
    (x,) = message.content["arrays"].to_numpy_ndarrays()
    steps, own = EPOCHS[place] * EXAMPLES[place] // 10, np.eye(3)[place]
    metrics = MetricRecord({"num-examples": EXAMPLES[place], "num-steps": steps})
    arrays = ArrayRecord([own + 0.999**steps * (x - own)])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    from fl_lightning.flower import audited, heterogeneity_aware

    wrap = heterogeneity_aware if context.run_config["cure"] else audited
    strategy = FedAvg(fraction_train=0.67, fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=3)
    strategy = wrap(strategy, context.run_config["log"])
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=context.run_config["rounds"])
"""
PROJECT = """
[project]
name = "units"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "units.apps:server"
clientapp = "units.apps:client"
[tool.flwr.app.config]
rounds = 16
cure = false
log = "log.csv"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "app" / "units").mkdir(parents=True)
    (tmp_path / "app" / "units" / "__init__.py").touch()
    (tmp_path / "app" / "units" / "apps.py").write_text(APP)
    (tmp_path / "app" / "pyproject.toml").write_text(PROJECT)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("cure", ["false", "true"])
def test_a_deployment_writes_its_log(cure, folder):
    log = folder / "log.csv"
    with RealNodes(folder) as nodes:
        for place in range(3):
            command = [str(BIN / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{nodes.port}"]
            command += ["--port", str(nodes.port + 1 + place), "--node-config", f"partition-id={place}"]
            nodes.nodes[place] = in_group(command, folder / f"node_{place}.log", nodes.environment)
        nodes.flwr("run", "app", "local", "--run-config", f"cure={cure} log='{log}'")
        wait_for(lambda: log.is_file() and read_rounds(log) >= 16, 500, "the last round")
    found = audit(read_log(log))
    assert found.num_draws == pytest.approx(2)
    known = np.nan_to_num(found.examples).astype(int)
    assert sorted(known[known > 0]) == [30, 60, 120]
    lost = dict(zip(known, found.lost.value, strict=True))
    assert lost[30] == 0
    assert 0 < lost[60] < 1  # an upload that was lost is an error reply, and counted as one
    steps = dict(zip(known, found.steps.value, strict=True))
    assert [steps[size] for size in EXAMPLES] == STEPS.tolist()
    print(found.distance)
    assert (found.distance.low > 0) == (cure == "false")


def read_rounds(path):
    return max((int(number) for number in re.findall(r"^(\d+),", path.read_text(), re.M)), default=0)
