"""Random numbers that data sets and modules draw from the generators of the process: seeded for each client."""

# ruff: noqa: NPY002  the shared stream of numpy is what is tested here

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

from fl_lightning.data.federation import DatasetFederation
from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule
from made import made_work
from systems import gaussian_federation, linear_module, small_loop

pytestmark = pytest.mark.usefixtures("_no_warning_of_large_steps")

NOISES = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": lambda: float(np.random.rand()),
    "python": random.random,
}


class Augmented(Dataset):
    """Examples with noise, as from a random crop."""

    def __init__(self, inputs, labels, noise) -> None:
        self.inputs, self.labels, self.noise = inputs, labels, noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        return self.inputs[index] + self.noise(), self.labels[index]


def augmented(noise, collate=default_collate) -> DatasetFederation:
    plain = gaussian_federation()
    parts = [Augmented(*plain.batch(m, np.arange(12)), noise) for m in range(6)]
    return DatasetFederation(parts, Augmented(*plain.test, noise), collate)


def noisy_collate(examples):
    inputs, labels = default_collate(examples)
    return inputs + torch.randn_like(inputs), labels


class Noisy(FederatedModule):
    """Draws while training."""

    def __init__(self, noise) -> None:
        torch.manual_seed(0)
        super().__init__(torch.nn.Linear(5, 3), 3)
        self.noise = noise

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0] + self.noise(), batch[1]), batch_idx)


CASES = {
    **{f"data_{name}": (linear_module, lambda noise=noise: augmented(noise)) for name, noise in NOISES.items()},
    "collate": (linear_module, lambda: augmented(lambda: 0.0, noisy_collate)),
    **{f"module_{name}": (lambda noise=noise: Noisy(noise), gaussian_federation) for name, noise in NOISES.items()},
}


@pytest.mark.parametrize("case", CASES)
def test_repeat_resume_and_order_are_exact(case, caplog):
    make_module, make_data = CASES[case]

    def played(rounds=4, resume_from=None):
        loop = small_loop(engine=Engine(threads=2), rounds=rounds)
        results = [result.metrics for result in loop.iterate(make_module(), make_data(), resume_from)]
        return loop, [{name: repr(metrics[name]) for name in ("test_loss", "train_loss")} for metrics in results]

    whole, metrics = played()
    assert whole.engine.choice.mode == "sequential"
    torch.manual_seed(5), np.random.seed(6), random.seed(7)  # what happened before has no influence
    again, repeated = played()
    assert torch.equal(whole.state.weights, again.state.weights)
    assert metrics == repeated
    half, _ = played(rounds=2)
    resumed, later = played(resume_from=half.state_dict())
    assert torch.equal(whole.state.weights, resumed.state.weights)
    assert later == metrics[2:]
    work = made_work(9, np.full(6, 3), 0.1)
    both = whole.engine.work(whole.state, np.array([1, 4]), work)
    assert torch.equal(both.deltas[1], whole.engine.work(whole.state, np.array([4]), work).deltas[0])
    assert torch.equal(
        whole.engine.gradients(whole.state, np.array([1, 4]), 9)[1],
        whole.engine.gradients(whole.state, np.array([4]), 9)[0],
    )
    asked = [whole.engine.losses(whole.state, np.array(clients), 9)[-1] for clients in ([1, 4], [4])]
    assert asked[0] == asked[1]
    assert not caplog.records


def test_noise_differs_between_clients_and_rounds():
    drawn = []
    loop = small_loop(engine=Engine())
    loop.run(Noisy(lambda: drawn.append(random.random()) or drawn[-1]), gaussian_federation())
    drawn.clear()
    for index in (8, 9):
        loop.engine.work(loop.state, np.array([1, 4]), made_work(index, np.full(6, 3), 0.1))
    assert len(set(drawn)) == len(drawn) == 12


def test_the_streams_of_the_process_are_left_alone():
    def position():
        return torch.rand(1).item(), np.random.rand(), random.random()

    found = []
    for rounds in (1, 3):
        loop = small_loop(engine=Engine(), rounds=rounds)
        module, data = Noisy(random.random), augmented(NOISES["numpy"])
        torch.manual_seed(5), np.random.seed(6), random.seed(7)
        loop.run(module, data)
        found.append(position())
    assert found[0] == found[1]


class OwnGenerator(Augmented):
    def __init__(self, inputs, labels, noise) -> None:
        super().__init__(inputs, labels, np.random.default_rng(0).random)


def test_data_with_a_generator_of_its_own_is_warned_of(caplog):
    plain = gaussian_federation()
    parts = [OwnGenerator(*plain.batch(m, np.arange(12)), None) for m in range(6)]
    loop = small_loop(engine=Engine(threads=2))
    loop.run(linear_module(), DatasetFederation(parts, torch.utils.data.TensorDataset(*plain.test)))
    assert loop.engine.choice.mode == "sequential"
    (record,) = caplog.records
    assert "data of client 0 gives other values" in record.message
    assert "resume and several processes are not exact" in record.message


def test_threads_are_refused_for_random_data():
    with pytest.raises(ValueError, match="'threads' is impossible here: the data draws random numbers"):
        small_loop(engine=Engine("threads", threads=2)).run(linear_module(), augmented(NOISES["torch"]))


def test_data_that_only_caches_keeps_the_fast_path():
    class Caching(Augmented):
        cache: dict = {}  # noqa: RUF012

        def __getitem__(self, index):
            return self.cache.setdefault((id(self), index), super().__getitem__(index))

    plain = gaussian_federation()
    parts = [Caching(*plain.batch(m, np.arange(12)), lambda: 0.0) for m in range(6)]
    loop = small_loop(engine=Engine(threads=2))
    loop.run(linear_module(), DatasetFederation(parts, torch.utils.data.TensorDataset(*plain.test)))
    assert loop.engine.choice.mode == "threads"
