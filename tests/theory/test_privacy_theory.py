"""Privacy accounting against the library, and against the exact privacy loss of toy federations."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld, rdp
from scipy.integrate import quad

from fl_lightning.samplers import Independent, Systematic, WithoutReplacement, WithReplacement
from fl_lightning.theory import privacy
from fl_lightning.types import Cohort
from fl_lightning.uploads.accounting import noise_for, round_divergences, without_tail, worst_epsilon


def cohort(probabilities, num_draws):
    p = np.asarray(probabilities, dtype=float)
    return Cohort(
        probabilities=p, coefficients=np.ones(len(p)), counts=np.zeros(len(p), dtype=np.int64), num_draws=num_draws
    )


# Sampling rate, noise multiplier, rounds and delta of published trainings: the DP-SGD tutorial on MNIST (batches of 250
# of 60,000, 15 epochs), CIFAR-10 of Abadi et al. 2016 (q = 0.04), DP-FedAvg of McMahan et al. 2018 (5,000 of 763,430).
PUBLISHED = [
    (250 / 60_000, 1.3, 3600, 1e-5),
    (0.04, 6.0, 10_000, 1e-5),
    (5000 / 763_430, 1.0, 5000, 1e-9),
    (0.3, 2.0, 150, 1e-3),
]


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta"), PUBLISHED)
def test_uniform_poisson_sampling_has_the_epsilon_of_the_library(rate, noise, rounds, delta):
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    whole = privacy.ORDERS.round() == privacy.ORDERS  # between them the series of the library does not always converge
    same_orders = rdp.RdpAccountant(privacy.ORDERS[whole]).compose(event, rounds)
    few = cohort(np.full(4, rate / 3), 3)  # four of the clients are as good as all
    spent = rounds * round_divergences(Independent(), few, np.full(4, 1 / noise), delta)
    assert spent[0][whole] == pytest.approx(same_orders.rdp, rel=1e-6)
    ours = worst_epsilon(spent, delta)
    assert 0.9 * same_orders.get_epsilon(delta) < ours <= same_orders.get_epsilon(delta) * (1 + 1e-9)
    assert ours == pytest.approx(privacy.epsilons(spent, delta).max(), rel=1e-9)
    assert ours == pytest.approx(rdp.RdpAccountant().compose(event, rounds).get_epsilon(delta), rel=0.05)
    tight = pld.PLDAccountant().compose(event, rounds).get_epsilon(delta)
    assert 0.7 * ours < tight < ours


def joint_counts(drawing, probabilities, num_draws, num_rounds=4000):
    """Return the different outcomes of the draws and how probable each is."""
    rng = np.random.default_rng(0)
    drawn = np.array([drawing(probabilities, num_draws, rng) for _ in range(num_rounds)])
    outcomes, times = np.unique(drawn, axis=0, return_counts=True)
    return outcomes, times / num_rounds


def outcome_probabilities(outcomes, shares, updates, noise, grid):
    """Return the probabilities of the noisy sum on a grid; the draws are averaged out, for nobody sees them."""
    density = sum(
        share * np.exp(-((grid - counts @ updates) ** 2) / (2 * noise**2))
        for counts, share in zip(outcomes, shares, strict=True)
    )
    return dict(enumerate(density / density.sum()))


@pytest.mark.parametrize("others", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("drawing", [Independent(), WithReplacement(), Systematic(), WithoutReplacement()])
def test_the_bound_is_never_below_the_exact_loss_of_a_toy_federation(drawing, others):
    """Client 0 is drawn most often; whatever the others send, a composition of rounds reveals no more than we say."""
    p, num_draws, noise, delta = np.array([0.45, 0.35, 0.2]), 2, 1.5, 1e-2
    grid = np.linspace(-14, 14, 1401)
    outcomes, shares = joint_counts(drawing, p, num_draws)
    present = outcome_probabilities(outcomes, shares, np.array([1.0, others, others]), noise, grid)
    absent = outcome_probabilities(outcomes, shares, np.array([0.0, others, others]), noise, grid)
    exact = {
        a: {k: float(np.log(v)) for k, v in table.items()} for a, table in (("present", present), ("absent", absent))
    }
    for first, second in (("present", "absent"), ("absent", "present")):
        loss = pld.privacy_loss_distribution.from_two_probability_mass_functions(
            exact[second], exact[first], pessimistic_estimate=False, value_discretization_interval=1e-3
        )
        for rounds in (1, 3):
            lower = loss.self_compose(rounds).get_epsilon_for_delta(delta)
            spent = rounds * round_divergences(drawing, cohort(p, num_draws), np.full(3, 1 / noise), delta)
            assert worst_epsilon(spent[:1], delta) >= lower > 0
            assert worst_epsilon(spent, delta) >= worst_epsilon(spent[:1], delta)


def test_a_bound_for_secret_draws_would_be_wrong_where_draws_depend_on_each_other():
    """One of two clients is drawn: who is absent is known to be replaced, which Poisson's formula does not know."""
    p, noise, delta = np.array([0.5, 0.5]), 0.5, 1e-3
    grid = np.linspace(-10, 10, 2001)
    outcomes, shares = joint_counts(WithoutReplacement(), p, 1)
    tables = [
        {
            k: float(np.log(v))
            for k, v in outcome_probabilities(outcomes, shares, np.array([own, -1.0]), noise, grid).items()
        }
        for own in (1.0, 0.0)
    ]
    loss = pld.privacy_loss_distribution.from_two_probability_mass_functions(
        tables[1], tables[0], pessimistic_estimate=False, value_discretization_interval=1e-3
    )
    lower = loss.get_epsilon_for_delta(delta)
    ours = worst_epsilon(round_divergences(WithoutReplacement(), cohort(p, 1), np.full(2, 1 / noise), delta), delta)
    assert ours >= lower


