"""Fabric's precisions have their effect, in every way of training."""

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import Precision
from torch import nn

from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule
from fl_lightning.samplers import FullParticipation
from systems import gaussian_federation, small_loop

TYPES = {"64-true": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16, "32-true": torch.float32}


class Watching(FederatedModule):
    """Fails if anything in a step has another type than it should, without remembering anything."""

    def __init__(self, weights: torch.dtype, computing: torch.dtype, default: torch.dtype) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), 3)
        self.wanted = (weights, computing, default)

    def check(self, batch) -> None:
        found = (self.network[0].weight.dtype, self.network[0](batch[0]).dtype, torch.ones(1).dtype)
        assert found == self.wanted, found

    def training_step(self, batch, batch_idx):
        self.check(batch)
        return super().training_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.check(batch)
        super().test_step(batch, batch_idx)


def played(precision: str, module, mode: str = "auto"):
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    loop = small_loop(FullParticipation(), engine=Engine(mode, threads=2), fabric=fabric)
    return loop, loop.run(module, gaussian_federation())


@pytest.mark.parametrize("mode", ["threads", "sequential", "reference"])
@pytest.mark.parametrize("precision", TYPES)
def test_true_precisions_reach_weights_batches_and_new_tensors(precision, mode):
    wanted = TYPES[precision]
    loop, state = played(precision, Watching(wanted, wanted, wanted), mode)
    assert state.weights.dtype == state.buffers.dtype == wanted
    _, single = played("32-true", Watching(*[torch.float32] * 3), mode)
    assert torch.allclose(state.weights.float(), single.weights, atol={"64-true": 1e-5}.get(precision, 0.1))
    assert loop.engine.choice.mode == mode
    assert torch.get_default_dtype() == torch.float32  # left as it was


def test_mixed_precision_computes_in_half_and_keeps_weights():
    _, state = played("bf16-mixed", Watching(torch.float32, torch.bfloat16, torch.float32))
    assert state.weights.dtype == torch.float32


def linear():
    torch.manual_seed(0)
    return FederatedModule(nn.Linear(5, 3), 3)


@pytest.mark.parametrize("mode", ["stacked", "threads"])
def test_double_precision_is_more_precise_and_halves_are_less(mode):
    exact = played("64-true", linear(), "reference")[1].weights
    errors = {
        name: float((played(name, linear(), mode)[1].weights.double() - exact).norm())
        for name in TYPES
        if not (mode == "stacked" and "16" in name)
    }
    assert errors["64-true"] < 1e-12 < errors["32-true"] < 1e-4
    if mode == "threads":
        assert errors["32-true"] < errors["16-true"] < errors["bf16-true"] < 1


def test_another_precision_is_refused():
    class Other(Precision):
        precision = "nf4"

    fabric = Fabric(accelerator="cpu", devices=1, plugins=Other())
    with pytest.raises(ValueError, match=r"fabric.precision=nf4 is not supported: use one of 32-true"):
        small_loop(fabric=fabric).run(linear(), gaussian_federation())
