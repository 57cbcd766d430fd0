"""Robust centres: against plain references, with attackers, and in a run."""

import numpy as np
import pytest
import torch
from test_omega_table import SYSTEMS

from fl_lightning.aggregators import (
    AnonymousMean,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    NormBound,
    TrimmedMean,
)
from fl_lightning.callbacks import HeterogeneitySchedule
from fl_lightning.data import TensorFederation
from fl_lightning.samplers import HeterogeneityAware, Uniform
from fl_lightning.uploads import Attack
from reference.quadratic_clients import measured_weights
from systems import gaussian_federation, linear_module, made_plan, random_profiles, small_loop

ROBUST = [CoordinateMedian(), TrimmedMean(0.2), Krum(0.2), GeometricMedian(), NormBound(1.5)]


def by_name(part):
    return type(part).__name__


def made_round(gradients, seed=0, counts=None):
    """Return updates that are A times some gradients, who arrived, and the plan."""
    rng = np.random.default_rng(seed)
    profiles = random_profiles(rng, len(gradients))
    from fl_lightning.types import Cohort, Updates

    counts = np.ones(len(gradients), dtype=np.int64) if counts is None else counts
    cohort = Cohort(
        probabilities=profiles.weights, coefficients=np.ones(len(gradients)), counts=counts, num_draws=int(counts.sum())
    )
    plan = made_plan(1, profiles, cohort, np.ones(len(gradients)), 0.1)
    deltas = torch.from_numpy(gradients * profiles.accumulation[:, None]).float()
    updates = Updates(
        clients=np.arange(len(gradients)), deltas=deltas, buffers=deltas.new_empty((len(gradients), 0)),
        num_steps=profiles.num_steps, losses=np.zeros(len(gradients)),
    )  # fmt: skip
    return updates, counts, plan


@pytest.mark.parametrize("part", ROBUST, ids=by_name)
def test_where_clients_agree_it_is_the_mean(part):
    gradients = np.tile(np.array([1.0, -2.0, 0.5]), (7, 1))
    updates, delivered, plan = made_round(gradients)
    mean = AnonymousMean().direction(updates, delivered, plan)
    assert part.direction(updates, delivered, plan) == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("part", ROBUST, ids=by_name)
def test_a_far_liar_does_not_move_it_far(part):
    rng = np.random.default_rng(1)
    gradients = np.array([1.0, -1.0, 2.0, 0.0]) + 0.1 * rng.normal(size=(9, 4))
    updates, delivered, plan = made_round(gradients)
    weights = delivered * plan.profiles.accumulation
    bad = int(np.argsort(weights)[len(weights) // 2])  # of middling weight
    liar = gradients.copy()
    liar[bad] = 1e6
    honest = part.direction(updates, delivered, plan)
    lied = part.direction(*made_round(liar))
    plain = AnonymousMean().direction(*made_round(liar))
    assert float((lied - honest).norm()) < 0.75 * float(honest.norm())
    assert float(plain.norm()) > 1e3 * float(honest.norm())


def test_centres_are_those_of_plain_references():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(9, 5))
    part, tensor, equal = TrimmedMean(2 / 9), torch.from_numpy(rows), np.ones(9)
    assert CoordinateMedian().centre(tensor, equal).numpy() == pytest.approx(np.median(rows, axis=0))
    assert part.centre(tensor, equal).numpy() == pytest.approx(np.sort(rows, axis=0)[2:7].mean(axis=0))
    repeated = np.repeat(rows, [1, 2, 3, 1, 1, 1, 1, 1, 4], axis=0)
    weights = np.array([1.0, 2, 3, 1, 1, 1, 1, 1, 4])
    assert CoordinateMedian().centre(tensor, weights).numpy() == pytest.approx(np.median(repeated, axis=0))
    centre = GeometricMedian().centre(tensor, weights).numpy()
    pulls = weights[:, None] * (rows - centre) / np.linalg.norm(rows - centre, axis=1)[:, None]
    assert np.abs(pulls.sum(axis=0)).max() < 1e-3  # the condition of the least sum of distances
    distances = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    scores = np.sort(distances, axis=1)[:, 1 : 1 + 9 - 2 - 2].sum(axis=1)
    assert Krum(0.2, keep=1).centre(tensor, equal).numpy() == pytest.approx(rows[np.argmin(scores)])
    best = np.argsort(scores)[:7]
    assert Krum(0.2).centre(tensor, equal).numpy() == pytest.approx(rows[best].mean(axis=0))


def test_a_round_without_arrivals_moves_nothing():
    updates, delivered, plan = made_round(np.ones((3, 2)))
    for part in ROBUST:
        nobody = part.direction(updates.rows(np.empty(0, dtype=np.int64)), 0 * delivered, plan)
        assert nobody.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("part", "least"),
    [(CoordinateMedian(), 0.3), (TrimmedMean(0.1), 0.03), (NormBound(2.0), 0.0)],
    ids=["median", "trimmed", "bounded"],
)
def test_the_measured_objective_of_a_centre_is_not_the_target(part, least):
    """Centres are no means: with clients that pull to different sides they favour the heavy ones."""
    found = measured_weights(SYSTEMS["spec-static"], HeterogeneityAware(), part, 300, 20)
    distance = np.abs(found - SYSTEMS["spec-static"].weights).sum()
    assert distance >= least
    assert least > 0 or distance < 0.1


def accuracy(aggregator, attack):
    """Return the accuracy on clients that are alike, so that a centre differs from the mean by attackers alone."""
    made = gaussian_federation(num_clients=15, size=12)
    mixed = np.random.default_rng(0).permutation(180).reshape(15, 12)
    loop = small_loop(
        Uniform(),
        rounds=15,
        aggregator=aggregator,
        uploads=[] if attack is None else [attack],
        schedule=HeterogeneitySchedule(num_steps=5, failure_rates=0.1),
    )
    loop.algorithm.sampling.clients_per_round = 15
    history = loop.run(linear_module(), TensorFederation(made.train, made.test, mixed)).history
    return float(np.mean(history.column("test_accuracy")[-5:]))


def test_attackers_harm_the_mean_more_than_a_robust_centre():
    attack = {"kind": "sign_flip", "share": 0.2, "strength": 20.0}
    clean, attacked = accuracy(AnonymousMean(), None), accuracy(AnonymousMean(), Attack(**attack))
    robust = accuracy(TrimmedMean(0.3), Attack(**attack))
    assert clean > 0.9
    assert attacked < 0.7
    assert robust > attacked + 0.2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrimmedMean(0.5), "share=0.5"),
        (lambda: Krum(-0.1), "share=-0.1"),
        (lambda: Krum(keep=0), "keep=0"),
        (lambda: GeometricMedian(0), "smoothing=0"),
        (lambda: NormBound(0), "factor=0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
