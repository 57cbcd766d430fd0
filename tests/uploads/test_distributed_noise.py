"""Noise of which each client adds a share, under a secure sum: how much there is, and what a sum tells."""

from itertools import product

import numpy as np
import pytest
import torch
from dp_accounting import pld

from fl_lightning.aggregators import AnonymousMean, NormalizedMean, SecureSum, ServerMomentum
from fl_lightning.callbacks import SamplerSelection
from fl_lightning.samplers import HeterogeneityAware, Independent, WithReplacement
from fl_lightning.types import Cohort, Updates
from fl_lightning.uploads import Clip, GaussianMechanism
from fl_lightning.uploads.accounting import BOUND, Accountant, told_by_round
from fl_lightning.uploads.gaussian import least_arrivals
from made import made_profiles
from systems import gaussian_federation, linear_module, made_plan, small_loop


@pytest.mark.parametrize("num_arrived", [2, 3, 5])
def test_the_sum_has_the_noise_of_the_threshold_or_more(num_arrived):
    """Whoever arrives and however often it was drawn adds one share: a arrivals have a / t of the wanted variance."""
    num_clients, threshold, size = 5, 2, 40_000
    profiles = made_profiles(
        weights=np.full(5, 0.2),
        num_steps=np.arange(1, 6),
        failure_rates=np.full(5, 0.5),
        accumulation=np.arange(1.0, 6),
    )
    counts, factors = np.array([1, 3, 1, 2, 1]), np.array([1.0, 0.5, 2.0, 1.0, 0.25])
    cohort = Cohort(probabilities=np.full(5, 0.2), coefficients=factors, counts=counts, num_draws=8)
    plan = made_plan(1, profiles, cohort, factors, 0.1)
    step = GaussianMechanism(Clip(0.5), noise_multiplier=3.0, place="distributed", key=0)
    step.setup(num_clients, torch.zeros(size))
    step._num_shares = least_arrivals(SecureSum(1.0, threshold=threshold))
    step.begin(WithReplacement())
    clients = np.arange(num_arrived)
    updates = Updates(
        clients=clients,
        deltas=torch.zeros(num_arrived, size),
        buffers=torch.zeros(num_arrived, 0),
        num_steps=profiles.num_steps[clients],
        losses=np.zeros(num_arrived),
    )
    sent = step(updates, plan, seed=0)
    assert sent.noise is None  # nobody adds it but the clients
    total = torch.from_numpy((counts * factors)[clients]).float() @ sent.deltas
    wanted = 3.0 * 0.5 * (factors * profiles.accumulation).max()
    assert float(total.std()) == pytest.approx(wanted * (num_arrived / threshold) ** 0.5, rel=0.02)


@pytest.mark.parametrize("others", [0.0, 1.0])
@pytest.mark.parametrize("drawing", [Independent(), WithReplacement()])
def test_a_sum_tells_no_more_than_is_accounted_for(drawing, others):
    """The server knows who was drawn and who arrived; where fewer than the threshold did, it learns nothing else."""
    p, num_draws, threshold, noise, delta = np.array([0.5, 0.3, 0.2]), 3, 2, 1.2, 1e-2
    grid = np.linspace(-15, 15, 301)
    rng = np.random.default_rng(0)
    drawn, times = np.unique([drawing(p, num_draws, rng) for _ in range(2000)], axis=0, return_counts=True)
    tables = []
    for own in (1.0, 0.0):
        table = {}
        for counts, share in zip(drawn, times / 2000, strict=True):
            for arrived in product([0, 1], repeat=3):
                chance = share * np.prod(np.where(arrived, 0.7, 0.3))
                took_part = (counts > 0) & np.array(arrived, dtype=bool)
                if took_part.sum() < threshold:
                    table[tuple(counts), arrived, None] = np.log(chance)
                    continue
                mean, variance = (counts * took_part) @ [own, others, others], noise**2 * took_part.sum() / threshold
                density = np.exp(-((grid - mean) ** 2) / (2 * variance)) + 1e-30
                logs = np.log(chance * density / density.sum())
                table |= {(tuple(counts), arrived, place): float(value) for place, value in enumerate(logs)}
        tables.append(table)
    told = told_by_round(drawing, _cohort(p, num_draws), np.full(3, 1 / noise), delta, shown=True)[:1]
    for first, second in (tables, tables[::-1]):
        loss = pld.privacy_loss_distribution.from_two_probability_mass_functions(
            first, second, pessimistic_estimate=False, value_discretization_interval=1e-2
        )
        for rounds in (1, 3):
            account = Accountant(delta)
            account.add(told, rounds)
            assert account.epsilon >= loss.self_compose(rounds).get_epsilon_for_delta(delta) > 0


def _cohort(p, num_draws):
    return Cohort(probabilities=p, coefficients=np.ones(3), counts=np.zeros(3, dtype=np.int64), num_draws=num_draws)


def play(aggregator, **settings):
    sampling = SamplerSelection(HeterogeneityAware(corrects="links"), 3, Independent())
    step = GaussianMechanism(Clip(0.5), noise_multiplier=1.0, place="distributed", **settings)
    loop = small_loop(sampling=sampling, uploads=[step], aggregator=aggregator, rounds=12)
    return loop, step, loop.iterate(linear_module(), gaussian_federation())


def test_a_run_under_a_secure_sum_is_accounted_for_and_stays_where_too_few_arrive():
    loop, _, results = play(SecureSum(1e4, threshold=2, weighting=NormalizedMean()))
    account, failed, before = Accountant(6**-1.1), 0, None
    for result in results:
        plan = result.plan
        units = np.abs(plan.coefficients) * plan.profiles.accumulation
        account.add(told_by_round(Independent(), plan.cohort, units / units.max(), account.delta, shown=True))
        assert result.metrics["epsilon"] == pytest.approx(account.epsilon)
        if result.metrics["num_delivered"] < 2:
            failed += 1
            assert before is None or torch.equal(loop.state.weights, before)
        before = loop.state.weights.clone()
    assert 0 < failed < 12
    assert loop.algorithm.uploads.epsilon_kind == BOUND


def test_what_cannot_hide_a_share_is_refused():
    for aggregator, message in (
        (AnonymousMean(), "use loop.aggregator fl_lightning.aggregators.SecureSum"),
        (SecureSum(1.0, threshold=0.5), "give loop.aggregator.threshold as a number of clients"),
    ):
        with pytest.raises(ValueError, match=message):
            next(play(aggregator)[2])
    with pytest.raises(ValueError, match="place='distributed' needs a fixed clip"):
        GaussianMechanism(Clip(1.0, quantile=0.5), noise_multiplier=1.0, place="distributed")
    assert least_arrivals(ServerMomentum(SecureSum(1.0, threshold=4))) == 4
