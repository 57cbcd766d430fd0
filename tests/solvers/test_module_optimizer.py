"""The module's own optimizer as a local solver, and the word about which one runs."""

import logging

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn import functional

from fl_lightning import FederatedLoop, algorithm
from fl_lightning.aggregators import MemorizedMean, NormalizedMean
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.cli.main import main
from fl_lightning.data.federation import TensorFederation
from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule
from fl_lightning.runs.records import read_rounds
from fl_lightning.samplers import FullParticipation, HeterogeneityAware, Importance
from fl_lightning.server import Calibration
from fl_lightning.solvers import SGD, ModuleOptimizer, TorchOptimizer
from fl_lightning.uploads import Clip
from made import made_loop

T = np.arange(1, 31)
STEPS = 6


class Module(LightningModule):
    def __init__(self, configure) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)
        self.configure = configure

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.second(self.first(batch[0])), batch[1])

    def configure_optimizers(self):
        return self.configure(self)


def sgd(**settings):
    return lambda module: torch.optim.SGD(module.parameters(), **({"lr": 0.2} | settings))


def scheduled(scheduler, interval="step", frequency=1, **settings):
    def configure(module):
        optimizer = sgd(**settings)(module)
        entry = {"scheduler": scheduler(optimizer), "interval": interval, "frequency": frequency}
        return {"optimizer": optimizer, "lr_scheduler": entry}

    return configure


def data(num_clients=1):
    rng = torch.Generator().manual_seed(3)
    total = 8 * num_clients
    pair = torch.randn(total, 5, generator=rng), torch.randint(0, 3, (total,), generator=rng)
    return TensorFederation(pair, pair, np.split(np.arange(total), num_clients))


def uneven():
    """Four clients with 2, 4, 6 and 8 examples."""
    pair = data(4).train
    return TensorFederation(pair, pair, np.split(np.arange(20), [2, 6, 12]))


def loop(rounds=1, lr=None, solver="module", num_steps=STEPS, **settings):
    return made_loop(
        rounds=rounds,
        lr=lr,
        schedule=HeterogeneitySchedule(groups=[Group(1.0, num_steps, 0.0)]),
        channel=ChannelFailures(),
        solver=solver,
        batch_size=8,
        **({"engine": Engine("sequential"), "sampling": SamplerSelection(FullParticipation(), 1.0)} | settings),
    )


def fitted(module, epochs=1, **settings):
    """Train by Lightning on the same batches: the whole data of the one client, STEPS times per epoch."""
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, torch.utils.data.DataLoader([data().batch(0, np.arange(8))] * STEPS, batch_size=None))
    return nn.utils.parameters_to_vector(module.parameters())


OPTIMIZERS = {
    "momentum and decay": (sgd(momentum=0.9, weight_decay=0.01), False),
    "adam": (lambda module: torch.optim.Adam(module.parameters(), lr=0.01), True),
    "per step": (scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.7)), False),
    "every second step": (scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.3), frequency=2), False),
    "one cycle": (
        scheduled(lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=20), momentum=0.8),
        False,
    ),
    "warm-up from zero": (
        scheduled(lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 3))),
        False,
    ),
    "two groups": (
        lambda module: torch.optim.SGD(
            [{"params": module.first.parameters(), "lr": 0.05}, {"params": module.second.parameters()}], lr=0.2
        ),
        True,
    ),
    "part of the module": (lambda module: torch.optim.SGD(module.second.parameters(), lr=0.2), False),
    "lists": (lambda module: ([sgd()(module)], []), False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_client_ends_where_a_trainer_ends(name):
    configure, nonlinear = OPTIMIZERS[name]
    state = loop(solver=ModuleOptimizer(votes=nonlinear)).run(Module(configure), data())
    torch.testing.assert_close(state.weights, fitted(Module(configure)).detach(), rtol=1e-5, atol=1e-6)


def test_a_scheduler_of_epochs_is_stepped_once_per_round():
    configure = scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5), interval="epoch")
    federated = loop(rounds=3)
    rates = [result.metrics["learning_rate"] for result in federated.iterate(Module(configure), data())]
    assert rates == pytest.approx([0.2, 0.1, 0.05])
    torch.testing.assert_close(federated.state.weights, fitted(Module(configure), 3).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("configure", "same"),
    [
        (sgd(), SGD()),
        (sgd(momentum=0.9, weight_decay=0.3), SGD(momentum=0.9)),
        (sgd(momentum=0.9, nesterov=True), SGD(momentum=0.9, nesterov=True)),
        (scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)), SGD(decay=0.1)),
        (scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), interval="epoch"), SGD()),
    ],
)
def test_the_accumulation_is_that_of_the_equal_solver(configure, same):
    solver = ModuleOptimizer()
    assert solver.setup(Module(configure), None) == 0.2
    for lr in (0.2, 0.05):
        np.testing.assert_allclose(solver.accumulation(T, lr), same.accumulation(T, lr), rtol=1e-9)


