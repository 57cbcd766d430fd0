"""Each fast path of the engine against the plain reference path."""

from functools import cache

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional

from fl_lightning.aggregators import AnonymousMean
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data.federation import DatasetFederation, TensorFederation
from fl_lightning.data.quadratic import QuadraticFederation
from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule, QuadraticModule
from fl_lightning.networks import CifarCNN, CinicCNN, DigitsNet, MnistCNN
from fl_lightning.parts.protocols import Handout
from fl_lightning.samplers import FullParticipation, Importance
from fl_lightning.solvers import SGD, TorchOptimizer
from made import made_loop, made_work

_CLIENTS = 7


class BatchNormNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


SHAPES = {
    DigitsNet: (1, 8, 8),
    BatchNormNet: (1, 8, 8),
    MnistCNN: (1, 28, 28),
    CifarCNN: (3, 32, 32),
    CinicCNN: (3, 32, 32),
}
FAST = {
    (DigitsNet, "stacked"),
    (DigitsNet, "threads"),
    (DigitsNet, "sequential"),
    (BatchNormNet, "threads"),
    (BatchNormNet, "sequential"),
    (MnistCNN, "sequential"),
    (CifarCNN, "stacked"),
    (CifarCNN, "threads"),
    (CifarCNN, "sequential"),
    (CinicCNN, "sequential"),
}
SOLVERS = {
    "plain": lambda: SGD(),
    "momentum": lambda: SGD(momentum=0.9, nesterov=True, weight_decay=1e-3),
    "proximal": lambda: SGD(proximal=0.5, decay=0.05),
}


def images(shape: tuple[int, ...], sizes: list[int], num_test: int = 30) -> TensorFederation:
    rng = torch.Generator().manual_seed(0)
    total = sum(sizes)
    x, y = torch.randn(total, *shape, generator=rng), torch.randint(0, 10, (total,), generator=rng)
    parts = np.split(np.random.default_rng(0).permutation(total), np.cumsum(sizes)[:-1])
    return TensorFederation((x, y), (x[:num_test], y[:num_test]), parts)


def unequal(shape: tuple[int, ...]) -> TensorFederation:
    return images(shape, [3, 9, 20, 8, 8, 11, 3])


def run(module, federation, engine, solver=None, aggregator=None, rounds=3, channel_losses=0.3, sampler=None, **loop):
    federated = made_loop(
        rounds=rounds,
        lr=0.05,
        schedule=HeterogeneitySchedule(groups=[Group(1.0, (1, 5), channel_losses)]),
        sampling=SamplerSelection(sampler or Importance(), 6),
        channel=ChannelFailures(),
        solver=solver,
        aggregator=aggregator,
        engine=engine,
        batch_size=8,
        **loop,
    )
    state = federated.run(module, federation)
    return state, federated


def made(network) -> FederatedModule:
    torch.manual_seed(0)
    return FederatedModule(network())


def relative(state, reference) -> float:
    return float((state.weights - reference.weights).norm() / reference.weights.norm())


def fast(mode: str) -> Engine:
    return Engine(mode, threads=2 if mode in ("threads", "stacked") else 1)


@cache
def reference_of(network, solver: str):
    return run(made(network), unequal(SHAPES[network]), Engine("reference"), SOLVERS[solver]())[0]


CASES = [
    # The largest network takes longest and has no path of its own.
    pytest.param(network, mode, solver, marks=[pytest.mark.slow] * (network is CinicCNN))
    for network, mode in sorted(FAST, key=str)
    for solver in SOLVERS
    if solver == "momentum" or SHAPES[network] == (1, 8, 8)
]


