"""Secure sums over nodes: the weights of the simulator, and nothing of a single update at the server."""

import copy
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

import numpy as np
import torch
from flwr.app import Context, RecordDict

from deployed import OBSERVED, config, deployed, made_grid, simulated, weights
from fl_lightning.config.compose import ConfigError
from fl_lightning.flower.client_app import app, training_of
from fl_lightning.flower.messages import KEYS, MASKED, REVEAL, SHARES, WHO
from fl_lightning.flower.node_settings import read_node
from fl_lightning.secure import FixedPoint, recover
from fl_lightning.secure.primitives import KeyPair, mask

EVIL = 1003  # the node of client 6
NAMES = {  # of the values in each kind of answer
    WHO: {"client", "size"},
    KEYS: {"client", "masking", "sealing", "signature"},
    SHARES: {"client", "receivers", "shares"},
    MASKED: {"client", "num_steps"},
    REVEAL: {"client", "owners", "shares"},
}


def secure_config(run_dir, clients_per_round=6, **loop):
    merged = config("secaggfedacs", run_dir, **loop)
    merged["loop"]["sampling"]["init_args"]["clients_per_round"] = clients_per_round
    return merged


def test_weights_are_those_of_the_simulator(tmp_path):
    """With the simulated channel, whose losses are drop-outs after the shares were sent."""
    merged = secure_config(tmp_path / "simulated")
    expected = simulated(merged)
    grid = made_grid(merged, tmp_path, only_sums=True)
    run = deployed(grid, merged | {"run_dir": str(tmp_path / "deployed")})
    run.execute()
    assert torch.equal(weights(run), weights(expected))
    lost = [row["num_sampled"] - row["num_delivered"] for row in run.loop.record.history]
    assert sum(lost) > 0
    assert [row["failed_sums"] for row in run.loop.record.history] == [
        row["failed_sums"] for row in expected.loop.record.history
    ]
    losses = [[row["train_loss"] for row in each.loop.record.history] for each in (run, expected)]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_lost_messages_of_every_kind_are_drop_outs(tmp_path):
    """Whatever is lost, a round finds the sum of what arrived or leaves the model as it is; a replay does the same."""
    merged = secure_config(tmp_path / "deployed", rounds=12, **OBSERVED)
    grid, rng, fates = made_grid(merged, tmp_path), np.random.default_rng(5), {}

    def lose(message):
        key = (message.metadata.group_id, message.metadata.message_type, message.metadata.dst_node_id)
        return message.metadata.message_type != WHO and fates.setdefault(key, rng.random() < 0.22)

    grid.lose = lose
    run = deployed(grid, merged, timeout=0.02)
    models, failed = [], []
    for result in run.loop.iterate(run.module, run.data.load(0)):
        models.append(run.loop.state.weights.clone())
        failed.append(int(result.metrics["failed_sums"]))
    fails = np.diff([0, *failed])
    assert 0 < fails.sum() < len(models)
    kinds = {(kind, lost) for (_, kind, _), lost in fates.items()}
    assert {(kind, True) for kind in (KEYS, SHARES, MASKED, REVEAL)} <= kinds
    for before, after, fail in zip(models, models[1:], fails[1:], strict=False):
        assert torch.equal(before, after) == bool(fail)
    replay = simulated(
        merged | {"run_dir": str(tmp_path / "replay")}, path=str(tmp_path / "deployed" / "deliveries.csv")
    )
    assert torch.equal(weights(replay), models[-1])


