"""A client that was drawn rests: never drawn too early, and as often as predicted."""

import numpy as np
import pytest

from fl_lightning.aggregators import AnonymousMean, EstimatedParticipation
from fl_lightning.algorithms import Algorithm
from fl_lightning.callbacks import SamplerSelection
from fl_lightning.samplers import Importance, Separated
from fl_lightning.types import Conditions
from made import made_profiles
from reference.played_rounds import distance, measured, played_planner, predicted
from systems import gaussian_federation, linear_module, small_loop

WEIGHTS = np.random.default_rng(3).dirichlet(np.full(40, 2.0))


def played(aggregator, num_rounds):
    """Return the objective that is predicted and the one that rounds descend, of 40 clients of which 4 are drawn."""
    steps, rates = np.arange(40) % 5 + 1, np.linspace(0.0, 0.4, 40)
    planner = played_planner([Conditions(steps, rates)] * 4, WEIGHTS)
    algorithm = Algorithm(sampling=SamplerSelection(Separated(num_rounds=3), 4), aggregator=aggregator)
    found = measured(algorithm, planner, num_rounds, skip=500)
    return predicted(algorithm, planner).effective_weights, found, steps * (1 - rates)


def test_shares_of_the_draws_are_the_predicted_ones_and_nearer_to_each_other():
    said, found, contribution = played(AnonymousMean(), 4000)
    assert distance(said, found) < 0.06
    without = WEIGHTS * contribution / (WEIGHTS @ contribution)
    assert distance(without, found) > 0.15


def test_estimated_participation_corrects_rests_and_links():
    said, found, _ = played(EstimatedParticipation(), 4000)
    steps = np.arange(40) % 5 + 1
    assert distance(said, WEIGHTS * steps / (WEIGHTS @ steps)) < 1e-9
    assert distance(said, found) < 0.06


def test_shares_solve_their_equation():
    profiles = made_profiles(
        weights=WEIGHTS, num_steps=np.ones(40, dtype=int), failure_rates=np.zeros(40), accumulation=np.ones(40)
    )
    for rest, num_draws in ((0, 4), (3, 4), (9, 4), (1, 20)):
        shares = Separated(Importance(), rest).probabilities(profiles, num_draws)
        ratio = shares / (WEIGHTS * (1 - rest * num_draws * shares))
        assert np.ptp(ratio) < 1e-6 * ratio.mean()
        assert shares.sum() == pytest.approx(1)


def play(rounds, resume=None):
    loop = small_loop(rounds=rounds, sampling=SamplerSelection(Separated(num_rounds=2), 2))
    return loop, list(loop.iterate(linear_module(), gaussian_federation(), resume))


def test_nobody_is_drawn_too_early_also_after_a_pause():
    whole, results = play(12)
    drawn = [set(result.plan.cohort.clients.tolist()) for result in results]
    assert all(drawn[i].isdisjoint(drawn[j]) for i in range(12) for j in range(i + 1, min(i + 3, 12)))
    part, _ = play(5)
    resumed, rest = play(12, part.state_dict())
    assert [set(result.plan.cohort.clients.tolist()) for result in rest] == drawn[5:]
    assert (resumed.state.weights == whole.state.weights).all()


def test_bad_values_are_refused():
    with pytest.raises(ValueError, match="num_rounds=-1"):
        Separated(num_rounds=-1)
    with pytest.raises(ValueError, match="a rest of 5 rounds needs 12 clients where 2 are drawn, but there are 6"):
        small_loop(rounds=1, sampling=SamplerSelection(Separated(num_rounds=5), 2)).run(
            linear_module(), gaussian_federation()
        )
