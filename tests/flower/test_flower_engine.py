"""The same config on nodes and in the simulator: the same weights, bit for bit."""

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flwr.app import Error, Message

from deployed import OBSERVED, config, deployed, made_grid, simulated, weights
from fl_lightning.config import compose as configs
from fl_lightning.flower.client_app import app
from fl_lightning.flower.messages import EVALUATE, WHO, BadMessageError, entries, packed

IN_CI = ("fedacs", "scaffold", "fedstale", "powerofchoice", "os")


# Their noise is made by steps of simulated clients, which nodes would not make.
REFUSED = ("dpfedacs", "otafedacs", "fedcote", "ditto", "apfl", "fedrep")  # labels and own models stay at the clients
DEPLOYABLE = [name for name in configs.names("algorithms") if name not in REFUSED]


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=() if name in IN_CI else pytest.mark.slow) for name in DEPLOYABLE],
)
def test_simulated_links(algorithm, tmp_path):
    merged = config(algorithm, tmp_path / "simulated")
    expected = simulated(merged)
    run = deployed(made_grid(merged, tmp_path), merged | {"run_dir": str(tmp_path / "deployed")})
    run.execute()
    assert torch.equal(weights(run), weights(expected))
    assert (tmp_path / "deployed" / "metrics.csv").exists()


# They use the training of those who are lost, or long-run means that nobody knows beforehand.
UNOBSERVED = ("os", "fedpbc", "limitedfedacs", "fedacscv")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in DEPLOYABLE if name not in UNOBSERVED])
def test_observed_links(algorithm, tmp_path):
    merged = config(algorithm, tmp_path / "simulated", **OBSERVED)
    run = deployed(made_grid(merged, tmp_path), merged | {"run_dir": str(tmp_path / "deployed")})
    run.execute()
    assert torch.equal(weights(run), weights(simulated(merged)))


@pytest.mark.parametrize("algorithm", ["limitedfedacs", "fedacscv"])
def test_a_limit_and_means_of_what_is_observed_are_refused(algorithm, tmp_path):
    merged = config(algorithm, tmp_path / "run", **OBSERVED)
    with pytest.raises(ValueError, match="use knowledge='instant'"):
        deployed(made_grid(merged, tmp_path), merged).execute()
    merged["loop"]["sampling"]["init_args"]["sampler"]["init_args"]["knowledge"] = "instant"
    with pytest.raises(ValueError, match="max_local_steps='auto' needs to know T"):
        deployed(made_grid(merged, tmp_path), merged).execute()


def losing(share, seed=0):
    """Lose a share of the messages of each kind but the first question; which ones depends on client and round."""
    rng, fates = np.random.default_rng(seed), {}

    def lose(message):
        if message.metadata.message_type == WHO:
            return False
        key = (message.metadata.group_id, message.metadata.message_type, message.metadata.dst_node_id)
        return fates.setdefault(key, rng.random() < share)

    return lose


@pytest.mark.parametrize("algorithm", ["fedacs", "powerofchoice"])
def test_lost_replies_are_recorded_and_replayed(algorithm, tmp_path):
    merged = config(algorithm, tmp_path / "deployed", **OBSERVED)
    merged["loop"]["sampling"]["init_args"]["clients_per_round"] = 5
    grid = made_grid(merged, tmp_path, steps=3)
    grid.lose = losing(0.4)
    run = deployed(grid, merged, timeout=0.02, max_steps=50)
    run.execute()
    expected = sum(row["num_sampled"] for row in run.loop.record.history)
    assert 0 < sum(row["num_delivered"] for row in run.loop.record.history) < expected
    replay = simulated(
        merged | {"run_dir": str(tmp_path / "replay")}, path=str(tmp_path / "deployed" / "deliveries.csv")
    )
    assert torch.equal(weights(replay), weights(run))
    assert replay.loop.system.schedule.state_dict().keys() == run.loop.system.schedule.state_dict().keys()
    known = [loop.planner.conditions(9) for loop in (run.loop, replay.loop)]
    np.testing.assert_array_equal(known[0].failure_rates, known[1].failure_rates)
    assert set(known[0].num_steps.tolist()) <= {3, 5}


def test_a_replay_of_another_run_is_refused(tmp_path):
    merged = config("fedacs", tmp_path / "deployed", **OBSERVED)
    deployed(made_grid(merged, tmp_path), merged).execute()
    other = merged | {"run_dir": str(tmp_path / "replay"), "seed": 1}
    with pytest.raises(ValueError, match=r"does not fit this run: in round 1 clients .* are asked, but"):
        simulated(other, path=str(tmp_path / "deployed" / "deliveries.csv"))