def test_the_server_receives_no_single_update(tmp_path):
    """All that the server ever gets, and all that it can make of it."""
    merged = secure_config(tmp_path / "run", rounds=1, **OBSERVED)
    grid, plain = made_grid(merged, tmp_path), {}

    def watched(message, context):
        """Note the update of a node, as only its owner could."""
        values = message.content["values"]
        if message.metadata.message_type == MASKED:
            updates = training_of(read_node(context.node_config), values["task"])._trained(message)
            ring = FixedPoint(values["bound"], values["num_parties"], values["bits"])
            plain[values["client"]] = ring.encode(values["factor"] * updates.deltas[0].double().numpy())
        return app(message, context)

    uploads = []  # the first is lost, after everybody has sent shares
    grid.lose = lambda message: (
        message.metadata.message_type == MASKED
        and (uploads.append(message.metadata.dst_node_id) or message.metadata.dst_node_id == uploads[0])
    )
    grid.answer = dict.fromkeys(grid.nodes, watched)
    run = deployed(grid, merged, timeout=0.3)
    run.execute()
    assert run.loop.record.history[0]["failed_sums"] == 0
    got = {kind: {} for kind in NAMES}
    for reply in grid.received:
        kind, values = reply.metadata.message_type, dict(reply.content.get("values", {}))
        assert values.keys() == NAMES[kind]
        assert ("arrays" in reply.content) == (kind == MASKED)
        got[kind][values["client"]] = reply
    survivors, members = set(got[MASKED]), set(got[KEYS])
    assert members - survivors == {grid.nodes[uploads[0]]["client"]}
    assert survivors == set(plain) == set(got[REVEAL])
    for client in members:
        shares = {
            holder + 1: int(dict(zip(values["owners"], values["shares"], strict=True))[client], 16)
            for holder, values in ((holder, reply.content["values"]) for holder, reply in got[REVEAL].items())
        }
        secret = recover(shares).to_bytes(32, "big")
        its_key = KeyPair(secret).public == got[KEYS][client].content["values"]["masking"]
        assert its_key == (client not in survivors)  # never both secrets of one client
        if client in survivors:
            vector = got[MASKED][client].content["arrays"]["masked"].numpy().view(np.uint64)[:-1]
            for seen in (vector, vector - mask(secret, len(vector) + 1, np.uint64)[:-1]):
                assert (seen != plain[client]).all()
                assert abs(float((seen >> np.uint64(11)).astype(np.float64).mean()) * 2.0**-53 - 0.5) < 0.03


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A question of each kind, with the settings and the memory of the node that was asked, as they were then."""
    folder, found = tmp_path_factory.mktemp("asked"), {}
    merged = secure_config(folder / "run", rounds=1, **OBSERVED)
    grid = made_grid(merged, folder)

    def lose(message):
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        state = copy.deepcopy(grid.states.get(node, RecordDict()))
        found.setdefault(kind, (copy.deepcopy(message), Context(1, node, grid.nodes[node], state, {})))
        return False

    grid.lose = lose
    deployed(grid, merged).execute()
    return found


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        (SHARES, {"threshold": 1}, "threshold of 1"),
        (SHARES, {"members": [0, 1]}, "list"),
        (SHARES, {"session": "another"}, "takes no part"),
        (MASKED, {"senders": [0], "sealed": [b""]}, "other senders"),
        (MASKED, {"bound": 1e-12}, "above bound=1e-12, or not finite"),
        (MASKED, {"bits": 8}, "bits=8"),
        (REVEAL, {"dropped": "survivors"}, "both secrets"),
        (REVEAL, {"survivors": []}, "those of others"),
    ],
)
def test_a_node_keeps_to_the_protocol(kind, changes, named, asked):
    message, context = copy.deepcopy(asked[kind])
    values = message.content["values"]
    values.update(
        {name: values[new] if isinstance(new, str) and new in values else new for name, new in changes.items()}
    )
    assert named in app(message, context).error.reason


@pytest.mark.parametrize("kind", [SHARES, MASKED, REVEAL])
def test_a_node_answers_once(kind, asked):
    message, context = copy.deepcopy(asked[kind])
    assert app(copy.deepcopy(message), context).has_content()
    assert "answered this question already" in app(message, context).error.reason


def nonsense(kind, **values):
    """A client whose answers to one kind of question are changed."""

    def answer(message, context):
        reply = app(message, context)
        if message.metadata.message_type == kind:
            for name, new in values.items():
                reply.content["values"][name] = new(reply.content["values"][name])
        return reply

    return answer


LIES = {  # and whether the client's update is in the sum nevertheless
    "a key of low order": (nonsense(KEYS, masking=lambda key: bytes(32)), False),
    "a short key": (nonsense(KEYS, sealing=lambda key: b"short"), False),
    "a missing share": (nonsense(SHARES, receivers=lambda clients: clients[:-1]), False),
    "other steps": (nonsense(MASKED, num_steps=lambda steps: steps + 1), False),
    "a long share": (nonsense(REVEAL, shares=lambda shares: ["f" * 200 for _ in shares]), True),
    "a negative share": (nonsense(REVEAL, shares=lambda shares: ["-1" for _ in shares]), True),
}


def test_nonsense_of_one_client_harms_no_sum(tmp_path):
    """Another lie in each round."""
    merged = secure_config(tmp_path / "run", rounds=len(LIES), **OBSERVED)
    merged["loop"]["sampling"]["init_args"] = {"sampler": {"class_path": "fl_lightning.samplers.FullParticipation"}}
    merged["loop"]["sampling"]["init_args"] |= {"drawing": None, "clients_per_round": 10}
    grid, lies = made_grid(merged, tmp_path), list(LIES.values())
    grid.answer[EVIL] = lambda message, context: (
        app(message, context)
        if message.metadata.message_type == WHO
        else lies[int(message.metadata.group_id) - 1][0](message, context)
    )
    run = deployed(grid, merged)
    results = list(run.loop.iterate(run.module, run.data.load(0)))
    heard = {name: bool(result.delivered[6] > 0) for name, result in zip(LIES, results, strict=True)}
    assert heard == {name: expected for name, (_, expected) in LIES.items()}
    assert [result.metrics["num_delivered"] for result in results] == [9 + heard[name] for name in LIES]
    assert results[-1].metrics["failed_sums"] == 0


def test_false_shares_of_a_key_fail_the_round(tmp_path, caplog):
    """The key is known to be wrong by its public half; the model stays."""
    merged = secure_config(tmp_path / "run", rounds=1, **OBSERVED)
    grid, dropped = made_grid(merged, tmp_path), []
    grid.answer = dict.fromkeys(grid.nodes, nonsense(REVEAL, shares=lambda shares: ["5" for _ in shares]))
    grid.lose = lambda message: (
        message.metadata.message_type == MASKED
        and (dropped.append(message.metadata.dst_node_id) or message.metadata.dst_node_id == dropped[0])
    )
    run, models = deployed(grid, merged, timeout=0.3), []
    run.loop.callbacks.append(SimpleNamespace(on_round_start=lambda loop, plan: models.append(loop.state.weights)))
    [result] = list(run.loop.iterate(run.module, run.data.load(0)))
    assert "do not give the key" in caplog.text
    assert (result.metrics["failed_sums"], result.metrics["num_delivered"]) == (1, 0)
    assert torch.equal(run.loop.state.weights, models[0])


def test_a_node_may_send_nothing_but_sums(tmp_path):
    merged = config("fedavg", tmp_path / "run", rounds=1, **OBSERVED)
    run = deployed(made_grid(merged, tmp_path, only_sums=True), merged)
    run.execute()
    assert run.loop.record.history[0]["num_delivered"] == 0


def test_steps_that_clients_choose_are_refused(tmp_path):
    merged = secure_config(tmp_path / "run", **OBSERVED)
    with pytest.raises(ConfigError, match="max-steps=50"):
        deployed(made_grid(merged, tmp_path), merged, max_steps=50)


def test_a_limit_that_would_not_reach_clients_who_choose_is_refused(tmp_path):
    merged = config("fedavg", tmp_path / "run", max_local_steps=4, **OBSERVED)
    with pytest.raises(ConfigError, match="max_local_steps=4 would not reach them"):
        deployed(made_grid(merged, tmp_path), merged, max_steps=50)
