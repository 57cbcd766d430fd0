"""Our callbacks in a plain Trainer: what they do there, and what they refuse."""

import json

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer, seed_everything
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from offline import read_back, summary_and_rows
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.callbacks import (
    ChannelFailures,
    ComputationTime,
    GilbertElliott,
    HeterogeneitySchedule,
    RoundCheckpoint,
    RoundProgress,
    RunRecorder,
    SamplerSelection,
    StopAtTarget,
    TensorBoardMetrics,
    WandbMetrics,
)
from fl_lightning.callbacks.schedule import Group
from fl_lightning.module import FederatedModule
from fl_lightning.samplers import Importance
from fl_lightning.seeding import Purpose, generator
from systems import gaussian_federation, linear_module


class Watch(Callback):
    """Comes last, so it sees what the others have left."""

    def __init__(self):
        self.batches, self.weights, self.logged = [], [], []

    def on_train_epoch_start(self, trainer, pl_module):
        self.batches.append(0)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches[-1] += 1

    def on_train_epoch_end(self, trainer, pl_module):
        self.weights.append(pl_module.network.weight.detach().clone())
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def fit(*callbacks, epochs=6, module=None):
    seed_everything(3, verbose=False)
    watch = Watch()
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[*callbacks, watch],
    )  # fmt: skip
    loader = DataLoader(TensorDataset(*gaussian_federation().train), batch_size=6)  # 12 batches
    module = module or linear_module()
    trainer.fit(module, loader)
    return watch, trainer


def test_a_lost_epoch_goes_back_and_the_rest_stays():
    channel = ChannelFailures(failure_rate=0.5)
    before = linear_module().network.weight.detach().clone()
    watch, _ = fit(channel, epochs=10)
    arrived = [generator(3, Purpose.LINK, epoch).random() >= 0.5 for epoch in range(1, 11)]
    assert channel.num_lost == arrived.count(False) > 0
    for came, left, right in zip(arrived, [before, *watch.weights], watch.weights, strict=False):
        assert torch.equal(left, right) != came


def test_optimizer_state_goes_back_too():
    class WithMomentum(type(linear_module())):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    torch.manual_seed(0)
    module = WithMomentum(torch.nn.Linear(5, 3), 3)
    watch, trainer = fit(ChannelFailures(failure_rate=1 - 1e-12), epochs=2, module=module)
    assert torch.equal(watch.weights[0], watch.weights[1])
    assert not trainer.optimizers[0].state_dict()["state"]


def test_the_schedule_limits_the_steps_of_an_epoch():
    schedule = HeterogeneitySchedule(groups=[Group(1.0, (2, 9), 0.3)])
    watch, _ = fit(schedule)
    expected = [int(schedule.configure_conditions(e, np.array([12]), 3).num_steps[0]) for e in range(1, 7)]
    assert watch.batches == expected
    assert len(set(expected)) > 1


def test_a_schedule_longer_than_the_data_takes_the_data():
    assert fit(HeterogeneitySchedule(num_steps=50, failure_rates=0.0), epochs=2)[0].batches == [12, 12]


def test_the_channel_takes_its_rate_from_the_schedule_or_asks_for_one():
    channel = ChannelFailures()
    fit(HeterogeneitySchedule(num_steps=3, failure_rates=1 - 1e-12), channel, epochs=2)
    assert channel.num_lost == 2
    with pytest.raises(MisconfigurationException, match=r"failure_rate=0\.3"):
        fit(ChannelFailures())


def test_the_same_time_columns_are_logged():
    times = ComputationTime(seconds_per_step=0.5)
    watch, _ = fit(times, HeterogeneitySchedule(num_steps=4, failure_rates=0.0), epochs=3)
    assert times.local_steps == 12
    assert watch.logged[-1]["local_steps"] == 12
    assert watch.logged[-1]["computation_time"] == 6
    assert watch.logged[-1]["round_time"] == 2
    assert watch.logged[-1]["wall_time"] > 0


def test_a_trainer_stops_at_the_target():
    class Validated(type(linear_module())):
        def validation_step(self, batch, batch_idx):
            self.log("accuracy", 0.9)

        def val_dataloader(self):
            return DataLoader(TensorDataset(*gaussian_federation().train), batch_size=72)

    watch, _ = fit(StopAtTarget(0.8, "accuracy"), module=Validated(torch.nn.Linear(5, 3), 3))
    assert len(watch.batches) == 1


def test_wandb_logs_epochs_under_the_same_keys(tmp_path):
    metrics = WandbMetrics(project="demo", save_dir=str(tmp_path), mode="offline")
    fit(HeterogeneitySchedule(num_steps=4, failure_rates=0.0), ComputationTime(), metrics, epochs=3)
    history = [record for record in read_back(tmp_path) if record.get("type") == "history"]
    assert len(history) == 3
    assert all(name in json.dumps(history[-1]) for name in ("local_steps", "computation_time", "round", "wall_time"))