def test_calibration_multiplies_the_rate_of_the_module():
    results = []
    for solver, lr in (("module", None), (SGD(momentum=0.9), 0.2)):
        federated = loop(rounds=2, lr=lr, solver=solver, num_steps=(1, 9))
        for result in federated.iterate(Module(sgd(momentum=0.9)), data(4)):
            rate = result.metrics["learning_rate"]
        results.append((federated.state.weights, rate))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1])


def test_threads_use_the_optimizer_of_their_own_copy():
    configure = sgd(momentum=0.9)
    engines = Engine("threads", threads=2), Engine("reference")
    states = [loop(rounds=2, engine=engine).run(Module(configure), data(5)) for engine in engines]
    torch.testing.assert_close(states[0].weights, states[1].weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("configure", "message"),
    [
        (lambda module: None, "returned nothing"),
        (sgd(lr=0.0), "learning rate 0"),
        (
            scheduled(lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o), interval="epoch"),
            "waits for a metric .ReduceLROnPlateau",
        ),
        (scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 1), interval="round"), "interval='round'"),
        (lambda module: ([sgd()(module)], [1, 2]), "2 schedulers"),
        (
            scheduled(lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=5)),
            "ends before 6 local steps",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(configure, message):
    with pytest.raises(ValueError, match=message):
        loop().run(Module(configure), data())


class Clips(Module):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val or 0.07, gradient_clip_algorithm or "norm")


@pytest.mark.parametrize("kind", [Module, Clips])
@pytest.mark.parametrize("optimizer", ["momentum and decay", "adam"])
@pytest.mark.parametrize(
    "clipping", [{}, {"gradient_clip_val": 0.1}, {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}]
)
def test_gradients_are_clipped_as_a_trainer_clips_them(kind, optimizer, clipping):
    configure = OPTIMIZERS[optimizer][0]
    state = loop(solver=ModuleOptimizer(votes=True), **clipping).run(kind(configure), data())
    torch.testing.assert_close(state.weights, fitted(kind(configure), **clipping).detach(), rtol=1e-5, atol=1e-6)
    plain = fitted(Module(configure)).detach()
    clips = bool(clipping) or kind is Clips
    assert torch.allclose(state.weights, plain, rtol=1e-4, atol=1e-5) != clips


@pytest.mark.parametrize("mode", ["sequential", "threads", "auto"])
def test_every_way_of_training_clips(mode, caplog):
    settings = {"gradient_clip_val": 0.1, "solver": SGD(momentum=0.9), "lr": 0.2, "rounds": 2}
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        found = loop(engine=Engine(mode), **settings).run(Module(sgd()), data(20))
    reference = loop(engine=Engine("reference"), **settings).run(Module(sgd()), data(20))
    torch.testing.assert_close(found.weights, reference.weights, rtol=1e-5, atol=1e-6)
    assert "gradients are clipped" in caplog.text
    with pytest.raises(ValueError, match="gradient_clip_val=-1 must be a positive number"):
        loop(gradient_clip_val=-1)
    with pytest.raises(ValueError, match="gradient_clip_algorithm='most'"):
        loop(gradient_clip_algorithm="most")


def test_the_loop_names_the_value_that_has_what_it_does_not_take():
    with pytest.raises(TypeError, match=r"'gradient_clip_val': give it to Algorithm\(gradient_clip_val=...\)$"):
        FederatedLoop(rounds=1, lr=0.1, gradient_clip_val=0.5)
    with pytest.raises(TypeError, match=r"give it to System\(clock=...\)$"):
        FederatedLoop(rounds=1, lr=0.1, clock=None)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'speed'$"):
        FederatedLoop(rounds=1, lr=0.1, speed=3)


def test_the_command_line_and_its_config_know_clipping(tmp_path):
    arguments = ["--config", "digits_fedavg.yaml", "--loop.gradient_clip_val", "0.001", "--logger", "none"]
    assert main(["train", *arguments, "--loop.rounds", "3", "--run_dir", str(tmp_path)]) == 0
    losses = [row["test_loss"] for row in read_rounds(tmp_path / "metrics.csv")]
    assert max(losses) - min(losses) < 0.01  # it moves by hardly anything


BY_WEIGHT = SamplerSelection(Importance(), 2)
DEPENDS = {
    "draws": {"sampling": SamplerSelection(HeterogeneityAware(), 2)},
    "coefficients": {"sampling": BY_WEIGHT, "aggregator": NormalizedMean()},
    "memory": {"sampling": BY_WEIGHT, "aggregator": MemorizedMean()},
    "clipped uploads": {"sampling": BY_WEIGHT, "uploads": [Clip(1.0)]},
    "rates": {"sampling": BY_WEIGHT, "max_local_steps": 3},
}
REASONS = {"adam": "Adam of Module is not linear", "two groups": "SGD of Module steps its parameter groups differently"}