def test_several_draws_cost_what_a_longer_update_costs():
    certain = np.array([[0.0, 0.0, 0.0, 1.0]])
    tripled = privacy.shown_divergence(certain, np.array([0.2]))
    once = privacy.shown_divergence(np.array([[0.0, 1.0]]), np.array([0.6]))
    assert np.allclose(tripled, once)
    assert np.allclose(once[0], privacy.ORDERS * 0.36 / 2)


def test_what_a_client_tells_besides_is_added_once():
    both = privacy.shown_divergence(np.array([[0.0, 0.0, 1.0]]), np.array([0.3]), fixed=0.25)
    assert np.allclose(both[0], privacy.ORDERS * (0.36 + 0.25) / 2)


def test_many_clients_are_worked_on_in_parts():
    rng = np.random.default_rng(0)
    rates, ratios = rng.uniform(0, 1, 5000), rng.uniform(0.1, 2, 5000)
    chosen = [0, 4095, 4096, 4999]
    all_of_them = privacy.sampled_divergence(rates, ratios)
    assert np.array_equal(all_of_them[chosen], privacy.sampled_divergence(rates[chosen], ratios[chosen]))


def test_noise_from_a_target_is_the_least_that_stays_within_it():
    group = cohort([0.1, 0.3, 0.6], 1)

    def spent(noise, some=None):
        return 50 * round_divergences(Independent(), group, np.full(3, 1 / noise), 1e-3, some=some)

    noise = noise_for(2.0, 1e-3, spent)
    assert 1.99 < worst_epsilon(spent(noise), 1e-3) <= 2.0
    assert worst_epsilon(spent(noise * 0.99), 1e-3) > 2.0
    with pytest.raises(ValueError, match="out of reach"):
        noise_for(2.0, 1e-3, lambda noise, some: np.full((1, len(privacy.ORDERS)), 5.0))


@pytest.mark.parametrize("epsilon", [0.5, 60.0])
def test_the_client_that_decides_on_the_noise_is_found_among_many(epsilon):
    """Those who are often drawn decide where noise is large, those who add much where it is small."""
    rates = np.concatenate([np.linspace(0.3, 0.9, 300), np.full(300, 0.02)])
    ratios = np.concatenate([np.full(300, 0.3), np.linspace(0.5, 1.0, 300)])
    looked_at = []

    def spent(noise, some):
        chosen = np.arange(600) if some is None else some
        looked_at.append(len(chosen))
        return 20 * privacy.sampled_divergence(rates[chosen], ratios[chosen] / noise)

    def worst(noise):
        return worst_epsilon(spent(noise, None), 1e-3)

    noise = noise_for(epsilon, 1e-3, spent)
    assert sum(looked_at) < 600 * 8
    assert worst(noise) <= epsilon < worst(noise * 0.999)


