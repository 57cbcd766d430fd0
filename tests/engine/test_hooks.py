"""Hooks of a module and of a data module: the calls of a Trainer, in its order and with its arguments."""

import logging
from collections import Counter

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data.federation import DatasetFederation, TensorFederation
from fl_lightning.engine import Engine
from fl_lightning.engine.hooks import all_hooks, uncalled_hooks
from fl_lightning.module import FederatedModule
from fl_lightning.samplers import FullParticipation
from fl_lightning.server.averaging import NoAverage
from fl_lightning.solvers import SGD, ModuleOptimizer
from made import made_loop

STEPS, EXAMPLES = 4, 24
# What a Trainer calls around its fit and what has no meaning without it.
NOT_OURS = {"prepare_data", "configure_sharded_model", "train_dataloader", "val_dataloader", "test_dataloader"}
NOT_OURS |= {"optimizer_step", "configure_callbacks", "lr_scheduler_step"}
NOT_OURS |= {"on_save_checkpoint", "on_load_checkpoint"}


class Plain(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 3)

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("validation_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _counted(name):
    def hook(self, *arguments, **named):
        self.calls.append((name, tuple(map(_kind, (*arguments, *named.values())))))
        return getattr(super(Counting, self), name)(*arguments, **named)

    return hook


def _kind(value):
    if isinstance(value, (list, tuple)):
        return [_kind(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _kind(entry) for name, entry in value.items()}
    return str(value) if isinstance(value, (int, str, type(None))) else type(value).__name__


class Counting(Plain):
    """Overrides every hook with a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple]] = []


for _name in set(all_hooks()) - NOT_OURS:
    setattr(Counting, _name, _counted(_name))


def examples():
    rng = torch.Generator().manual_seed(1)
    return torch.randn(EXAMPLES, 5, generator=rng), torch.randint(0, 3, (EXAMPLES,), generator=rng)


def federation(num_clients=1, test_size=12):
    x, y = examples()
    parts = np.split(np.arange(EXAMPLES), num_clients)
    return TensorFederation((x, y), (x[:test_size], y[:test_size]), parts)


def run(module, data=None, rounds=1, engine=None, **settings):
    loop = made_loop(
        averaging=NoAverage(),  # a second evaluation would count twice
        rounds=rounds,
        schedule=HeterogeneitySchedule(groups=[Group(1.0, STEPS, 0.0)]),
        sampling=SamplerSelection(FullParticipation(), 1.0),
        channel=ChannelFailures(),
        batch_size=6,
        engine=engine or Engine(test_batch_size=6),
        **({"lr": 0.1} | settings),
    )
    loop.run(module, data or federation())
    return loop


def fitted(module):
    """Train one epoch of STEPS batches by a Trainer and validate on two, as the federation above does."""
    x, y = examples()
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        module, DataLoader(TensorDataset(x, y), batch_size=6), DataLoader(TensorDataset(x[:12], y[:12]), batch_size=6)
    )
    return module


def test_the_counts_are_those_of_a_trainer():
    theirs, ours = fitted(Counting()), Counting()
    run(ours, solver="module", lr=None)
    counts = Counter(name for name, _ in ours.calls)
    assert counts == Counter(name for name, _ in theirs.calls)
    assert counts["on_after_backward"] == STEPS
    assert counts["on_validation_batch_end"] == 2
    assert len(counts) == len(set(all_hooks()) - NOT_OURS) - sum(name.startswith("on_test") for name in all_hooks())


def test_order_and_arguments_are_those_of_a_trainer():
    theirs, ours = fitted(Counting()), Counting()
    run(ours, solver="module", lr=None)

    def phases(calls):  # a Trainer validates within the epoch, a federation when the round is aggregated
        of_validation = [call for call in calls if "validation" in call[0]]
        return of_validation, [call for call in calls if "validation" not in call[0] and "transfer" not in call[0]]

    for mine, wanted in zip(phases(ours.calls), phases(theirs.calls), strict=True):
        assert mine == wanted
    before = [name for name, _ in ours.calls]
    first = before.index("on_train_batch_start")
    assert before[first - 3 : first] == [
        "on_before_batch_transfer",
        "transfer_batch_to_device",
        "on_after_batch_transfer",
    ]


def test_hooks_change_no_result():
    state = run(Counting(), federation(4), rounds=2, solver=SGD(momentum=0.9)).state
    plain = run(Plain(), federation(4), rounds=2, solver=SGD(momentum=0.9), engine=Engine("reference"))
    torch.testing.assert_close(state.weights, plain.state.weights, rtol=1e-6, atol=1e-7)


def test_train_hooks_are_called_for_each_client_in_each_round():
    module = Counting()
    run(module, federation(4), rounds=3)
    counts = Counter(name for name, _ in module.calls)
    assert counts["on_train_start"] == counts["on_train_epoch_end"] == 12
    assert counts["on_train_batch_start"] == 12 * STEPS
    assert counts["setup"] == counts["on_fit_start"] == counts["on_fit_end"] == counts["teardown"] == 1
    assert counts["on_validation_epoch_end"] == 3


class Places(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.places = []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.places.append((self.current_epoch, self.global_step, self.trainer.training, float(outputs["loss"]) > 0))

    def on_validation_epoch_end(self):
        self.places.append((self.current_epoch, self.trainer.validating, self.trainer.training))


def test_epoch_and_step_are_round_and_local_steps():
    module = Places()
    run(module, rounds=2)
    trained = [(round_, step, True, True) for round_ in (0, 1) for step in range(1, STEPS + 1)]
    assert module.places == [*trained[:STEPS], (0, True, False), *trained[STEPS:], (1, True, False)]


class ByEpoch(Plain):
    """A loss that depends on where the run stands, without a hook."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + self.current_epoch) / (1 + self.global_step)


@pytest.mark.parametrize("mode", ["stacked", "threads", "sequential"])
def test_the_fast_paths_know_epoch_and_step(mode):
    reference = run(ByEpoch(), federation(4), rounds=2, engine=Engine("reference"))
    loop = run(ByEpoch(), federation(4), rounds=2, engine=Engine(mode, threads=2))
    assert loop.engine.choice.mode == mode
    plain = run(Plain(), federation(4), rounds=2, engine=Engine("reference"))
    torch.testing.assert_close(loop.state.weights, reference.state.weights, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(loop.state.weights, plain.state.weights, rtol=1e-3)


class Clipped(Plain):
    def __init__(self, replace: bool, hook: str) -> None:
        super().__init__()
        self.replace = replace
        setattr(self, hook, self.clip)

    def clip(self, *_):
        if self.replace:
            for parameter in self.parameters():
                parameter.grad = parameter.grad * 0.5
        else:
            for parameter in self.parameters():
                parameter.grad.mul_(0.5)


class Halved(Plain):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * 0.5


@pytest.mark.parametrize("hook", ["on_after_backward", "on_before_optimizer_step"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("solver", [SGD(), "module"])
def test_gradients_changed_by_a_hook_are_those_that_count(hook, replace, solver):
    state = run(Clipped(replace, hook), federation(3), solver=solver).state
    halved = run(Halved(), federation(3), engine=Engine("reference")).state
    torch.testing.assert_close(state.weights, halved.weights, rtol=1e-6, atol=1e-7)


class Slower(Plain):
    def on_before_optimizer_step(self, optimizer):
        optimizer.param_groups[0]["lr"] = 0.05


def test_a_rate_changed_by_a_hook_counts_or_is_refused():
    state = run(Slower(), solver="module", lr=None).state
    halved = run(Plain(), lr=0.05, engine=Engine("reference")).state
    torch.testing.assert_close(state.weights, halved.weights, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match=r"on_before_optimizer_step changes the optimizer.*solver='module'"):
        run(Slower(), solver=SGD())


class LogsLate(FederatedModule):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 3), 3)
        self.seen = []

    def on_test_epoch_start(self):
        self.seen.clear()

    def on_test_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(len(batch[1]))
        self.log("largest", float(max(self.seen)), reduce_fx="max")

    def on_test_epoch_end(self):
        self.log("examples", float(sum(self.seen)))
        super().on_test_epoch_end()


def test_what_evaluation_hooks_log_is_in_the_metrics():
    loop = run(LogsLate(), federation(test_size=10))
    metrics, per_class = loop.engine.evaluate(loop.state)
    assert metrics["examples"] == 10
    assert metrics["largest"] == 6
    assert len(per_class) == 3
    assert 0 <= metrics["test_accuracy"] <= 1


class ReturnsLoss(Plain):
    def validation_step(self, batch):
        return super().training_step(batch, 0)

    def training_step(self, batch):
        return super().training_step(batch, 0)


def test_steps_without_an_index_and_a_returned_loss():
    loop = run(ReturnsLoss(), federation(test_size=10))
    x, y = loop.federation.test
    with torch.no_grad():
        wanted = float(functional.cross_entropy(loop.module.layer(x), y))
    assert loop.engine.evaluate(loop.state)[0]["test_loss"] == pytest.approx(wanted)


class MadeLate(LightningModule):
    """Makes its layers and its metrics in setup, as modules that need to know their data do."""

    def setup(self, stage):
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 3)

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.layer(batch[0]), batch[1])


def test_layers_made_in_setup_are_trained():
    state = run(MadeLate(), engine=Engine("reference")).state
    torch.testing.assert_close(state.weights, run(Plain(), engine=Engine("reference")).state.weights)


class AsksTrainer(Plain):
    def on_train_start(self):
        return self.trainer.estimated_stepping_batches


def test_the_trainer_is_a_clear_error():
    with pytest.raises(
        ValueError, match=r"AsksTrainer.*self.trainer.estimated_stepping_batches is not there: a federation has"
    ):
        run(AsksTrainer())
    module = Plain()
    run(module)
    assert module._trainer is None


class Stops(Plain):
    def on_train_batch_start(self, batch, batch_idx):
        return -1


def test_skipping_the_epoch_is_refused():
    with pytest.raises(ValueError, match="returned -1"):
        run(Stops())


@pytest.mark.parametrize("mode", ["stacked", "threads"])
def test_hooks_are_not_stacked_and_not_threaded(mode):
    with pytest.raises(ValueError, match=r"impossible here: Stops.*on_train_batch_start"):
        run(Stops(), engine=Engine(mode))
    assert run(Places(), federation(24)).engine.choice.mode == "sequential"
    assert run(Plain(), federation(24)).engine.choice.mode == "stacked"


class Unheard(Plain):
    def optimizer_step(self, *arguments):
        pass

    def on_save_checkpoint(self, checkpoint):
        pass

    def lr_scheduler_step(self, scheduler, metric):
        pass

    def test_step(self, batch, batch_idx):
        pass

    def on_validation_epoch_end(self):
        pass

    def on_predict_start(self):
        pass


def test_hooks_that_nobody_calls_are_named_once(caplog):
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        run(Unheard(), rounds=2)
        run(Counting())
    lines = [record.getMessage() for record in caplog.records if "does not call" in record.getMessage()]
    named = "lr_scheduler_step, on_validation_epoch_end, optimizer_step"
    assert len(lines) == 2
    assert f"Unheard overrides hooks that a federation does not call: {named};" in lines[0]
    assert "on_test_epoch_end" in lines[1]
    assert "lr_scheduler_step" not in uncalled_hooks(Unheard(), None, module_optimizer=True)


class Doubling(LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.seen.append((self.trainer.training, len(batch[0])))
        return [2 * batch[0], batch[1]]


class DoublingModule(Plain):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [2 * batch[0], batch[1]]

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        assert device == self.device
        return super().transfer_batch_to_device(batch, device, dataloader_idx)


def test_transfer_hooks_of_module_and_data_module():
    x, y = examples()
    data = DatasetFederation([TensorDataset(x, y)], TensorDataset(x[:12], y[:12]))
    data.datamodule = Doubling()
    of_data = run(Plain(), data)
    of_module = run(DoublingModule())
    doubled = run(Plain(), TensorFederation((2 * x, y), (2 * x[:12], y[:12]), [np.arange(EXAMPLES)]))
    for loop in (of_data, of_module):
        assert torch.equal(loop.state.weights, doubled.state.weights)
        found = loop.engine.evaluate(loop.state)[0]["validation_loss"]
        assert found == doubled.engine.evaluate(doubled.state)[0]["validation_loss"]
    assert data.datamodule.seen[: STEPS + 2] == [(True, 6)] * STEPS + [(False, 6)] * 2
    assert uncalled_hooks(DoublingModule(), data.datamodule) == ["on_after_batch_transfer"]


def test_the_optimizer_that_hooks_get_has_the_settings_of_the_solver():
    found = []

    class Asks(Plain):
        def on_before_zero_grad(self, optimizer):
            found.append((type(optimizer).__name__, optimizer.param_groups[0]["momentum"]))

        def on_before_optimizer_step(self, optimizer):
            found.append(next(iter(optimizer.param_groups[0]["params"])).grad.norm().item() > 0)

    run(Asks(), solver=SGD(momentum=0.9))
    run(Asks(), solver=ModuleOptimizer(), lr=None)
    assert found == [("SGD", 0.9), True] * STEPS + [("SGD", 0), True] * STEPS
