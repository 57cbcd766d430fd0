"""Deliveries in a file, and the engine that trains by them."""

from pathlib import Path

import pytest
import torch

from fl_lightning.callbacks import DeliveryRecorder, Observed
from fl_lightning.engine import Replayed
from fl_lightning.samplers import FullParticipation, PowerOfChoice
from fl_lightning.system.traces import Delivery, as_table, read_deliveries
from systems import gaussian_federation, linear_module, small_loop


def answers(arrived, num_steps=2, rounds=4):
    """Everybody is asked in each round; who arrives is given."""
    return [
        Delivery(round_index=index, question=0, client=client, arrived=client in arrived, num_steps=num_steps)
        for index in range(1, rounds + 1)
        for client in range(6)
    ]


def replayed(path: Path, rows, sampler=None, rounds=4):
    path.write_text(as_table(rows))
    sampler = sampler or FullParticipation()
    return small_loop(sampler, rounds=rounds, channel=Observed(), engine=Replayed(str(path)))


def test_only_those_who_answered_are_trained_with_the_steps_they_reported(tmp_path):
    loop = replayed(tmp_path / "d.csv", answers({0, 3, 5}))
    for result in loop.iterate(linear_module(), gaussian_federation()):
        assert result.updates.clients.tolist() == [0, 3, 5]
        assert (result.delivered > 0).tolist() == [True, False, False, True, False, True]
        assert result.plan.profiles.num_steps[[0, 3, 5]].tolist() == [2, 2, 2]


def test_everybody_is_as_without_a_record(tmp_path):
    plain = small_loop(FullParticipation(), channel=Observed())
    expected = [
        result.plan.profiles.num_steps.tolist() for result in plain.iterate(linear_module(), gaussian_federation())
    ]
    rows = [
        Delivery(round_index=index + 1, question=0, client=client, arrived=True, num_steps=steps)
        for index, round_steps in enumerate(expected)
        for client, steps in enumerate(round_steps)
    ]
    loop = replayed(tmp_path / "d.csv", rows)
    loop.run(linear_module(), gaussian_federation())
    assert torch.equal(loop.state.weights, plain.state.weights)
    again = loop.run(linear_module(), gaussian_federation())  # a second run starts at the first question again
    assert torch.equal(again.weights, plain.state.weights)


def test_unanswered_questions_are_unanswered_again(tmp_path):
    """Power-of-choice asks six clients for a loss; the one that is silent is never chosen."""
    asked = [
        Delivery(round_index=1, question=0, client=client, arrived=client != 4, num_steps=0) for client in range(6)
    ]
    drawn = [Delivery(round_index=1, question=1, client=client, arrived=True, num_steps=3) for client in range(6)]
    loop = replayed(tmp_path / "d.csv", asked + drawn, PowerOfChoice(num_candidates=6), rounds=1)
    loop._setup(linear_module(), gaussian_federation())
    losses = loop.engine.losses(loop.state, torch.arange(6).numpy(), 1)
    assert [bool(value != value) for value in losses] == [False, False, False, False, True, False]


def test_beyond_the_recorded_rounds_it_stops(tmp_path):
    loop = replayed(tmp_path / "d.csv", answers({0}, rounds=2))
    with pytest.raises(ValueError, match=r"in round 3 clients 0, 1, .* are asked, but none are recorded"):
        loop.run(linear_module(), gaussian_federation())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "round,question,client,arrived,num_steps\n1,0,0,2,3\n",
        "round,question,client,arrived\n1,0,0,1\n",
    ],
)
def test_another_file_is_refused(text, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(text)
    if text:
        with pytest.raises(ValueError, match="is not a table with columns round, question"):
            Replayed(str(path))
    else:
        assert read_deliveries(path) == []


def test_a_recorder_needs_an_engine_that_tells(tmp_path):
    loop = small_loop(callbacks=[DeliveryRecorder(str(tmp_path))])
    with pytest.raises(ValueError, match="leave the recorder out"):
        loop.run(linear_module(), gaussian_federation())
