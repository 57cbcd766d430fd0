"""Lightning's callbacks and loggers in a federated run: honoured, or refused with the name of what to use."""

import csv
import logging
import math

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from lightning.pytorch import LightningModule
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch import nn

from fl_lightning.callbacks import ChannelFailures, HeterogeneitySchedule, StopAtTarget
from fl_lightning.server.averaging import NoAverage
from made import made_loop
from systems import gaussian_federation, linear_module


def run(callbacks=(), module=None, rounds=12, **settings):
    loop = made_loop(rounds=rounds, lr=0.05, batch_size=4, callbacks=callbacks, **settings)
    return loop.run(module or linear_module(), gaussian_federation())


class Scripted(LightningModule):
    """Logs a metric that is written beforehand."""

    def __init__(self, values):
        super().__init__()
        self.save_hyperparameters()
        self.linear, self.left = nn.Linear(5, 3), list(values)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.linear(batch[0]), batch[1])

    def test_step(self, batch, batch_idx):
        self.log("score", self.left.pop(0))


def scripted(callbacks, values, **settings):
    settings = {"averaging": NoAverage(), "monitor": "score", "rounds": len(values)} | settings
    return run(callbacks, Scripted(values), **settings)


@pytest.mark.parametrize("place", ["loop", "fabric"])
def test_early_stopping_stops_when_the_metric_no_longer_improves(place):
    stopping = EarlyStopping("score", mode="max", patience=2)
    settings = {} if place == "loop" else {"fabric": Fabric(accelerator="cpu", devices=1, callbacks=[stopping])}
    result = scripted([stopping] if place == "loop" else [], [0.1, 0.5, 0.4, 0.3, 0.9, 1.0], **settings)
    assert [row["score"] for row in result.history] == pytest.approx([0.1, 0.5, 0.4, 0.3])
    assert stopping.stopped_epoch == 3
    assert (result.best.round_index, result.summary["best_round"]) == (2, 2)


def test_early_stopping_watches_any_column_downwards():
    stopping = EarlyStopping("score", mode="min", patience=1, min_delta=0.2)
    result = scripted([stopping], [1.0, 0.7, 0.6, 0.1], mode="min")
    assert len(result.history) == 3
    assert result.best.value == pytest.approx(0.6)
    with pytest.raises(RuntimeError, match="which is not available"):
        run([EarlyStopping("no_such_metric")])


def test_early_stopping_looks_only_at_evaluated_rounds():
    stopping = EarlyStopping("score", mode="max", patience=2)
    result = scripted([stopping], [0.9, 0.5, 0.4, 0.3], rounds=12, evaluate_every=2)
    assert len(result.history) == 6


def test_early_stopping_starts_anew_and_resumes():
    values = [0.1, 0.5, 0.4, 0.3, 0.2, 0.1]
    stopping = EarlyStopping("score", mode="max", patience=3)
    loop = made_loop(rounds=6, lr=0.05, monitor="score", averaging=NoAverage(), callbacks=[stopping])
    assert len(loop.run(Scripted(values), gaussian_federation()).history) == 5
    assert len(loop.run(Scripted(values), gaussian_federation()).history) == 5
    for result in loop.iterate(Scripted(values), gaussian_federation()):
        if result.plan.index == 4:
            break
    taken = loop.state_dict()
    assert stopping.wait_count == 2
    assert len(loop.run(Scripted(values[4:]), gaussian_federation(), taken).history) == 5


def test_model_checkpoint_keeps_the_best_model_and_it_loads(tmp_path):
    saving = ModelCheckpoint(tmp_path, "{round:.0f}-{score:.1f}", monitor="score", mode="max", save_last=True)
    result = scripted([saving], [0.1, 0.8, 0.3])
    assert {path.name for path in tmp_path.iterdir()} == {"round=2-score=0.8.ckpt", "last.ckpt"}
    assert saving.best_model_path == str(tmp_path / "round=2-score=0.8.ckpt")
    assert float(saving.best_model_score) == pytest.approx(0.8)
    best = Scripted.load_from_checkpoint(saving.best_model_path)
    held = torch.cat([parameter.detach().reshape(-1) for parameter in best.parameters()])
    assert torch.equal(held, result.best.state.weights)
    assert not torch.equal(held, result.state.weights)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in result.module.parameters()]), result.state.weights)


