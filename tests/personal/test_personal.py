"""What clients train for themselves: by hand on quadratic clients, and beside a global model that takes no notice."""

import io

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.aggregators import ControlVariates, CoordinateMedian, RowStorage, SecureSum
from fl_lightning.asynchronous import ArrivalRates, AsynchronousSelection, StaleMean
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data import LazyFederation
from fl_lightning.data.quadratic import QuadraticFederation
from fl_lightning.engine import Engine
from fl_lightning.engine.evaluation import ClientEvaluation
from fl_lightning.module import FederatedModule, QuadraticModule
from fl_lightning.personal import HeadFirst, MixedModels, PulledModels
from fl_lightning.samplers import Importance, Independent, NormProportional
from fl_lightning.solvers import SGD, TorchOptimizer
from fl_lightning.types import ModelState
from fl_lightning.uploads import Clip, GaussianMechanism
from systems import gaussian_federation, small_loop

TARGETS = np.random.default_rng(3).normal(size=(5, 4))
LR = 0.05
MAKERS = {"ditto": PulledModels, "apfl": MixedModels}


class Points(QuadraticFederation):
    """The same for a model of two parts."""

    def measure(self, weights, plan):
        return {}


class TwoParts(LightningModule):
    """Half the squared distance of body + head to the client's point."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.zeros(4))
        self.head = nn.Parameter(torch.zeros(4))

    def training_step(self, batch, batch_idx):
        return 0.5 * (self.body + self.head - batch).square().sum(dim=-1).mean()


def loop(rounds=4, failures=0.3, sampler=None, **settings):
    return small_loop(
        rounds=rounds,
        lr=LR,
        schedule=HeterogeneitySchedule(groups=[Group(1.0, (1, 5), failures)]),
        **({"sampling": SamplerSelection(sampler or Importance(), 3), "channel": ChannelFailures()} | settings),
        callbacks=[],
    )


def module(*middle: nn.Module) -> FederatedModule:
    torch.manual_seed(0)
    return FederatedModule(nn.Sequential(nn.Linear(5, 4), *middle, nn.Linear(4, 3)), 3)


def ditto(v, w, target, steps, lr):
    for _ in range(steps):
        v = v - lr * ((v - target) + 0.7 * (v - w))
    return v, v


def apfl(v, w, target, steps, lr):
    for _ in range(steps):
        v = v - lr * 0.4 * (0.4 * v + 0.6 * w - target)
    return v, 0.4 * v + 0.6 * w


@pytest.mark.parametrize("mode", ["sequential", "threads", "stacked"])
@pytest.mark.parametrize(
    ("personal", "reference"), [(lambda: PulledModels(0.7), ditto), (lambda: MixedModels(0.4), apfl)]
)
def test_own_models_are_those_of_the_equation(personal, reference, mode):
    federated = loop(personal=personal(), engine=Engine(mode, threads=2), rounds=5)
    own, before = {}, np.zeros(4)
    for result in federated.iterate(QuadraticModule(4), QuadraticFederation(TARGETS)):
        plan = result.plan
        for m in plan.cohort.clients.tolist():
            begin = own.get(m, before)
            own[m], mixed = reference(begin, before, TARGETS[m], plan.profiles.num_steps[m], plan.learning_rate)
            kept = federated.algorithm.personal.models.of(m).numpy()
            np.testing.assert_allclose(kept, own[m], rtol=1e-5, atol=1e-6)
            old = federated.algorithm.personal.of(m, ModelState(torch.from_numpy(before).float(), torch.empty(0)))
            np.testing.assert_allclose(old.weights, mixed, rtol=1e-5, atol=1e-6)
        before = federated.state.weights.numpy().astype(float)
    assert federated.engine.choice.mode == mode
    never = set(range(5)) - own.keys()
    assert all(torch.equal(federated.personalised(m).weights, federated.state.weights) for m in never)


@pytest.mark.parametrize(
    ("mode", "solver", "sampler"),
    [
        ("sequential", SGD(weight_decay=0.3), Importance),
        ("threads", SGD(), Importance),
        ("stacked", SGD(), Importance),
        ("sequential", SGD(), NormProportional),
    ],
    ids=["decay", "threads", "stacked", "asked for updates"],
)
def test_heads_come_first_and_then_the_body(mode, solver, sampler):
    federated = loop(
        failures=0.0,
        personal=HeadFirst(head_steps=3),
        local_parameters=["head"],
        solver=solver,
        sampler=sampler(),
        engine=Engine(mode, threads=2),
    )
    heads, body = {m: np.zeros(4) for m in range(5)}, np.zeros(4)
    for result in federated.iterate(TwoParts(), Points(TARGETS)):
        lr, steps = result.plan.learning_rate, result.plan.profiles.num_steps
        for row, m in enumerate(result.updates.clients.tolist()):
            for _ in range(3):
                heads[m] = heads[m] - lr * (body + heads[m] - TARGETS[m] + solver.weight_decay * heads[m])
            local = body
            for _ in range(steps[m]):
                local = local - lr * (local + heads[m] - TARGETS[m] + solver.weight_decay * local)
            np.testing.assert_allclose(result.updates.deltas[row, :4], (body - local) / lr, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(federated.personalised(m).weights[4:], heads[m], rtol=1e-5, atol=1e-6)
        body = federated.state.weights[:4].numpy().astype(float)
    assert not federated.state.weights[4:].any()


@pytest.mark.parametrize("aggregator", [None, ControlVariates], ids=["mean", "scaffold"])
@pytest.mark.parametrize(
    "layer", [nn.Identity, lambda: nn.BatchNorm1d(4), lambda: nn.Dropout(0.5)], ids=["plain", "buffers", "dropout"]
)
@pytest.mark.parametrize("name", MAKERS)
def test_the_global_model_takes_no_notice(name, layer, aggregator):
    given = {} if aggregator is None else {"aggregator": aggregator()}
    plain, own = loop(**given), loop(**given, personal=MAKERS[name]())
    for federated in (plain, own):
        federated.run(module(layer()), gaussian_federation())
    assert torch.equal(plain.state.weights, own.state.weights)
    assert torch.equal(plain.state.buffers, own.state.buffers)
    columns = ("train_loss", "test_loss", "test_accuracy", "num_delivered")
    for row, same in zip(plain.record.history, own.record.history, strict=True):
        assert {name: row[name] for name in columns} == {name: same[name] for name in columns}
    drawn = own.algorithm.personal.models.clients
    assert not any(torch.equal(own.personalised(m).weights, own.state.weights) for m in drawn)


def own_states(federated):
    return [federated.personalised(m) for m in range(len(federated.client_weights))]


MADE = {
    "ditto": lambda folder: {"personal": PulledModels(storage=RowStorage(folder=folder))},
    "apfl": lambda folder: {"personal": MixedModels(storage=RowStorage(folder=folder))},
    "fedrep": lambda folder: {"personal": HeadFirst(2), "local_parameters": ["last layer"]},
}


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("name", MADE)
def test_a_resumed_run_is_the_same_to_the_last_bit(name, on_disk, tmp_path):
    folder = str(tmp_path) if on_disk else None
    whole = loop(**MADE[name](folder))
    whole.run(module(nn.BatchNorm1d(4)), gaussian_federation())
    first = loop(**MADE[name](None))
    for result in first.iterate(module(nn.BatchNorm1d(4)), gaussian_federation()):
        if result.plan.index == 2:
            break
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = loop(**MADE[name](folder))
    second.run(module(nn.BatchNorm1d(4)), gaussian_federation(), torch.load(file, weights_only=True))
    assert torch.equal(second.state.weights, whole.state.weights)
    for one, other in zip(own_states(second), own_states(whole), strict=True):
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.buffers, other.buffers)


def test_clients_are_evaluated_with_their_own_models():
    federated = loop(personal=PulledModels(), evaluate_clients=ClientEvaluation(1, held_out=0.0), rounds=3)
    *_, last = federated.iterate(module(), gaussian_federation())
    whole = gaussian_federation()
    for m in range(6):
        federated.load_client(m)
        inputs, labels = whole.batch(m, np.arange(12))
        right = float((federated.module(inputs).argmax(1) == labels).double().mean())
        assert last.client_metrics["test_accuracy"][m] == pytest.approx(right)


def test_own_steps_are_charged_and_nobody_waits_for_them():
    plain, own = loop(rounds=2), loop(rounds=2, personal=PulledModels())
    heads = loop(rounds=2, personal=HeadFirst(7), local_parameters=["last layer"])
    for federated in (plain, own, heads):
        federated.run(module(), gaussian_federation())
    assert own.spent.local_steps == 2 * plain.spent.local_steps
    assert own.spent.computation_time == pytest.approx(2 * plain.spent.computation_time)
    assert (own.spent.synchronous_time, own.spent.uplink_bytes) == (
        plain.spent.synchronous_time,
        plain.spent.uplink_bytes,
    )
    assert (heads.spent.local_steps - plain.spent.local_steps) % 7 == 0


def test_what_diverges_is_not_kept():
    federated = loop(personal=PulledModels(1e30), rounds=3)
    federated.run(module(), gaussian_federation())
    assert all(torch.isfinite(state.weights).all() for state in own_states(federated))
    assert torch.isfinite(federated.state.weights).all()


def test_any_optimizer_makes_the_own_steps():
    adam = TorchOptimizer(torch.optim.Adam)
    plain, own = loop(solver=adam), loop(solver=adam, personal=PulledModels(0.5))
    heads = loop(solver=adam, personal=HeadFirst(), local_parameters=["last layer"])
    for federated in (plain, own, heads):
        federated.run(module(), gaussian_federation())
    assert torch.equal(plain.state.weights, own.state.weights)
    assert not torch.equal(own.personalised(int(own.algorithm.personal.models.clients[0])).weights, own.state.weights)


def test_hooks_see_the_settings_of_the_solver_in_own_steps():
    seen = []

    class Watching(FederatedModule):
        def on_before_optimizer_step(self, optimizer):
            seen.append(optimizer.param_groups[0]["momentum"])

    federated = loop(solver=SGD(momentum=0.9), personal=PulledModels(), rounds=1, failures=0.0)
    federated.run(Watching(nn.Linear(5, 3), 3), gaussian_federation())
    assert seen == [0.9] * federated.spent.local_steps


def private():
    return {
        "uploads": [GaussianMechanism(Clip(1.0), noise_multiplier=1.0, key=0)],
        "sampling": SamplerSelection(Importance(), 3, Independent()),
    }


TOGETHER = {
    "private": private,
    "secure sum": lambda: {"aggregator": SecureSum(bound=100.0, threshold=2)},
    "robust": lambda: {"aggregator": CoordinateMedian()},
    "asynchronous": lambda: {"sampling": AsynchronousSelection(ArrivalRates(), 3), "aggregator": StaleMean()},
    "stacked": lambda: {"engine": Engine("stacked")},
}


@pytest.mark.parametrize("other", TOGETHER)
@pytest.mark.parametrize("name", MADE)
def test_products_with_other_parts_work(name, other):
    federated, plain = loop(**TOGETHER[other](), **MADE[name](None)), loop(**TOGETHER[other]())
    for each in (federated, plain):
        each.run(module(), gaussian_federation())
    assert torch.equal(federated.state.weights, plain.state.weights) == (name != "fedrep")
    own = own_states(federated)
    assert len({float(state.weights.sum()) for state in own}) > 1


@pytest.mark.parametrize("name", MADE)
def test_data_may_be_loaded_when_it_is_needed(name):
    whole = gaussian_federation()
    lazy = LazyFederation(whole.sizes, lambda m: whole.batch(m, np.arange(whole.sizes[m])), whole.test, cache_bytes=0)
    here, there = loop(**MADE[name](None)), loop(**MADE[name](None))
    here.run(module(), whole)
    there.run(module(), lazy)
    for one, other in zip(own_states(here), own_states(there), strict=True):
        assert torch.equal(one.weights, other.weights)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PulledModels(-1.0), r"pull=-1\.0 must be a finite number >= 0"),
        (lambda: PulledModels(float("nan")), "pull=nan must be"),
        (lambda: MixedModels(0.0), r"alpha=0\.0 must be above 0 and at most 1"),
        (lambda: HeadFirst(0), "head_steps=0 must be at least 1"),
        (lambda: started(personal=HeadFirst()), "but none are local: name some by local_parameters"),
        (lambda: started(personal=HeadFirst(), local_parameters=["*"]), "but 39 of 39 are local"),
        (lambda: started(personal=PulledModels(), local_parameters=["last layer"]), "leave one of them out"),
    ],
)
def test_bad_values_are_refused_in_one_line(make, said):
    with pytest.raises(ValueError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


def started(**settings):
    loop(**settings).run(module(), gaussian_federation())