def test_a_killed_server_resumes(tmp_path):
    merged = config("fedvarp", tmp_path / "whole", **OBSERVED)
    whole = deployed(made_grid(merged, tmp_path), merged)
    whole.execute()
    paused = merged | {"run_dir": str(tmp_path / "paused")}
    first = deployed(made_grid(merged, tmp_path), paused)
    kept = first.loop._play

    def killed(index):
        if index == 3:
            raise SystemExit
        return kept(index)

    first.loop._play = killed
    with pytest.raises(SystemExit):
        first.execute("auto")
    second = deployed(made_grid(merged, tmp_path), paused)  # new nodes, new ids
    second.execute("auto")
    assert torch.equal(weights(second), weights(whole))
    files = [tmp_path / name / "deliveries.csv" for name in ("whole", "paused")]
    assert files[0].read_text() == files[1].read_text()


def paused_run(merged, folder):
    """Play two rounds of a deployment and leave it."""
    first = deployed(made_grid(merged, folder), merged)
    kept = first.loop._play

    def killed(index):
        if index == 3:
            raise SystemExit
        return kept(index)

    first.loop._play = killed
    with pytest.raises(SystemExit):
        first.execute("auto")


@pytest.mark.parametrize("what", ["away", "changed"])
def test_a_deployment_is_resumed_without_a_client_that_stays_away_or_has_other_data(what, tmp_path, caplog):
    merged = config("full", tmp_path / "run", **OBSERVED)
    paused_run(merged, tmp_path)
    grid = made_grid(merged, tmp_path)
    if what == "away":
        grid.offline.add(1000)  # the node of client 9
    else:
        grid.answer[1000] = lambda message, context: _one_more(app(message, context))
    second = deployed(grid, merged, timeout=1.0)
    second.data._timeout = 0.5
    second.execute("auto")
    assert second.loop.round_index == 4
    assert "started without clients 9" in caplog.text
    last = [line.split(",") for line in (tmp_path / "run" / "deliveries.csv").read_text().splitlines()[-10:]]
    assert {line[2]: line[3] for line in last} == {str(client): "0" if client == 9 else "1" for client in range(10)}


def _one_more(message):
    if "size" in message.content["values"]:
        message.content["values"]["size"] += 1
    return message


def test_a_deployment_is_not_resumed_with_half_of_its_clients(tmp_path):
    merged = config("full", tmp_path / "run", **OBSERVED)
    paused_run(merged, tmp_path)
    grid = made_grid(merged, tmp_path)
    grid.offline |= {1000 + number for number in range(5)}
    second = deployed(grid, merged)
    second.data._timeout = 0.5
    with pytest.raises(ConnectionError, match="5 of 10 clients did not come"):
        second.execute("auto")


def test_a_nodes_words_are_cut_and_its_shares_limited(tmp_path, caplog):
    merged = config("fedavg", tmp_path / "run")
    grid = made_grid(merged, tmp_path)
    grid.answer[1000] = lambda message, context: Message(
        Error(code=0, reason="lies\n\x1b[2J" + "x" * 100_000), reply_to=message
    )
    with pytest.raises(ConnectionError):
        deployed(grid, merged).loop.engine.questions.roster.meet(0.1)
    (line,) = [record.getMessage() for record in caplog.records if "answers with an error" in record.getMessage()]
    assert len(line) < 400
    assert line.isprintable()
    question = Message(packed({"shares": [b"x" * 10_000]}), 1, WHO)
    with pytest.raises(BadMessageError, match="4,096 bytes"):
        entries(question, "shares", bytes)


def test_other_data_is_not_resumed(tmp_path):
    merged = config("fedavg", tmp_path / "run")
    first = deployed(made_grid(merged, tmp_path), merged)
    first.loop.rounds = 2
    first.loop.should_stop = False
    for _ in zip(range(2), first.loop.iterate(first.module, first.data.load(0)), strict=False):
        pass
    state = first.loop.engine.state_dict()
    state["sizes"]["numpy array"][4] += 1
    with pytest.raises(ValueError, match=r"client 4 has \d+ examples, but had \d+"):
        first.loop.engine.load_state_dict(state)


