"""What clipping does to the objective: measured, predicted, and reported."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_omega_table import SYSTEMS, TOLERANCE, fedacs, fedavg

from fl_lightning.aggregators import AnonymousMean
from fl_lightning.aggregators.aggregator import row_norms
from fl_lightning.callbacks import SamplerSelection
from fl_lightning.samplers import HeterogeneityAware, Importance, Independent, WorkAware
from fl_lightning.uploads import Clip, GaussianMechanism, Uploads
from reference.quadratic_clients import measured_weights
from systems import gaussian_federation, linear_module, small_loop

COPIES, ROUNDS = 200, 400
FAST = {name: replace(system, learning_rate=4e-3) for name, system in SYSTEMS.items()}


def clipped_prediction(system, omega, norm, of):
    """Return the fixed point of x = shares of contribution x factor(x): the model is the weights that it optimises."""
    steps, rates = system.conditions(ROUNDS, COPIES, 0)
    a, gain = system.accumulation(steps), system.gain(steps)
    weights = np.tile(system.weights / COPIES, COPIES)
    amounts = omega(weights, rates, a, gain)
    x, kinds = system.weights, np.eye(system.num_kinds)
    for _ in range(300):
        lengths = np.tile(np.linalg.norm(x - kinds, axis=1), COPIES) * (gain / a if of == "work" else gain)
        clipped = (amounts * np.minimum(1, norm / lengths)).mean(axis=0).reshape(COPIES, -1).sum(axis=0)
        x = clipped / clipped.sum()
    return x


CASES = [
    ("spec-static", HeterogeneityAware, fedacs, "work", 0.7),
    ("spec-static", HeterogeneityAware, fedacs, "update", 6.0),
    ("random-dynamic", HeterogeneityAware, fedacs, "update", 6.0),
    ("spec-static", Importance, fedavg, "update", 6.0),
]


@pytest.mark.parametrize(("system", "sampler", "omega", "of", "norm"), CASES)
def test_the_objective_has_the_measured_factor(system, sampler, omega, of, norm):
    step = GaussianMechanism(Clip(norm, of=of), noise_multiplier=0.02, key=0)
    step.begin(Independent())
    step.noise.renew(seed=0)
    measured = measured_weights(FAST[system], sampler(), AnonymousMean(), ROUNDS, COPIES, uploads=Uploads([step]))
    predicted = clipped_prediction(FAST[system], omega, norm, of)
    assert np.abs(measured - predicted).sum() < TOLERANCE
    # What the step measured of each client, on the contributions that were known beforehand.
    steps, rates = FAST[system].conditions(ROUNDS, COPIES, 0)
    a = FAST[system].accumulation(steps)
    amounts = omega(np.tile(FAST[system].weights / COPIES, COPIES), rates, a, a).mean(axis=0)
    reported = (amounts * step.measured_factors()).reshape(COPIES, -1).sum(axis=0)
    assert np.abs(measured - reported / reported.sum()).sum() < 2 * TOLERANCE


def test_bounding_the_work_keeps_fedacs_consistent_where_bounding_the_update_does_not():
    system, distances = FAST["spec-static"], {}
    for of, norm in (("work", 0.7), ("update", 6.0)):
        clip = Clip(norm, of=of)
        found = measured_weights(system, HeterogeneityAware(), AnonymousMean(), ROUNDS, COPIES, uploads=Uploads([clip]))
        distances[of] = np.abs(found - system.weights).sum()
        assert (clip.measured_factors() < 0.9).mean() > 0.4  # both bounds are felt
    assert distances["work"] < 0.08
    assert distances["update"] > 5 * distances["work"]


def test_what_is_sent_is_never_longer_than_the_bound():
    loops = {}
    for of in ("work", "update"):
        loop = small_loop(WorkAware(), rounds=3, uploads=[Clip(0.4, of=of)])
        loops[of] = list(loop.iterate(linear_module(), gaussian_federation()))
    for result in loops["work"]:
        lengths = row_norms(result.updates.deltas) / result.plan.profiles.accumulation[result.updates.clients]
        assert (lengths <= 0.4 * (1 + 1e-6)).all()
    for result in loops["update"]:
        sent = result.plan.coefficients[result.updates.clients] * row_norms(result.updates.deltas)
        assert (sent <= 0.4 * (1 + 1e-6)).all()
        assert not len(sent) or result.metrics["clipped_share"] > 0


def test_the_reported_objective_shows_the_factor_and_the_rate_does_not():
    """A rate that followed what was measured would tell about the data."""
    plain = list(small_loop(rounds=6).iterate(linear_module(), gaussian_federation()))
    clipped = list(
        small_loop(rounds=6, uploads=[Clip(0.5, of="update")]).iterate(linear_module(), gaussian_federation())
    )
    for before, after in zip(plain, clipped, strict=True):
        assert before.plan.step_length == after.plan.step_length
    assert plain[-1].metrics["chi2"] < 1e-9
    assert clipped[-1].metrics["chi2"] > 0.01


def test_the_bound_moves_to_the_quantile():
    rng = np.random.default_rng(0)
    loop = small_loop(rounds=1)
    (result,) = loop.iterate(linear_module(), gaussian_federation())
    clip = Clip(100.0, of="update", quantile=0.7)
    clip.setup(6, loop.state.weights)
    seen = []
    for _ in range(600):
        lengths = torch.from_numpy(rng.uniform(0, 2, len(result.updates)))
        rows = torch.nn.functional.normalize(torch.randn_like(result.updates.deltas)) * lengths[:, None].float()
        clip(replace(result.updates, deltas=rows), result.plan, 0)
        seen.append(clip.norm)
    assert np.mean(seen[200:]) == pytest.approx(1.4, rel=0.1)


def test_a_client_that_has_not_delivered_counts_as_the_average():
    clip = Clip(1.0)
    assert clip.measured_factors() is None
    loop = small_loop(rounds=1, sampling=SamplerSelection(HeterogeneityAware(), 2), uploads=[clip])
    (result,) = loop.iterate(linear_module(), gaussian_federation())
    delivered = result.updates.clients
    factors = clip.measured_factors()
    others = np.setdiff1d(np.arange(6), delivered)
    assert factors[others] == pytest.approx(factors[delivered].mean())