def test_model_checkpoint_counts_rounds_and_keeps_the_top(tmp_path):
    saving = ModelCheckpoint(tmp_path / "top", "{epoch}", monitor="score", mode="max", save_top_k=2)
    every = ModelCheckpoint(tmp_path / "every", "{epoch}", save_top_k=-1, every_n_epochs=2)
    scripted([saving, every], [0.1, 0.8, 0.3, 0.9])
    assert {path.name for path in (tmp_path / "top").iterdir()} == {"epoch=1.ckpt", "epoch=3.ckpt"}
    assert {path.name for path in (tmp_path / "every").iterdir()} == {"epoch=1.ckpt", "epoch=3.ckpt"}


def test_model_checkpoint_in_a_second_run_forgets_the_first(tmp_path):
    saving = ModelCheckpoint(tmp_path, "{epoch}", monitor="score", mode="max")
    scripted([saving], [0.9, 0.2])
    scripted([saving], [0.1, 0.2])
    assert float(saving.best_model_score) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("callback", "instead"),
    [
        (lightning_callbacks.LearningRateMonitor, "column learning_rate"),
        (lightning_callbacks.EMAWeightAveraging, "averaging=ExponentialAverage"),
        (lambda: lightning_callbacks.StochasticWeightAveraging(swa_lrs=0.1), "averaging=ExponentialAverage"),
        (lightning_callbacks.RichProgressBar, "RoundProgress"),
        (lightning_callbacks.Timer, "ComputationTime"),
        (lightning_callbacks.ModelSummary, "none of the hooks on_federation_start"),
        (lightning_callbacks.DeviceStatsMonitor, "use fl_lightning.callbacks.WandbMetrics"),
        (lambda: lightning_callbacks.ThroughputMonitor(len), "use fl_lightning.callbacks.ComputationTime"),
        (lightning_callbacks.BackboneFinetuning, "requires_grad_"),
        (lambda: lightning_callbacks.OnExceptionCheckpoint("."), "RoundCheckpoint"),
        (lambda: ModelCheckpoint(every_n_train_steps=5), "use every_n_epochs"),
        (lambda: ModelCheckpoint(save_on_exception=True), "use RoundCheckpoint"),
    ],
)
def test_what_would_never_be_called_is_refused(callback, instead):
    with pytest.raises(ValueError, match=instead):
        run([callback()])
    with pytest.raises(ValueError, match=instead):
        run(fabric=Fabric(accelerator="cpu", devices=1, callbacks=[callback()]))


