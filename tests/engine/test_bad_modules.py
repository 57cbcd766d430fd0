"""What is wrong with a module or its data is said with module, client, round and what to do."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from fl_lightning.data.federation import DatasetFederation, TensorFederation
from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule
from fl_lightning.samplers import FullParticipation
from systems import gaussian_federation, linear_module, small_loop

MODES = ["auto", "threads", "stacked", "sequential", "reference"]


def played(module, federation=None, mode="auto", **settings):
    loop = small_loop(FullParticipation(), engine=Engine(mode, threads=2), **settings)
    return loop, loop.run(module, federation or gaussian_federation())


class WithoutIndex(FederatedModule):
    def training_step(self, batch):
        return super().training_step(batch, 0)

    def test_step(self, batch):
        return super().test_step(batch, 0)


@pytest.mark.parametrize("mode", MODES)
def test_steps_without_the_number_of_the_batch(mode):
    torch.manual_seed(0)
    _, state = played(WithoutIndex(nn.Linear(5, 3), 3), mode=mode)
    _, expected = played(linear_module(), mode=mode)
    assert torch.equal(state.weights, expected.weights)


class OtherForms(FederatedModule):
    def training_step(self, *arguments, **options):
        assert len(arguments) == 2
        return {"loss": super().training_step(*arguments)}

    def test_step(self, batch, number, dataloader_idx=0):
        assert number >= 0
        return super().test_step(batch, number)


def test_other_signatures_get_the_number():
    torch.manual_seed(0)
    module = OtherForms(nn.Linear(5, 3), 3)
    numbers = []
    original = module.training_step
    module.training_step = lambda batch, number: numbers.append(number) or original(batch, number)
    played(module, mode="sequential")
    assert max(numbers) > 0


@pytest.mark.parametrize(("mode", "layers"), [("auto", 1), ("sequential", 2)])
def test_a_scripted_part_trains_in_all_rounds(mode, layers):
    network = nn.Sequential(nn.Linear(5, 8), *([nn.BatchNorm1d(8)] if layers > 1 else []), nn.ReLU(), nn.Linear(8, 3))
    results = []
    for scripted in (False, True):
        torch.manual_seed(0)
        for layer in network:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        module = FederatedModule(torch.jit.script(network) if scripted else network, 3)
        results.append(played(module, mode=mode)[1])
    assert torch.allclose(results[0].weights, results[1].weights, rtol=1e-4, atol=1e-6)


class NoLoss(FederatedModule):
    def training_step(self, batch, batch_idx):
        return {"logits": 1, "accuracy": 2}


class Detached(FederatedModule):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).detach()


class Unreduced(FederatedModule):
    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self(batch[0]), batch[1], reduction="none")


class Nothing(FederatedModule):
    def training_step(self, batch, batch_idx):
        return None


class Broken(FederatedModule):
    def training_step(self, batch, batch_idx):
        return self.does_not_exist


@pytest.mark.parametrize("mode", ["auto", "sequential"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            NoLoss,
            r"NoLoss.training_step must return the loss .*dict with the keys \['accuracy', 'logits'\]",
        ),
        (Detached, r"client \d+: Detached.training_step returned a loss without a gradient.*detach\(\)"),
        (Unreduced, r"client \d+: Unreduced.training_step must return the loss as a scalar.*shape \(4,\).*mean"),
        (Nothing, r"client \d+: Nothing.training_step must return the loss .* but returned None"),
        (Broken, r"Broken.training_step failed at test_bad_modules.py:\d+ with AttributeError: .*does_not_exist"),
    ],
)
def test_a_wrong_step_is_named(kind, text, mode):
    with pytest.raises(ValueError, match=r"^(round \d+|trial before round 1), client \d+: ") as found:
        played(kind(nn.Linear(5, 3), 3), gaussian_federation(size=4), mode)
    assert "\n" not in str(found.value)
    found.match(text)


def test_a_lazy_module_is_refused():
    with pytest.raises(ValueError, match=r"FederatedModule has a lazy module whose 'network.weight'.*run one batch"):
        played(FederatedModule(nn.LazyLinear(3), 3))


@pytest.mark.parametrize("mode", MODES)
def test_a_label_out_of_range_names_its_client(mode):
    federation = gaussian_federation()
    federation.train[1][np.arange(48, 60)] = 7  # all examples of client 4
    with pytest.raises(ValueError, match=r"^round 1, client 4: FederatedModule.training_step failed.*more classes"):
        played(linear_module(), federation, mode)


@pytest.mark.parametrize("mode", ["auto", "sequential"])
def test_batch_norm_with_one_example_names_its_client(mode):
    x, y = torch.randn(20, 5), torch.randint(0, 3, (20,))
    federation = TensorFederation((x, y), (x, y), [[0], np.arange(1, 10), np.arange(10, 20)])
    module = FederatedModule(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), 3)
    with pytest.raises(ValueError, match=r"^round 1, client 0: FederatedModule.training_step failed.*at least 2"):
        played(module, federation, mode)


class Failing(Dataset):
    def __init__(self, client: int) -> None:
        self.client = client

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index):
        if self.client == 1 and index == 5:
            raise OSError("image 5.png is truncated")
        return torch.zeros(5), 0


@pytest.mark.parametrize("mode", ["auto", "sequential"])
def test_data_that_raises_names_client_round_and_examples(mode):
    federation = DatasetFederation([Failing(0), Failing(1)], TensorDataset(torch.zeros(2, 5), torch.zeros(2).long()))
    with pytest.raises(
        ValueError,
        match=r"^round \d+, client 1: the data \(examples .*5.*\) failed at test_bad_modules.py:\d+ with OSEr",
    ) as found:
        played(linear_module(), federation, mode, batch_size=6)
    assert isinstance(found.value.__cause__, OSError)


def test_questions_name_the_client_as_well():
    loop, state = played(linear_module())
    loop.federation.train[1][np.arange(48, 60)] = 7
    for question in (loop.engine.losses, loop.engine.gradients):
        with pytest.raises(ValueError, match=r"^round 9, client 4: "):
            question(state, np.array([3, 4]), 9)