@pytest.mark.parametrize("name", REASONS)
@pytest.mark.parametrize("what", DEPENDS)
def test_an_optimizer_without_accumulation_is_refused_where_something_depends_on_it(name, what):
    with pytest.raises(ValueError, match=f"{REASONS[name]}.*which this algorithm depends on.*votes=True"):
        loop(**DEPENDS[what]).run(Module(OPTIMIZERS[name][0]), uneven())


@pytest.mark.parametrize("solver", ["module", "AdamW", TorchOptimizer(torch.optim.SGD, clip_norm=1.0)])
@pytest.mark.parametrize("calibration", [Calibration(), Calibration("none"), Calibration("average")])
def test_it_runs_with_a_warning_where_nothing_does(solver, calibration, caplog):
    federated = loop(2, None if solver == "module" else 0.1, solver, calibration=calibration, sampling=BY_WEIGHT)
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        result = federated.run(Module(OPTIMIZERS["adam"][0]), uneven())
    warned = [record.getMessage() for record in caplog.records if "does not depend on A" in record.getMessage()]
    assert len(warned) == 1
    assert "is not linear in the gradients" in warned[0]
    assert len(set(result.history.column("learning_rate"))) == 1
    assert result.weights.isfinite().all()


def test_the_presets_take_a_solver(caplog):
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        made = FederatedLoop(algorithm("fedavg", solver="module"), rounds=1, lr=None)
        made.run(Module(lambda module: torch.optim.AdamW(module.parameters(), lr=0.01)), data(5))
    assert "AdamW of Module is not linear" in caplog.text
    with pytest.raises(ValueError, match=r"AdamW is not linear.*depends on"):
        FederatedLoop(algorithm("fedacs", solver="AdamW"), rounds=1, lr=0.1).run(Module(sgd()), data(5))
    with pytest.raises(ValueError, match="solver='module' would replace that of fedprox"):
        algorithm("fedprox", solver="module")
    with pytest.raises(ValueError, match=r"would replace that of solver\.momentum"):
        algorithm("fedavg", settings={"solver.momentum": 0.9}, solver="module")


def test_a_rate_of_zero_is_refused_in_the_round_that_has_it():
    configure = scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=2), interval="epoch")
    with pytest.raises(ValueError, match=r"learning rate of round 3 to 0.*eta_min"):
        loop(rounds=4).run(Module(configure), data())


@pytest.mark.parametrize("value", ["module", "fl_lightning.solvers.ModuleOptimizer"])
def test_the_command_line_takes_it(value, tmp_path):
    arguments = ["--config", "digits_fedavg.yaml", "--loop.solver", value, "--logger", "none", "--loop.rounds", "1"]
    assert main(["train", *arguments, "--loop.lr", "null", "--run_dir", str(tmp_path)]) == 0
    assert read_rounds(tmp_path / "metrics.csv")[0]["learning_rate"] == 0.02  # the default of FederatedModule


def test_no_module_no_accumulation():
    with pytest.raises(ValueError, match="takes its optimizer from a module"):
        ModuleOptimizer().accumulation(T, 0.1)
    with pytest.raises(ValueError, match="lr=None is for solver='module' alone"):
        loop(solver=SGD()).run(Module(sgd()), data())


def said(caplog, module, **settings):
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        caplog.clear()
        loop(rounds=2, **settings).run(module, data())
    return [record.getMessage() for record in caplog.records if "local steps are made" in record.getMessage()]


def test_the_solver_that_runs_is_named_once_where_the_module_suggests_another(caplog):
    adam = Module(lambda module: torch.optim.Adam(module.parameters(), lr=0.01))
    (line,) = said(caplog, adam, lr=0.1, solver=None)
    assert "made by SGD(lr=0.1), not by Adam(lr=0.01" in line
    assert "solver='module'" in line
    (line,) = said(caplog, Module(sgd(momentum=0.9)), lr=0.2, solver=None)
    assert "SGD(lr=0.2), not by SGD(lr=0.2, momentum=0.9)" in line
    (line,) = said(caplog, Module(OPTIMIZERS["per step"][0]), lr=0.2, solver=None)
    assert "ExponentialLR" in line
    (line,) = said(caplog, Module(sgd()), lr=0.5)
    assert "lr=0.5 of the loop is not used" in line


def test_nothing_is_said_where_they_agree(caplog):
    assert not said(caplog, Module(sgd()), lr=0.2, solver=None)
    assert not said(caplog, Module(sgd(momentum=0.9)), lr=0.2, solver=SGD(momentum=0.9))
    solver = TorchOptimizer(lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9))
    assert not said(caplog, Module(sgd(momentum=0.9)), lr=0.2, solver=solver)
    assert not said(caplog, Module(sgd()))
    assert not said(caplog, FederatedModule(nn.Linear(5, 3), 3), lr=0.1, solver=None)
