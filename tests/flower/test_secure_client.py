"""Secure sums against a server that asks again, makes members up, or shows different lists to different nodes."""

import copy
import stat

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from flwr.app import Context, RecordDict

from deployed import OBSERVED, config, deployed, made_grid
from fl_lightning.config.compose import ConfigError
from fl_lightning.flower.client_app import app
from fl_lightning.flower.messages import KEYS, MASKED, SHARES, BadMessageError
from fl_lightning.flower.node_settings import Node
from fl_lightning.flower.secure_client import check_members, claim_round, public_identity, signature, state_folder
from fl_lightning.secure import Participant


def secure_config(run_dir):
    merged = config("secaggfedacs", run_dir, rounds=1, **OBSERVED)
    merged["loop"]["sampling"]["init_args"]["clients_per_round"] = 6
    return merged


def test_a_round_that_is_asked_for_again_gets_no_second_answer(tmp_path):
    """A server that is killed after a sum and resumed; with one client absent, the difference would be its update."""
    merged = secure_config(tmp_path / "first")
    grid = made_grid(merged, tmp_path)
    first = deployed(grid, merged)
    first.execute()
    assert first.loop.record.history[0]["failed_sums"] == 0
    grid.states.clear()  # the nodes are started anew: what they know is on the disk
    again = deployed(grid, merged | {"run_dir": str(tmp_path / "again")})
    again.execute()
    assert again.loop.record.history[0]["failed_sums"] == 1
    assert not any(reply.metadata.message_type == MASKED and reply.has_content() for reply in grid.received[-20:])


def test_a_node_remembers_rounds_of_each_task(tmp_path):
    node = Node(config="a.yaml", client=3, state=str(tmp_path / "state"))
    claim_round(node, "task", 1)
    claim_round(node, "task", 2)
    claim_round(node, "another", 1)
    for index in (1, 2):
        with pytest.raises(ConfigError, match=f"does not answer round {index} again"):
            claim_round(node, "task", index)
    claim_round(node, "task", 3)
    (tmp_path / "state" / "answered.json").write_text("nonsense")
    with pytest.raises(ConfigError, match="does not know what it has answered"):
        claim_round(node, "task", 9)
    others = [Node(config="a.yaml", client=4), Node(config="b.yaml", client=3), Node(config="a.yaml", client=3)]
    assert len({state_folder(each) for each in others}) == 3


@pytest.fixture
def members(tmp_path):
    nodes = [Node(config="a.yaml", client=client, identity=str(tmp_path / f"{client}.key")) for client in range(3)]
    known = {node.client: public_identity(node) for node in nodes}
    assert all(stat.S_IMODE((tmp_path / f"{node.client}.key").stat().st_mode) == 0o600 for node in nodes)
    keys = {node.client: Participant(node.client, "sum").public for node in nodes}
    signatures = {node.client: signature(node, "sum", keys[node.client]) for node in nodes}
    reader = Node(config="a.yaml", client=0, identity=str(tmp_path / "0.key"), members=known)
    return reader, keys, signatures


def test_members_whom_a_node_knows_are_believed(members):
    check_members(members[0], "sum", members[1], members[2])


@pytest.mark.parametrize("lie", ["made up", "other keys", "other session", "unsigned", "somebody else's"])
def test_a_made_up_member_is_refused(members, lie):
    reader, keys, signatures = members
    session = "another" if lie == "other session" else "sum"
    if lie == "made up":
        keys = {**keys, 7: Participant(7, "sum").public}
        signatures = {**signatures, 7: signatures[1]}
    elif lie == "other keys":
        keys = {**keys, 1: Participant(1, "sum").public}
    elif lie == "unsigned":
        signatures = {**signatures, 1: b""}
    elif lie == "somebody else's":
        signatures = {**signatures, 1: signatures[2]}
    with pytest.raises(BadMessageError, match="not in this node's list of members"):
        check_members(reader, session, keys, signatures)


def test_nodes_that_know_each_other_find_sums_and_refuse_a_stranger(tmp_path):
    merged = secure_config(tmp_path / "run")
    keys = {client: tmp_path / f"{client}.key" for client in range(10)}
    known = {
        client: public_identity(Node(config="a", client=client, identity=str(path))) for client, path in keys.items()
    }
    grid = made_grid(merged, tmp_path)
    for settings in grid.nodes.values():
        folder = tmp_path / str(settings["client"])
        folder.mkdir()
        path = made_grid(merged, folder, identity=str(keys[settings["client"]]), members=known).nodes[1000]["config"]
        settings["config"] = path
    run = deployed(grid, merged)
    run.execute()
    assert run.loop.record.history[0]["failed_sums"] == 0
    sent = [reply.content["values"] for reply in grid.received if reply.metadata.message_type == KEYS]
    assert sent
    assert all(len(values["signature"]) == 64 for values in sent)


@pytest.mark.parametrize(("threshold", "allowed"), [(3, False), (4, True)])
def test_a_threshold_of_half_of_the_members_is_refused(threshold, allowed, tmp_path):
    """As many clients as the threshold says can open an update together with the server."""
    merged = secure_config(tmp_path / "run")
    grid, seen = made_grid(merged, tmp_path), []

    def lose(message):
        node = message.metadata.dst_node_id
        if message.metadata.message_type == SHARES and not seen:
            state = copy.deepcopy(grid.states.get(node, RecordDict()))
            seen.append((copy.deepcopy(message), Context(1, node, grid.nodes[node], state, {})))
        return False

    grid.lose = lose
    deployed(grid, merged).execute()
    message, context = seen[0]
    values = message.content["values"]
    number = len(values["members"])
    values["threshold"] = threshold if number == 6 else (number // 2 + allowed)
    reply = app(message, context)
    assert reply.has_content() == allowed
    if not allowed:
        assert "node.min_threshold" in reply.error.reason
