"""The models that a run leaves: ``model.ckpt`` (averaged) and ``model_last.ckpt`` load in a plain Lightning project."""

import logging

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.callbacks import RoundCheckpoint, RunRecorder
from fl_lightning.server import ExponentialAverage
from fl_lightning.server.averaging import NoAverage
from made import made_loop
from systems import gaussian_federation


class Mine(LightningModule):
    """Has hyperparameters, and keeps something of its own in checkpoints."""

    def __init__(self, width: int, network: nn.Module | None = None) -> None:
        super().__init__()
        self.save_hyperparameters(*(["width"] if network is None else ["width", "network"]))
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, width), nn.ReLU(), network or nn.Linear(width, 3))
        self.seen = 0

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.seen += len(batch[0])
        self.log("test_accuracy", (self.layers(batch[0]).argmax(1) == batch[1]).float().mean())

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["seen"]


def weights(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def run(folder, module, averaging):
    callbacks = [RunRecorder(str(folder)), RoundCheckpoint(str(folder / "checkpoints"), min_seconds=0)]
    loop = made_loop(rounds=4, lr=0.3, batch_size=4, averaging=averaging, callbacks=callbacks)
    return loop.run(module, gaussian_federation())


@pytest.mark.parametrize("averaging", [ExponentialAverage(), NoAverage()])
def test_both_models_load_without_this_package_and_say_which_is_which(averaging, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        result = run(tmp_path, Mine(4), averaging)
    assert "on_save_checkpoint" not in caplog.text  # it is called
    last = Mine.load_from_checkpoint(tmp_path / "model_last.ckpt")
    model = Mine.load_from_checkpoint(tmp_path / "model.ckpt")
    assert torch.equal(weights(last), result.state.weights)
    assert torch.equal(weights(result.module), result.state.weights)  # the module holds the last round
    wanted = result.state if result.averaged is None else result.averaged
    assert torch.equal(weights(model), wanted.weights)
    assert torch.equal(weights(model), weights(last)) == (result.averaged is None)
    assert model.hparams.width == last.hparams.width == 4
    assert model.seen == last.seen == result.module.seen > 0
    kept = torch.load(tmp_path / "model.ckpt", weights_only=True)
    assert (kept["epoch"], kept["global_step"]) == (3, 4)


@pytest.mark.filterwarnings("ignore:Attribute 'network'")
def test_a_hyperparameter_that_is_a_network_is_given_again(tmp_path):
    result = run(tmp_path, Mine(4, nn.Linear(4, 3)), NoAverage())
    found = Mine.load_from_checkpoint(tmp_path / "model.ckpt", width=4, network=nn.Linear(4, 3))
    assert torch.equal(weights(found), result.state.weights)