@pytest.mark.parametrize(
    "callback",
    [
        SamplerSelection(Importance(), 3),
        RoundProgress(),
        RunRecorder("nowhere"),
        RoundCheckpoint("nowhere"),
        GilbertElliott(3.0),
        TensorBoardMetrics("nowhere"),
    ],
)
def test_what_has_no_meaning_in_a_trainer_says_what_to_use(callback):
    with pytest.raises(MisconfigurationException, match=f"{type(callback).__name__} has no meaning in a plain Trainer"):
        fit(callback)


class Points(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(*gaussian_federation().train), batch_size=6)


def test_lightning_cli_takes_our_module_and_callbacks(tmp_path):
    arguments = [
        "fit", "--trainer.max_epochs=2", "--trainer.logger=false", "--trainer.enable_checkpointing=false",
        "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", f"--trainer.default_root_dir={tmp_path}",
        "--trainer.callbacks+=fl_lightning.callbacks.ChannelFailures", "--trainer.callbacks.failure_rate=0.999999",
        "--trainer.callbacks+=fl_lightning.callbacks.ComputationTime",
        "--model.network=torch.nn.Linear", "--model.network.in_features=5", "--model.network.out_features=3",
        "--model.num_classes=3",
    ]  # fmt: skip
    cli = LightningCLI(FederatedModule, Points, args=arguments, save_config_callback=None)
    (channel,) = [callback for callback in cli.trainer.callbacks if isinstance(callback, ChannelFailures)]
    assert channel.num_lost == 2


class Measured(type(linear_module())):
    """Logs an accuracy of its own name after each epoch."""

    def on_train_epoch_start(self):
        self.log("val_acc", 0.82)


def measured():
    torch.manual_seed(0)
    return Measured(torch.nn.Linear(5, 3), 3)


def test_a_target_whose_metric_nobody_logs_is_named_and_not_waited_for():
    with pytest.raises(MisconfigurationException, match=r"monitor='test_accuracy'\) finds no such metric.*val_acc"):
        fit(StopAtTarget(0.5), module=measured(), epochs=6)
    with pytest.raises(MisconfigurationException, match="logged is nothing"):
        fit(StopAtTarget(0.5), epochs=1)
    assert len(fit(StopAtTarget(0.5, "val_acc"), module=measured())[0].batches) == 1
    assert len(fit(StopAtTarget(0.5, "val_acc", "min"), module=measured())[0].batches) == 6
    assert StopAtTarget(0.5).reached(0.5)
    assert not StopAtTarget(0.5, mode="min").reached(0.6)


@pytest.mark.parametrize(
    ("settings", "reached"),
    [({"monitor": "val_acc"}, True), ({"monitor": "val_acc", "monitor_mode": "min"}, False), ({}, None)],
)
def test_wandb_knows_the_monitor_of_a_trainer(settings, reached, tmp_path, caplog):
    metrics = WandbMetrics(save_dir=str(tmp_path), mode="offline", target_accuracy=0.5, **settings)
    fit(metrics, module=measured(), epochs=2)
    assert summary_and_rows(tmp_path)[0]["reached"] is reached
    assert ("no test_accuracy was logged" in caplog.text) == (reached is None)


def test_a_trainer_is_one_client_of_several():
    groups = [Group(0.5, (2, 4), 0.1), Group(0.5, (8, 11), 0.6)]
    for client in (0, 3):
        schedule = HeterogeneitySchedule(groups=groups).as_client(client, num_clients=4)
        channel = ChannelFailures().as_client(client, num_clients=4)
        watch, _ = fit(schedule, channel, epochs=6)
        rounds = [schedule.configure_conditions(each, np.full(4, 12), 3) for each in range(1, 7)]
        assert watch.batches == [each.num_steps[client] for each in rounds]
        links = [generator(3, Purpose.LINK, each).random(4)[client] for each in range(1, 7)]
        rates = [each.failure_rates[client] for each in rounds]
        assert channel.num_lost == sum(link < rate for link, rate in zip(links, rates, strict=True))
        assert channel.arrives(1, rates[0], seed=3) == (links[0] >= rates[0])
    with pytest.raises(ValueError, match=r"client=3 must be in 0\.\.2"):
        ChannelFailures().as_client(3, num_clients=3)


def test_time_in_a_loop_of_your_own():
    times = ComputationTime(seconds_per_step=[0.5, 2.0])
    row = times.add_round([4, 0], training_seconds=0.1, uplink_bytes=10)
    assert (row["local_steps"], row["computation_time"], row["round_time"]) == (4, 2.0, 2.0)
    row = times.add_round([4, 3], uplink_bytes=20)
    assert (row["local_steps"], row["computation_time"], row["round_time"]) == (11, 10.0, 6.0)
    assert (row["synchronous_time"], row["uplink_bytes"]) == (8.0, 30.0)
    assert times.local_steps == 11
    with pytest.raises(MisconfigurationException, match="give one number"):
        fit(times, epochs=1)


def test_progress_in_a_loop_of_your_own(capsys):
    progress = RoundProgress("val_acc")
    progress.start(rounds=2)
    progress.show(1, {"val_acc": 0.25})
    progress.show(2, {"val_acc": 0.5, "train_loss": 1.0})
    progress.close()
    assert capsys.readouterr().err.split("\n")[:2] == [
        "round 1/2  val acc 0.250",
        "round 2/2  val acc 0.500  train loss 1.000",
    ]
