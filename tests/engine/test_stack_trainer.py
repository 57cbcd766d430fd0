"""The gradients of a stack against those of single clients, for modules with odd parameters."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional

from fl_lightning.data.federation import TensorFederation
from fl_lightning.engine.batches import ClientBatches
from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.model import FlatModel
from fl_lightning.engine.stacked import StackTrainer
from fl_lightning.solvers import SGD


class Tied(LightningModule):
    """Uses one matrix twice, never uses a parameter, and has one that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.scale = nn.Parameter(torch.tensor(0.7))

    def training_step(self, batch, batch_idx):
        hidden = torch.tanh(self.first(batch[0])) * self.scale
        return functional.cross_entropy(self.second(hidden), batch[1])


class Broken(Tied):
    def training_step(self, batch, batch_idx):
        raise RuntimeError("from the module")


def trainer_of(module):
    x, y = torch.randn(12, 4), torch.randint(0, 4, (12,))
    federation = TensorFederation((x, y), (x, y), np.split(np.arange(12), 3))
    batches = ClientBatches(federation, 4, 0, lambda batch: batch)
    return StackTrainer(ClientTrainer(FlatModel(module), SGD(), batches, nullcontext))


@pytest.mark.parametrize("count", [1, 3])
def test_each_row_has_the_gradient_of_its_client(count):
    torch.manual_seed(0)
    module = Tied()
    plain = copy.deepcopy(module)
    trainer = trainer_of(module)
    weights = torch.randn(count, len(trainer.model.weights))
    batch = torch.randn(count, 5, 4), torch.randint(0, 4, (count, 5))
    out = torch.full_like(weights, float("nan"))
    losses = trainer.gradients(weights, batch, 0, out)
    assert not losses.requires_grad
    for row in range(count):
        nn.utils.vector_to_parameters(weights[row], plain.parameters())
        loss = plain.training_step((batch[0][row], batch[1][row]), 0)
        gradients = torch.autograd.grad(loss, list(plain.parameters()), allow_unused=True)
        wanted = [torch.zeros(3) if gradient is None else gradient for gradient in gradients]
        assert torch.allclose(losses[row], loss.detach(), atol=1e-6)
        assert torch.allclose(out[row], torch.cat([gradient.reshape(-1) for gradient in wanted]), atol=1e-6)


def test_the_module_keeps_its_own_parameters_also_where_its_step_fails():
    module = Broken()
    before = dict(module.named_parameters())
    trainer = trainer_of(module)
    weights = torch.randn(2, len(trainer.model.weights))
    with pytest.raises(RuntimeError, match="from the module"):
        trainer.gradients(weights, (torch.randn(2, 5, 4), torch.zeros(2, 5, dtype=torch.int64)), 0, weights.clone())
    assert {name: id(each) for name, each in module.named_parameters()} == {n: id(p) for n, p in before.items()}
    assert module.second.weight is module.first.weight