def test_a_callback_for_a_trainer_alone_is_refused_also_when_it_is_added_later():
    class Mine(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            pass

    loop = made_loop(rounds=1, lr=0.1)
    loop.callbacks.append(Mine())
    with pytest.raises(ValueError, match="Mine would never be called"):
        loop.run(linear_module(), gaussian_federation())


def test_fabric_callbacks_add_columns_and_see_clients():
    class Mine:
        clients = 0

        def configure_metrics(self, result):
            return {"mine": 7.0}

        def on_client_end(self, loop, update):
            self.clients += 1

    mine = Mine()
    result = run(rounds=2, fabric=Fabric(accelerator="cpu", devices=1, callbacks=[mine]))
    assert result.history.column("mine") == [7.0, 7.0]
    assert mine.clients > 0


def test_loggers_of_fabric_get_every_round(tmp_path):
    logger = CSVLogger(tmp_path, name="mine", version="1")
    result = run(rounds=3, fabric=Fabric(accelerator="cpu", devices=1, loggers=[logger]))
    with (tmp_path / "mine" / "1" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 3]
    assert [float(row["test_accuracy"]) for row in rows] == result.history.column("test_accuracy")


@pytest.mark.parametrize(("target", "settings"), [(0.5, {}), (0.5, {"monitor": "score", "mode": "min"})])
def test_stop_at_target_goes_by_its_own_monitor_or_by_that_of_the_loop(target, settings):
    result = scripted([StopAtTarget(target, **settings)], [0.9, 0.6, 0.4, 0.1], mode="min")
    assert len(result.history) == 3


def test_stop_at_target_names_what_it_cannot_find():
    with pytest.raises(ValueError, match=r"monitor='nothing'\) finds no such metric: use one of round, "):
        run([StopAtTarget(0.5, monitor="nothing")])
    with pytest.raises(ValueError, match="target=nan"):
        StopAtTarget(math.nan)
    with pytest.raises(ValueError, match="mode='low'"):
        StopAtTarget(0.5, mode="low")


def test_schedule_sampling_and_channel_may_stand_anywhere_among_the_callbacks():
    class First:
        def on_federation_saved(self, loop):
            pass

    schedule = HeterogeneitySchedule(num_steps=2, failure_rates=0.0)
    loop = made_loop(rounds=1, lr=0.1, channel=ChannelFailures(), schedule=schedule)
    loop.callbacks.insert(0, First())
    loop.run(linear_module(), gaussian_federation())
    assert set(loop.state_dict()["parts"]) - {"local_parts"} == {
        *("aggregator", "averaging", "calibration", "channel", "record", "sampling", "schedule", "spent", "uploads")
    }


@pytest.fixture
def _site(tmp_path, monkeypatch):
    """A package of the machine that adds callbacks to each Fabric by the entry point that Lightning reads."""
    (tmp_path / "site_wide.py").write_text(
        "class Monitor:\n    def on_train_start(self): pass\n"
        "class Columns:\n    def configure_metrics(self, result): return {'site': 1.0}\n"
        "def made(): return [Monitor(), Columns()]\n"
    )
    folder = tmp_path / "site_wide-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: site-wide\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[lightning.fabric.callbacks_factory]\nsite = site_wide:made\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_site")
def test_a_callback_of_the_machine_is_left_out_with_one_warning_and_that_of_a_user_refused(caplog):
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        for _ in range(2):
            result = run(rounds=2)
    lines = [record.getMessage() for record in caplog.records if "entry point" in record.getMessage()]
    assert len(lines) == 1
    assert "lightning.fabric.callbacks_factory" in lines[0]
    assert "Monitor would never be called" in lines[0]
    assert result.history.column("site") == [1.0, 1.0]  # what can be called is called
    import site_wide

    with pytest.raises(ValueError, match="Monitor would never be called"):
        run([site_wide.Monitor()])
    with pytest.raises(ValueError, match="ModelSummary would never be called"):
        run(fabric=Fabric(accelerator="cpu", devices=1, callbacks=[lightning_callbacks.ModelSummary()]))


class WithCallbacks(Scripted):
    """Brings its own callbacks, as Lightning lets a module do."""

    def __init__(self, values, callbacks):
        super().__init__(values)
        self.own = callbacks

    def configure_callbacks(self):
        return self.own


def test_callbacks_that_a_module_configures_are_called_in_place_of_those_of_their_type(caplog):
    patient, own = EarlyStopping("score", mode="max", patience=9), EarlyStopping("score", mode="max", patience=1)
    loop = made_loop(rounds=5, lr=0.05, monitor="score", averaging=NoAverage(), callbacks=[patient])
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        result = loop.run(WithCallbacks([0.5, 0.4, 0.3, 0.2, 0.1], [own]), gaussian_federation())
    assert len(result.history) == 2
    assert not [record for record in caplog.records if "configure_callbacks" in record.getMessage()]
    assert "callback EarlyStopping 1" in loop.state_dict()["parts"]
    assert len(loop.run(Scripted([0.5, 0.4, 0.3, 0.2, 0.1]), gaussian_federation()).history) == 5
    with pytest.raises(ValueError, match="Timer would never be called"):
        loop.run(WithCallbacks([0.5], lightning_callbacks.Timer()), gaussian_federation())
