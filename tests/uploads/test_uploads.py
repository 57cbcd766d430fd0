"""Steps between client and aggregator: seen by the model, by the predicted objective and by checkpoints."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fl_lightning import Calibration, FederatedModule
from fl_lightning.uploads import Upload
from made import made_loop


class Halved(Upload):
    """Halves what client 0 sends, and counts."""

    memory = ("num_calls",)

    def __init__(self):
        self.num_calls = 0

    def __call__(self, updates, plan, seed):
        self.num_calls += 1
        factors = torch.from_numpy(np.where(updates.clients == 0, 0.5, 1.0)).to(updates.deltas)
        return replace(updates, deltas=updates.deltas * factors[:, None])

    def factors(self, profiles):
        return np.where(np.arange(profiles.num_clients) == 0, 0.5, 1.0)

    def num_bytes(self, num_values, num_bytes):
        return num_bytes / 2


def data():
    generator = torch.Generator().manual_seed(0)
    return [
        TensorDataset(torch.randn(8, 4, generator=generator), torch.randint(0, 2, (8,), generator=generator))
        for _ in range(2)
    ]


def module():
    torch.manual_seed(0)
    return FederatedModule(torch.nn.Linear(4, 2))


def play(uploads, rounds=1, resume=None):
    loop = made_loop(rounds=rounds, lr=0.1, uploads=uploads, weights="uniform", calibration=Calibration(scope="none"))
    loop.algorithm.sampling.clients_per_round = 2  # everybody
    return loop, list(loop.iterate(module(), data(), resume))


def test_steps_change_the_model_and_the_predicted_objective():
    plain, (before,) = play([])
    halved, (after,) = play([Halved()])
    sent = before.updates.deltas[before.updates.clients == 0]
    assert torch.equal(after.updates.deltas[after.updates.clients == 0], sent / 2)
    difference = (halved.state.weights - plain.state.weights).double()
    expected = before.plan.learning_rate * before.delivered[0] / 2 * sent[0].double() / 2
    assert torch.allclose(difference, expected, atol=1e-6)
    assert before.plan.effective_weights == pytest.approx([1 / 2, 1 / 2])
    assert after.plan.effective_weights == pytest.approx([1 / 3, 2 / 3])
    assert halved.algorithm.uploads.num_bytes(100) == 200


def test_memory_is_in_checkpoints_and_other_steps_are_refused():
    loop, _ = play([Halved(), Halved()], rounds=2)
    state = loop.state_dict()
    resumed, _ = play([Halved(), Halved()], rounds=3, resume=state)
    assert [step.num_calls for step in resumed.algorithm.uploads.steps] == [3, 3]
    with pytest.raises(ValueError, match="has the uploads"):
        play([Halved()], rounds=3, resume=state)


def test_a_class_is_refused():
    with pytest.raises(TypeError, match="subclasses of fl_lightning"):
        made_loop(rounds=1, lr=0.1, uploads=[Halved])