def test_draws_that_hardly_ever_happen_are_left_to_delta():
    """Without this, draws with replacement would count as if a client could be all of them."""
    many = cohort(np.full(1000, 1e-3), 50)
    counts = WithReplacement().distribution(many.probabilities, 50)
    spent = 100 * round_divergences(WithReplacement(), many, np.full(1000, 0.5), 1e-3)
    assert worst_epsilon(spent, 1e-3) < 0.9 * worst_epsilon(
        100 * privacy.shown_divergence(counts, np.full(1000, 0.5)), 1e-3
    )
    kept = without_tail(counts, 1e-9)
    assert 0 < 1 - kept[0].sum() < 1e-9


@pytest.mark.parametrize(("rate", "ratio"), [(0.07, 0.5), (0.3, 1.0), (0.35, 3.0), (0.001, 5.0), (0.9, 2.0)])
def test_orders_between_whole_numbers_are_integrals(rate, ratio):
    orders = np.array([1.01, 1.3, 1.75, 2.5, 4.5])
    found = privacy.sampled_divergence(np.array([rate]), np.array([ratio]), orders)[0]
    for order, divergence in zip(orders, found, strict=True):

        def density(z, order=order):
            loss = np.logaddexp(np.log1p(-rate), np.log(rate) + ratio * z - ratio**2 / 2)
            return np.exp(order * loss - z**2 / 2) / np.sqrt(2 * np.pi)

        places = [0, order * ratio]
        moment, _ = quad(density, -15, order * ratio + 15, points=places, epsabs=0, epsrel=1e-11, limit=500)
        assert divergence == pytest.approx(np.log(moment) / (order - 1), rel=1e-6, abs=1e-9)


# Rate, ratio, rounds, delta: from little told to much; the last ones are those of FedACS under much too little noise.
NINE = [
    (0.05, 0.2, 200, 5e-4),
    (0.07, 0.5, 200, 5e-4),
    (0.12, 0.9, 60, 5e-4),
    (0.3, 0.5, 150, 1e-3),
    (0.3, 1.0, 200, 5e-4),
    (0.35, 1.5, 200, 5e-4),
    (0.35, 3.0, 200, 5e-4),
    (1.0, 0.1, 100, 1e-5),
    (1.0, 0.7, 100, 1e-5),
]


@pytest.mark.parametrize(("rate", "ratio", "rounds", "delta"), NINE)
def test_epsilon_is_close_above_that_of_privacy_loss_distributions(rate, ratio, rounds, delta):
    """An independent computation: never too small, and above it by what Renyi divergences lose."""
    one = pld.privacy_loss_distribution.from_gaussian_mechanism(
        1 / ratio, sampling_prob=rate, value_discretization_interval=2e-3, use_connect_dots=True
    )
    exact = one.self_compose(rounds).get_epsilon_for_delta(delta)
    ours = worst_epsilon(rounds * privacy.sampled_divergence(np.array([rate]), np.array([ratio])), delta)
    assert exact * (1 - 1e-3) <= ours <= 1.2 * exact


def test_hardly_any_noise_has_a_large_bound_and_not_a_large_array():
    rates, ratios = np.array([0.2, 0.2, 0.2, 1.0]), np.array([1.0, 39.9, 40.1, 1e6])
    found = privacy.sampled_divergence(rates, ratios)
    assert (np.diff(found, axis=1) >= -1e-9 * found[:, 1:]).all()  # divergences grow with the order
    assert (found[1] <= found[2]).all()
    assert found[0] == pytest.approx(privacy.sampled_divergence(rates[:1], ratios[:1])[0])
    assert (found[3] >= privacy.ORDERS * 1e12 / 2 * (1 - 1e-9)).all()
