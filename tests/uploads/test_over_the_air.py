"""Sums in the air: the noise has the size of theory, only sums are seen, and silence is what q says."""

import numpy as np
import pytest
import torch

from fl_lightning import algorithm
from fl_lightning.aggregators import CoordinateMedian
from fl_lightning.aggregators.aggregator import row_norms
from fl_lightning.algorithms import Algorithm
from fl_lightning.callbacks import HeterogeneitySchedule, RayleighOutage, SamplerSelection
from fl_lightning.diagnosis.dry_run import typical_rounds
from fl_lightning.diagnosis.objective import diagnose
from fl_lightning.samplers import DiversityBased, HeterogeneityAware, WithReplacement
from fl_lightning.types import Conditions
from fl_lightning.uploads import Clip, OverTheAir, Uploads
from made import made_case
from systems import gaussian_federation, linear_module, small_loop


def test_the_noise_has_the_size_of_the_signal_to_noise_ratio():
    loop = small_loop(rounds=40, uploads=[OverTheAir(snr_db=6.0)])
    squares, values = 0.0, 0
    for result in loop.iterate(linear_module(), gaussian_federation()):
        updates, counts = result.updates, result.plan.cohort.counts
        longest = (counts[updates.clients] * row_norms(updates.deltas)).max(initial=0.0)
        deviation = longest * 10**-0.3 / len(updates.noise) ** 0.5
        assert result.metrics["channel_noise"] == pytest.approx(deviation)
        if longest > 0:
            squares += float((updates.noise.double() / deviation).square().sum())
            values += len(updates.noise)
    assert squares == pytest.approx(values, rel=5 * (2 / values) ** 0.5)


def test_silence_in_a_deep_fade_has_the_probability_of_the_schedule():
    """An exponential gain below its threshold: drawn by hand, and lost by the channel that knows q alone."""
    radio = RayleighOutage(edge_snr_db=3.0, threshold_db=0.0)
    q = radio(200, 1, 0)
    thresholds = -np.log1p(-q)
    gains = np.random.default_rng(0).exponential(size=(4000, 200))
    assert (gains < thresholds).mean(axis=0) == pytest.approx(q, abs=0.05)
    schedule = HeterogeneitySchedule(num_steps=3, radio=radio)
    loop = small_loop(rounds=2, schedule=schedule, uploads=[OverTheAir()])
    results = list(loop.iterate(linear_module(), gaussian_federation()))
    assert results[0].plan.chi_square < 1e-9  # FedACS, from the truncation probabilities


def test_noise_enters_the_variance_of_the_diagnosis():
    conditions = [Conditions(np.array([2, 4, 8, 16]), np.array([0.4, 0.3, 0.2, 0.1]))] * 16
    weights = np.full(4, 0.25)
    found = {}
    for snr in (None, 20.0, 0.0):
        steps = Uploads([] if snr is None else [OverTheAir(snr)])
        sampling = SamplerSelection(HeterogeneityAware(), 4, WithReplacement())
        parts = Algorithm(sampling=sampling, uploads=steps)
        found[snr] = diagnose("x", weights, typical_rounds(made_case(parts, conditions, weights, 0.1)))
    assert found[0.0].distance < 1e-9
    assert found[20.0].variance > found[None].variance
    extra = [found[snr].variance - found[None].variance for snr in (20.0, 0.0)]
    assert extra[1] == pytest.approx(100 * extra[0])
    # By hand: B = 16 at a gradient of length 1, as the busiest client is drawn once, K = 4.
    p = (0.25 / np.array([2 * 0.6, 4 * 0.7, 8 * 0.8, 16 * 0.9])) / (
        0.25 / np.array([2 * 0.6, 4 * 0.7, 8 * 0.8, 16 * 0.9])
    ).sum()
    signal = (np.array([2, 4, 8, 16]) * np.maximum(1, 4 * p)).max()
    length = float((p * np.array([2 * 0.6, 4 * 0.7, 8 * 0.8, 16 * 0.9])).sum())
    assert extra[1] == pytest.approx(signal**2 / (4 * length**2))


def test_a_nonlinear_centre_has_no_objective_beforehand():
    conditions = [Conditions(np.array([2, 4]), np.zeros(2))] * 2
    robust = Algorithm(sampling=SamplerSelection(HeterogeneityAware(), 2), aggregator=CoordinateMedian())
    assert typical_rounds(made_case(robust, conditions, np.full(2, 0.5), 0.1)) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregator": CoordinateMedian()}, "OverTheAir shows the server nothing but the sum"),
        ({"sampler": DiversityBased()}, "DiversityBased draws by what clients compute"),
    ],
    ids=["aggregator", "sampler"],
)
def test_what_needs_single_updates_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        small_loop(uploads=[OverTheAir()], **settings).run(linear_module(), gaussian_federation())


def test_a_signal_above_the_bound_is_an_error_and_a_clip_prevents_it():
    with pytest.raises(ValueError, match=r"longer than max_norm=0.001.*put fl_lightning.uploads.Clip before"):
        small_loop(uploads=[OverTheAir(max_norm=0.001)]).run(linear_module(), gaussian_federation())
    loop = small_loop(uploads=[Clip(0.001, of="update"), OverTheAir(max_norm=0.01)])
    assert loop.run(linear_module(), gaussian_federation()).history
    for bad in ({"max_norm": 0.0}, {"snr_db": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            OverTheAir(**bad)


def test_the_preset_adds_noise_to_fedacs():
    loud = small_loop(rounds=2, uploads=algorithm("otafedacs", 3).uploads)
    results = list(loud.iterate(linear_module(), gaussian_federation()))
    quiet = small_loop(rounds=2).run(linear_module(), gaussian_federation())
    for result in results:
        deviation = result.metrics["channel_noise"]
        assert deviation > 0
        assert 0.4 * deviation < float(result.updates.noise.std()) < 1.8 * deviation  # of 18 weights
    assert not torch.equal(loud.state.weights, quiet.weights)
