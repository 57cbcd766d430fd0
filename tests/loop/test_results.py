"""What a run returns, and what happens when the headline metric is not there."""

import logging
import math

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.callbacks import ComputationTime
from fl_lightning.loop.results import History, RunRecord
from fl_lightning.runs.storage import read_checkpoint, write_checkpoint
from fl_lightning.types import ModelState
from made import made_loop
from systems import gaussian_federation, linear_module

MEASURED = ("wall_time", "training_seconds")


def made(**settings):
    return made_loop(**({"rounds": 5, "lr": 0.1, "batch_size": 4} | settings))


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 1)

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.linear(batch[0]).squeeze(1), batch[1].float())

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.training_step(batch, batch_idx))


def test_a_run_returns_its_rounds_its_best_and_its_last_model():
    result = made(monitor="test_loss", mode="min", evaluate_every=2).run(linear_module(), gaussian_federation())
    assert [row["round"] for row in result.history] == [1, 2, 3, 4, 5]
    losses = result.history.column("test_loss")
    assert [math.isnan(loss) for loss in losses] == [True, False, True, False, False]
    assert result.best.value == np.nanmin(losses) == result.best.metrics["test_loss"]
    assert result.summary["best_round"] == result.best.round_index == 1 + int(np.nanargmin(losses))
    assert result.summary["final"] == losses[-1]
    assert torch.equal(result.weights, result.state.weights)
    assert result.averaged.weights.shape == result.weights.shape
    assert not torch.equal(result.averaged.weights, result.weights)


def test_the_best_model_is_that_of_its_round():
    states = []

    class Watch:
        def on_round_end(self, loop, result):
            states.append(loop.state.weights.clone())

    result = made(rounds=8, callbacks=[Watch()]).run(linear_module(), gaussian_federation())
    assert torch.equal(result.best.state.weights, states[result.best.round_index - 1])


def test_history_becomes_a_table():
    pandas = pytest.importorskip("pandas")
    table = History([{"round": 1, "loss": 2.0}, {"round": 2}]).to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table["round"].tolist() == [1, 2]
    assert table["loss"].isna().tolist() == [False, True]


def test_rows_and_best_model_survive_a_checkpoint(tmp_path):
    settings = {"monitor": "test_loss", "mode": "max", "evaluate_every": 2, "rounds": 6}  # the worst: an early round
    whole = made(callbacks=[ComputationTime()], **settings).run(linear_module(), gaussian_federation())
    loop = made(callbacks=[ComputationTime()], **settings)
    for result in loop.iterate(linear_module(), gaussian_federation()):
        if result.plan.index == 3:
            write_checkpoint(tmp_path / "it.ckpt", loop.state_dict())
            break
    other = made(callbacks=[ComputationTime()], **settings)
    resumed = other.run(linear_module(), gaussian_federation(), read_checkpoint(tmp_path / "it.ckpt"))
    rows = [[{k: v for k, v in row.items() if k not in MEASURED} for row in run.history] for run in (whole, resumed)]
    assert rows[0] == rows[1]
    kinds = [[{name: type(value) for name, value in row.items()} for row in table] for table in rows]
    assert kinds[0] == kinds[1]
    assert whole.best.round_index == resumed.best.round_index == 2
    assert torch.equal(whole.best.state.weights, resumed.best.state.weights)


def test_not_a_number_is_never_best():
    record = RunRecord("loss", "min")
    for number, loss in enumerate([math.nan, 2.0, math.nan, 1.0, 1.0], start=1):
        record.add({"round": number, "loss": loss}, ModelState(torch.full((1,), number), torch.empty(0)), True)
    assert (record.best_round, record.best_value, float(record.best_weights)) == (4, 1.0, 4)


def test_a_metric_that_is_asked_for_and_not_measured_is_refused():
    with pytest.raises(ValueError, match=r"monitor='val_loss' is not among .* use one of round, test_loss"):
        made(monitor="val_loss").run(Regression(), gaussian_federation())
    with pytest.raises(ValueError, match="mode='up'"):
        made(mode="up")


def test_a_module_without_the_default_metric_is_told_once(caplog):
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        result = made().run(Regression(), gaussian_federation())
    assert sum("monitor='test_accuracy' is not among" in record.message for record in caplog.records) == 1
    assert result.best is None
    assert result.summary["best"] is None
