"""Private runs: what is added, what is accounted, what is refused, and what stays the same when a run is resumed."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning import algorithm
from fl_lightning.aggregators import (
    AnonymousMean,
    ControlVariates,
    LastKnownUpdates,
    MemorizedMean,
    NormalizedMean,
    ServerMomentum,
)
from fl_lightning.asynchronous import AsynchronousSelection, StaleMean
from fl_lightning.callbacks import SamplerSelection
from fl_lightning.cli.main import main
from fl_lightning.module import FederatedModule
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.samplers import (
    ClusteredBySize,
    DiversityBased,
    HeterogeneityAware,
    Importance,
    Independent,
    Systematic,
    Uniform,
    WorkAware,
)
from fl_lightning.secure.primitives import library
from fl_lightning.system import Clock
from fl_lightning.uploads import Clip, GaussianMechanism
from systems import gaussian_federation, linear_module, small_loop


def play(step=None, sampler=None, resume=None, **settings):
    chosen = SamplerSelection(sampler or HeterogeneityAware(), 3, settings.pop("drawing", Independent()))
    loop = small_loop(sampling=chosen, uploads=[] if step is None else [step], **settings)
    return loop, list(loop.iterate(linear_module(), gaussian_federation(), resume))


def test_noise_is_added_to_the_sum_and_nothing_else_changes():
    plain, before = play(rounds=1)
    private, after = play(GaussianMechanism(Clip(1e6), noise_multiplier=1e-6, key=0), rounds=1)
    plan, noise = after[0].plan, after[0].updates.noise
    assert noise.shape == plain.state.weights.shape
    moved = (private.state.weights - plain.state.weights).double()
    expected = -plan.learning_rate * plan.server_scale * noise.double() / plan.cohort.num_draws
    assert torch.allclose(moved, expected, atol=1e-6)
    accumulation = plan.profiles.accumulation
    assert float(noise.std()) == pytest.approx(1e-6 * 1e6 * accumulation.max(), rel=0.5)
    assert np.array_equal(before[0].plan.effective_weights, after[0].plan.effective_weights)


def test_noise_is_added_even_where_nobody_arrives():
    """Else an unchanged model would tell that nobody was drawn."""
    loop = small_loop(
        rounds=8, sampling=SamplerSelection(HeterogeneityAware(), 1, Independent()),
        uploads=[GaussianMechanism(Clip(1.0), noise_multiplier=1.0, key=0)],
    )  # fmt: skip
    weights, silent = None, 0
    for result in loop.iterate(linear_module(), gaussian_federation()):
        if not len(result.updates):
            silent += 1
            assert not torch.equal(loop.state.weights, weights)
        weights = loop.state.weights
    assert silent


def test_momentum_on_the_server_sees_the_noise():
    step = GaussianMechanism(Clip(1.0), noise_multiplier=1.0)
    loop, results = play(step, aggregator=ServerMomentum(AnonymousMean(), lr=0.1), rounds=2)
    noise = [result.updates.noise for result in results]
    velocity = loop.algorithm.aggregator.moments["velocity"]
    share = results[1].plan.learning_rate * results[1].plan.server_scale / 3
    assert float(velocity @ noise[1]) > 0.5 * share * float(noise[1] @ noise[1])


def test_each_client_may_add_the_noise_itself():
    quiet, before = play(GaussianMechanism(Clip(1.0), noise_multiplier=1e-9, place="clients", key=0), rounds=1)
    loud, after = play(GaussianMechanism(Clip(1.0), noise_multiplier=2.0, place="clients", key=0), rounds=1)
    plan = after[0].plan
    added = after[0].updates.deltas - before[0].updates.deltas
    wanted = 2.0 * plan.profiles.accumulation[after[0].updates.clients]
    assert added.std(dim=1).numpy() == pytest.approx(wanted, rel=0.6)
    assert not torch.equal(added[0] / wanted[0], added[1] / wanted[1])
    assert after[0].updates.noise is None
    assert quiet.algorithm.uploads.steps[0].account.epsilon > loud.algorithm.uploads.steps[0].account.epsilon


@pytest.mark.parametrize(("target", "drawing"), [(2.0, Systematic()), (8.0, Independent())])
def test_a_run_ends_at_the_epsilon_that_was_asked_for(target, drawing):
    _, results = play(GaussianMechanism(Clip(1.0), epsilon=target, delta=1e-2), drawing=drawing, rounds=8)
    spent = [result.metrics["epsilon"] for result in results]
    assert len(results) == 8
    assert spent == sorted(spent)
    assert 0.98 * target < spent[-1] <= target
    assert results[0].metrics["delta"] == 1e-2


def test_a_run_ends_early_where_the_forecast_was_wrong():
    """The estimated probabilities move while the run learns; the promise holds all the same."""
    step = GaussianMechanism(Clip(1.0, of="update"), epsilon=3.0, delta=1e-2)
    _, results = play(step, sampler=HeterogeneityAware("estimated", prior=0.1), rounds=40)
    assert results[-1].metrics["epsilon"] <= 3.0
    assert len(results) < 40


def test_default_delta_is_below_one_over_the_number_of_clients():
    _, results = play(GaussianMechanism(Clip(1.0), noise_multiplier=1.0), rounds=1)
    assert results[0].metrics["delta"] == pytest.approx(6**-1.1)


def test_bounding_the_work_makes_fedacs_cheap():
    """Slow clients are drawn far more often; bounded by their work they also send less, which outweighs it."""
    by_update, by_work, uniform = (
        play(GaussianMechanism(Clip(1.0, of=of), noise_multiplier=2.0, delta=1e-2), sampler=sampler, rounds=20)[1][-1]
        .metrics["epsilon"]
        for of, sampler in (("update", HeterogeneityAware()), ("work", HeterogeneityAware()), ("update", Uniform()))
    )  # fmt: skip
    assert by_update > 1.2 * uniform
    assert by_work < uniform


def test_an_adaptive_bound_moves_by_a_noisy_count_and_is_paid_for():
    fixed = play(GaussianMechanism(Clip(0.01), noise_multiplier=2.0, delta=1e-2), rounds=10)[1]
    clip = Clip(0.01, quantile=0.5)
    moving = play(GaussianMechanism(clip, noise_multiplier=2.0, delta=1e-2, count_noise=1.0), rounds=10)[1]
    bounds = [result.metrics["clip_norm"] for result in moving]
    assert bounds[0] == 0.01
    assert bounds[-1] > bounds[0]  # all updates are longer
    assert moving[-1].metrics["epsilon"] > fixed[-1].metrics["epsilon"]


@pytest.mark.parametrize(
    ("quantile", "noise"), [(None, {"epsilon": 4.0}), (0.6, {"noise_multiplier": 1.0})], ids=["fixed", "adaptive"]
)
def test_a_resumed_run_is_the_same_and_remembers_what_it_told(quantile, noise):
    def step():
        return GaussianMechanism(Clip(0.3, quantile=quantile), key=0, **noise)

    whole, rows = play(step(), rounds=5)
    first = small_loop(rounds=5, sampling=SamplerSelection(HeterogeneityAware(), 3, Independent()), uploads=[step()])
    for result in first.iterate(linear_module(), gaussian_federation()):
        if result.plan.index == 2:
            saved = first.state_dict()
            break
    resumed, rest = play(step(), rounds=5, resume=saved)
    assert torch.equal(resumed.state.weights, whole.state.weights)
    names = ("epsilon", "clip_norm", "noise_multiplier", "clip_factor")
    assert [[row.metrics[name] for name in names] for row in rest] == [
        [row.metrics[name] for name in names] for row in rows[2:]
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregator": LastKnownUpdates()}, "LastKnownUpdates needs each of them"),
        ({"aggregator": MemorizedMean()}, "MemorizedMean needs each of them"),
        ({"aggregator": ControlVariates()}, "ControlVariates needs each of them"),
        ({"aggregator": ServerMomentum(MemorizedMean())}, "ServerMomentum of MemorizedMean needs each"),
        ({"aggregator": AnonymousMean("received")}, "AnonymousMean needs each of them"),
        ({"aggregator": NormalizedMean("received")}, "NormalizedMean needs each of them"),
        ({"sampler": DiversityBased()}, "DiversityBased draws by what clients compute"),
        ({"sampler": WorkAware(use_norms=True)}, "WorkAware draws by what clients compute"),
        ({"clock": Clock(take_first=2)}, "leave out loop.clock.take_first"),
        ({"sampler": ClusteredBySize(), "drawing": None}, "ClusteredBySize does not tell how often a client is drawn"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_sound_bound_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        play(GaussianMechanism(Clip(1.0), noise_multiplier=1.0), **settings)


class OnlySums(StaleMean):
    traits = AggregatorTraits(older_starts=True)


def test_uploads_that_do_not_wait_for_each_other_have_no_bound():
    loop = small_loop(
        sampling=AsynchronousSelection(Importance(), 3),
        aggregator=OnlySums(),
        uploads=[GaussianMechanism(Clip(1.0), noise_multiplier=1.0)],
    )
    with pytest.raises(ValueError, match="AsynchronousSelection does not tell how often"):
        loop.run(linear_module(), gaussian_federation())


def test_running_means_are_refused_unless_they_stay_at_the_clients():
    torch.manual_seed(0)
    module = FederatedModule(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), 3)
    settings = {"sampling": SamplerSelection(Importance(), 3, Independent()), "rounds": 1}
    with pytest.raises(ValueError, match="8 values in float buffers"):
        small_loop(uploads=[GaussianMechanism(Clip(1.0), noise_multiplier=1.0)], **settings).run(
            module, gaussian_federation()
        )
    loop = small_loop(
        uploads=[GaussianMechanism(Clip(1.0), noise_multiplier=1.0)], local_parameters=["network.1.*"], **settings
    )
    assert loop.run(module, gaussian_federation()).history


def test_a_step_that_undoes_the_bound_is_refused():
    with pytest.raises(ValueError, match="Clip changes updates after GaussianMechanism"):
        small_loop(
            sampling=SamplerSelection(Importance(), 3, Independent()),
            uploads=[GaussianMechanism(Clip(1.0), noise_multiplier=1.0), Clip(2.0)],
        ).run(linear_module(), gaussian_federation())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clip(0.0), "norm=0.0 must be a positive number"),
        (lambda: Clip(float("nan")), "norm=nan"),
        (lambda: Clip(1.0, of="gradient"), "of='gradient' is unknown"),
        (lambda: Clip(1.0, quantile=1.5), "quantile=1.5"),
        (lambda: GaussianMechanism(Clip(1.0), epsilon=0.0), "epsilon=0.0 must be a positive number"),
        (lambda: GaussianMechanism(Clip(1.0), epsilon=-1.0), "epsilon=-1.0"),
        (lambda: GaussianMechanism(Clip(1.0)), "not neither"),
        (lambda: GaussianMechanism(Clip(1.0), epsilon=1.0, noise_multiplier=1.0), "not both"),
        (lambda: GaussianMechanism(Clip(1.0), epsilon=1.0, delta=1.0), "delta=1.0"),
        (lambda: GaussianMechanism(Clip(1.0, quantile=0.5), epsilon=1.0, place="clients"), "fixed clip"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_missing_library_is_one_line(monkeypatch, tmp_path, capsys):
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography", None)
    arguments = ["--config", "digits_dpfedacs.yaml", "--run_dir", str(tmp_path), "--logger", "none"]
    assert main(["train", *arguments, "--loop.rounds", "1"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].endswith("pip install -e '.[privacy]' in your clone")
    assert not any("Traceback" in line for line in lines)


def test_the_preset_is_made_of_these_parts():
    (step,) = algorithm("dpfedacs").uploads.steps
    assert isinstance(step, GaussianMechanism)
    assert (step.clip.of, step.epsilon) == ("work", 8.0)


def test_draws_that_correct_links_alone_need_the_least_noise():
    """At equal noise relative to the step, equally long updates tell least; FedACS's unequal ones tell much."""

    def told(sampler, aggregator):
        step = GaussianMechanism(Clip(1.0), noise_multiplier=4.0, delta=1e-2)
        results = play(step, sampler=sampler, aggregator=aggregator, rounds=10)[1]
        plans = [result.plan for result in results]
        lengths = [step.clip.units(plan).max() / plan.expected.step_length for plan in plans]
        assert max(result.metrics["chi2"] for result in results) < 1e-3 or step.clip.measured_factors().min() < 1
        return results[-1].metrics["epsilon"], np.mean(lengths)

    by_draws, by_both = (
        told(HeterogeneityAware(), AnonymousMean()),
        told(HeterogeneityAware(corrects="links"), NormalizedMean()),
    )
    assert by_both[1] < 0.5 * by_draws[1]  # relative noise at the same multiplier