@pytest.mark.parametrize(("network", "mode", "solver"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_fast_path_gives_the_weights_of_the_reference(network, mode, solver):
    module = made(network)
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    reference = reference_of(network, solver)
    state, loop = run(module, unequal(SHAPES[network]), fast(mode), SOLVERS[solver]())
    assert loop.engine.choice.mode == mode
    assert relative(state, reference) < 1e-5
    assert torch.allclose(state.buffers, reference.buffers, rtol=1e-5, atol=1e-6)
    assert (start - reference.weights).norm() > 1e-3 * start.norm()  # it did learn


@pytest.mark.parametrize("mode", ["threads", "sequential", "auto"])
def test_a_torch_optimizer_gives_the_weights_of_the_reference(mode):
    def solver() -> TorchOptimizer:
        return TorchOptimizer(lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9))

    federation = unequal((1, 8, 8))
    reference, _ = run(made(DigitsNet), federation, Engine("reference"), solver())
    state, loop = run(made(DigitsNet), federation, fast(mode), solver())
    assert loop.engine.choice.mode in ("threads", "sequential")
    assert relative(state, reference) < 1e-5


class ShiftedStarts(AnonymousMean):
    """Gives clients starts and gradient shifts of their own."""

    def handout(self, plan):
        def start(client, weights):
            return weights if client % 2 else weights * (1 + 0.01 * client)

        return Handout(start=start, gradient_shift=lambda m: None if m == 3 else torch.full((4810,), 0.001 * m))


@pytest.mark.parametrize("mode", ["stacked", "threads"])
def test_own_starts_and_gradient_shifts_reach_the_clients(mode):
    federation = unequal((1, 8, 8))
    reference, _ = run(made(DigitsNet), federation, Engine("reference"), aggregator=ShiftedStarts())
    plain, _ = run(made(DigitsNet), federation, Engine("reference"))
    state, _ = run(made(DigitsNet), federation, fast(mode), aggregator=ShiftedStarts())
    assert relative(state, reference) < 1e-5 < relative(state, plain)


@pytest.mark.parametrize(
    ("network", "mode"),
    [
        (DigitsNet, "stacked"),
        (DigitsNet, "reference"),
        (BatchNormNet, "threads"),
        (BatchNormNet, "sequential"),
        pytest.param(CinicCNN, "sequential", marks=pytest.mark.slow),
    ],
)
def test_elision_and_order_change_no_bit(network, mode):
    federation = unequal(SHAPES[network])

    class TrainsEverybody(AnonymousMean):
        def trains(self, plan, delivered):
            return np.arange(_CLIENTS)

    elided, _ = run(made(network), federation, fast(mode))
    everybody, _ = run(made(network), federation, fast(mode), aggregator=TrainsEverybody())
    assert torch.equal(elided.weights, everybody.weights)
    assert torch.equal(elided.buffers, everybody.buffers)


@pytest.mark.parametrize("mode", ["stacked", "threads", "sequential"])
def test_who_is_trained_together_changes_no_bit(mode):
    federation = images((1, 8, 8), [8] * 40)
    _, loop = run(made(DigitsNet), federation, fast(mode), rounds=1)
    work = made_work(2, np.arange(40) % 6 + 1, 0.1)
    whole = loop.engine.work(loop.state, np.arange(40), work)
    for clients in (np.array([5]), np.array([0, 39]), np.arange(3, 20), np.arange(1, 40, 2)):
        part = loop.engine.work(loop.state, clients, work)
        assert torch.equal(part.deltas, whole.deltas[torch.from_numpy(clients)])
        assert np.array_equal(part.losses, whole.losses[clients])


def test_the_toy_is_stacked_and_agrees():
    targets = np.random.default_rng(0).standard_normal((30, 10))
    results = {}
    for mode in ("auto", "reference"):
        results[mode], loop = run(
            QuadraticModule(10, start=1.0), QuadraticFederation(targets), Engine(mode), sampler=FullParticipation()
        )
        assert loop.engine.choice.mode == {"auto": "stacked", "reference": "reference"}[mode]
    assert relative(results["auto"], results["reference"]) < 1e-6


class Counting(FederatedModule):
    def __init__(self) -> None:
        super().__init__(DigitsNet())
        self.steps = 0

    def training_step(self, batch, batch_idx):
        self.steps += 1
        self.log("train_loss", 1.0)
        return super().training_step(batch, batch_idx)


class Branching(FederatedModule):
    def __init__(self) -> None:
        super().__init__(DigitsNet())

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss * 2 if loss.item() > 2 else loss}


@pytest.mark.parametrize(
    ("module", "chosen"),
    [
        (lambda: made(DigitsNet), "threads"),  # six clients are too few for a stack
        (lambda: made(BatchNormNet), "threads"),
        (lambda: made(MnistCNN), "sequential"),
        (lambda: made(CifarCNN), "threads"),
        (Counting, "sequential"),
        (Branching, "threads"),
    ],
)
def test_the_choice_is_automatic_and_falls_back(module, chosen):
    module = module()
    shape = SHAPES.get(type(module.network), (1, 8, 8))
    _, loop = run(module, unequal(shape), Engine(threads=2), rounds=1)
    assert loop.engine.choice.mode == chosen
    if isinstance(module, Counting):
        assert module.steps > 0  # on the module itself, not on a copy


def test_plain_data_sets_are_not_stacked():
    federation = unequal((1, 8, 8))
    sets = [
        torch.utils.data.TensorDataset(*federation.batch(m, np.arange(size))) for m, size in enumerate(federation.sizes)
    ]
    plain = DatasetFederation(sets, torch.utils.data.TensorDataset(*federation.test))
    state, loop = run(made(DigitsNet), plain, Engine(threads=2))
    reference, _ = run(made(DigitsNet), federation, Engine("reference"))
    assert loop.engine.choice.mode == "threads"
    assert relative(state, reference) < 1e-5


@pytest.mark.parametrize(("module", "mode"), [(CinicCNN, "threads"), (BatchNormNet, "stacked"), (MnistCNN, "stacked")])
def test_a_mode_that_is_impossible_is_refused(module, mode):
    with pytest.raises(ValueError, match="impossible here"):
        run(made(module), unequal(SHAPES[module]), fast(mode), rounds=1)


@pytest.mark.parametrize("arguments", [{"mode": "fast"}, {"threads": 0}, {"test_batch_size": 0}])
def test_wrong_settings_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Engine(**arguments)


class Running(LightningModule):
    """BatchNorm with a cumulative mean, whose counter decides the next value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.head = nn.BatchNorm1d(64, momentum=None), nn.Linear(64, 10)

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.head(self.norm(batch[0].flatten(1))), batch[1])


def test_counters_start_anew_for_each_client():
    federation = unequal((1, 8, 8))
    one, loop = run(Running(), federation, Engine("threads", threads=2))
    other, _ = run(Running(), federation, Engine("sequential"))
    assert torch.allclose(one.buffers, other.buffers, rtol=1e-4, atol=1e-5)
    work = made_work(4, np.full(_CLIENTS, 3), 0.1)
    both = loop.engine.work(loop.state, np.array([1, 2]), work)
    assert torch.equal(both.buffers[1], loop.engine.work(loop.state, np.array([2]), work).buffers[0])


def test_evaluation_does_not_depend_on_layout_or_batch():
    federation = images((3, 32, 32), [8, 8], num_test=16)
    found = []
    for engine in (Engine("reference", test_batch_size=16), Engine("sequential", test_batch_size=5)):
        _, loop = run(made(CifarCNN), federation, engine, rounds=1)
        metrics, per_class = loop.engine.evaluate(loop.state)
        found.append((metrics["test_accuracy"], metrics["test_loss"], np.nan_to_num(per_class).sum()))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