def test_a_node_that_goes_and_comes_back(tmp_path):
    merged = config("full", tmp_path / "deployed", **OBSERVED)
    grid = made_grid(merged, tmp_path)
    run = deployed(grid, merged, timeout=1.0)
    delivered = []
    for result in run.loop.iterate(run.module, run.data.load(0)):
        delivered.append(result.delivered[9] > 0)
        if result.plan.index == 1:
            grid.offline.add(1000)  # the node of client 9
        if result.plan.index == 2:
            grid.nodes[2000] = grid.nodes[1000]  # its successor, which must introduce itself first
    assert delivered == [True, False, True, True]


def test_a_second_node_of_a_client_waits(tmp_path, caplog):
    merged = config("full", tmp_path / "deployed", **OBSERVED)
    grid = made_grid(merged, tmp_path)
    grid.nodes[3000] = grid.nodes[1000]
    run = deployed(grid, merged)
    run.data.load(0)
    assert run.loop.engine.questions.roster.nodes[9] == 1000
    assert "node 3000 says that it is client 9, which node 1000 is" in caplog.text


def test_missing_clients_are_named(tmp_path):
    merged = config("fedavg", tmp_path / "run")
    grid = made_grid(merged, tmp_path)
    grid.offline |= {1002, 1005}
    run = deployed(grid, merged)
    with pytest.raises(ConnectionError, match=r"2 of 10 clients did not come within 0\.1 s \(clients 4, 7\)"):
        run.loop.engine.questions.roster.meet(0.1)


@pytest.mark.parametrize("algorithm", REFUSED[:2])
def test_steps_of_simulated_clients_are_refused(algorithm, tmp_path):
    merged = config(algorithm, tmp_path / "run")
    with pytest.raises(ValueError, match="a step of simulated clients, which nodes would not make"):
        deployed(made_grid(merged, tmp_path), merged)


def test_a_sampler_that_asks_nodes_for_their_labels_is_refused(tmp_path):
    merged = config("fedcote", tmp_path / "run")
    run = deployed(made_grid(merged, tmp_path), merged)
    with pytest.raises(ValueError, match="labels of their data, which clients on other machines are not asked for"):
        run.loop.engine.label_counts()


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        ({"local_parameters": ["network.1.*"]}, "local_parameters"),
        ({"uploads": [{"class_path": "fl_lightning.uploads.TopK"}]}, "uploads has TopK"),
        ({"personal": {"class_path": "fl_lightning.personal.PulledModels"}}, "personal=PulledModels"),
        ({"lr": -1.0}, "lr=-1.0"),
    ],
    ids=["local_parameters", "uploads", "personal", "lr"],
)
def test_what_cannot_be_deployed_is_refused(loop, named, tmp_path):
    merged = config("fedavg", tmp_path / "run", **loop)
    with pytest.raises(ValueError, match=named):
        deployed(made_grid(merged, tmp_path), merged)


def test_clients_evaluate_on_what_they_hold_out(tmp_path):
    """Nobody trains on it, and the numbers are those of the simulator; who does not answer is left out."""
    settings = {"every_n_rounds": 2, "held_out": 0.25, "max_examples": 9}
    clip = {"class_path": "fl_lightning.uploads.Clip", "init_args": {"norm": 0.5}}
    merged = config("fedacs", tmp_path / "simulated", evaluate_clients=settings, uploads=[clip])
    expected = simulated(merged)
    grid = made_grid(merged, tmp_path)
    grid.lose = lambda message: (
        message.metadata.message_type == EVALUATE
        and message.metadata.group_id == "4"
        and grid.nodes[message.metadata.dst_node_id]["client"] == 3
    )
    run = deployed(grid, merged | {"run_dir": str(tmp_path / "deployed")}, timeout=0.5)
    results = list(run.loop.iterate(run.module, run.data.load(0)))
    assert torch.equal(weights(run), weights(expected))
    second, history = results[1].metrics, expected.loop.record.history
    names = [name for name in second if name.startswith("client_accuracy")]
    assert len(names) == 5
    assert {name: second[name] for name in names} == {name: history[1][name] for name in names}
    last = results[3].client_metrics["test_accuracy"]
    assert np.flatnonzero(np.isnan(last)).tolist() == [3]
    assert results[3].metrics["client_accuracy_mean"] == pytest.approx(np.nanmean(last))
    assert run.loop.algorithm.uploads.steps[0].measured_factors().min() < 1  # some updates were clipped, by the server
