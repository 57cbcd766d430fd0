"""The maths of a diagnosis against the theory's functions and the reference numbers."""

import numpy as np
import pytest

from fl_lightning import theory
from fl_lightning.diagnosis.objective import (
    Needs,
    TypicalRound,
    class_shares,
    diagnose,
    distortion,
    number_ranges,
    recommend,
    soonest,
)

T = np.array([1.0, 3, 5, 10, 20, 30])
Q = np.array([0.45, 0.4, 0.3, 0.2, 0.1, 0.0])
W = np.array([0.1, 0.2, 0.15, 0.25, 0.1, 0.2])


def played(probabilities, coefficients=1.0, **settings) -> TypicalRound:
    return TypicalRound(
        failure_rates=Q,
        accumulation=T,
        probabilities=np.asarray(probabilities),
        coefficients=np.full(6, 1.0) * coefficients,
        **settings,
    )


def test_one_round_agrees_with_the_theory():
    result = diagnose("fedavg", W, [played(W, work=7.0, questions=2.0)])
    amounts = theory.contribution(W, Q, 1.0, T)
    omega = theory.effective_weights(amounts)
    np.testing.assert_allclose(result.effective_weights, omega)
    assert result.chi_square == pytest.approx(theory.chi_square(W, omega))
    assert result.round_chi_square == pytest.approx(result.chi_square)
    assert result.variance == pytest.approx(theory.variance_factor(omega, W, Q))
    assert result.distance == pytest.approx(np.abs(omega - W).sum())
    assert (result.favoured, result.forgotten) == (int(np.argmax(omega / W)), int(np.argmin(omega / W)))
    assert result.work == 9.0
    assert result.step_length == pytest.approx(1.0)


def test_variance_times_work_is_least_for_the_work_aware_law_and_known_for_fedacs():
    best = theory.work_aware_probabilities(W, Q, T)
    factors = theory.consistent_coefficients(W, best, Q, T)
    workaware = diagnose("workaware", W, [played(best, factors)])
    fedacs = diagnose("fedacs", W, [played(theory.heterogeneity_aware_probabilities(W, Q, T))])
    least = (W * np.sqrt(T / (1 - Q))).sum() ** 2
    assert workaware.variance * (best @ T) == pytest.approx(least)
    assert fedacs.variance * (theory.heterogeneity_aware_probabilities(W, Q, T) @ T) == pytest.approx(
        (W @ T) * (W @ (1 / (1 - Q)))
    )
    assert workaware.consistent
    assert fedacs.consistent


def test_rounds_are_averaged_by_the_length_of_their_calibrated_steps():
    long, short = (
        played(W, scale=3.0),
        TypicalRound(
            failure_rates=Q,
            accumulation=T[::-1].copy(),
            probabilities=W,
            coefficients=np.ones(6),
            scale=0.5,
        ),
    )
    result = diagnose("x", W, [long, short])
    expected = 3.0 * W * (1 - Q) * T + 0.5 * W * (1 - Q) * T[::-1]
    np.testing.assert_allclose(result.effective_weights, expected / expected.sum())


def test_a_wanted_client_that_is_never_drawn_makes_chi_square_infinite():
    result = diagnose("x", W, [played([0, 0.2, 0.2, 0.2, 0.2, 0.2])])
    assert result.chi_square == float("inf")
    assert result.forgotten == 0
    assert result.ratios[0] == 0


def test_memory_leaves_the_variance_open():
    result = diagnose("scaffold", W, [played(W)], Needs(memory="vectors"))
    assert np.isnan(result.variance)


def test_a_diagnosis_needs_a_round():
    with pytest.raises(ValueError, match="at least one typical round"):
        diagnose("x", W, [])


def drawn(name, probabilities, num_draws, needs=None):
    factors = theory.consistent_coefficients(W, probabilities, Q, T)
    work = num_draws * float(probabilities @ T)
    return diagnose(name, W, [played(probabilities, factors, work=work, num_draws=num_draws)], needs)


@pytest.mark.parametrize(("num_draws", "expected"), [(1000, "fedacs"), (1, "workaware")])
def test_the_recommendation_needs_the_fewest_local_steps_for_equal_progress(num_draws, expected):
    """Many draws have little variance, and the work decides; few draws leave variance x work."""
    fedavg = diagnose("fedavg", W, [played(W, work=num_draws * float(W @ T), num_draws=num_draws)])
    cafednova = drawn("cafednova", W, num_draws, Needs(with_upload=("q", "work", "name")))
    workaware = drawn("workaware", theory.work_aware_probabilities(W, Q, T), num_draws, Needs(("q", "work")))
    fedacs = drawn("fedacs", theory.heterogeneity_aware_probabilities(W, Q, T), num_draws, Needs(("q", "work")))
    scaffold = drawn("scaffold", W, num_draws, Needs(memory="client vectors"))
    choice = recommend([fedavg, cafednova, scaffold, workaware, fedacs])
    steps = {
        each.name: each.work * (1 + each.variance / num_draws) for each in (cafednova, workaware, fedacs)
    }  # by hand
    assert [each.name for each in choice.consistent] == sorted(steps, key=steps.__getitem__)
    assert choice.name == expected
    assert choice.cost(cafednova) == pytest.approx(steps["cafednova"] / steps[expected])
    assert choice.unknowing is scaffold


def test_averaging_leaves_less_of_the_variance_to_decide():
    workaware = drawn("workaware", theory.work_aware_probabilities(W, Q, T), 1)
    fedacs = drawn("fedacs", theory.heterogeneity_aware_probabilities(W, Q, T), 1)
    assert recommend([workaware, fedacs], share=1.0).name == "workaware"
    assert recommend([workaware, fedacs], share=0.01).name == "fedacs"


def test_clients_that_do_not_wait_are_soonest():
    waiting = diagnose("fedacs", W, [played(theory.heterogeneity_aware_probabilities(W, Q, T), seconds=9.0)])
    law = theory.consistent_coefficients(W, W, Q, T)
    stale = diagnose("fedbuff", W, [played(W, law, seconds=1.0)], Needs(memory="client models", stale=True))
    unknown = diagnose("scaffold", W, [played(W, law, seconds=0.1)], Needs(memory="client vectors"))
    assert [each.name for each in soonest([waiting, unknown, stale])] == ["fedbuff", "fedacs"]
    assert stale.variance == pytest.approx(theory.variance_factor(W, W, Q))


def test_of_equally_good_algorithms_the_one_that_needs_least_is_recommended():
    rounds = [
        TypicalRound(
            failure_rates=np.zeros(6),
            accumulation=np.full(6, 5.0),
            probabilities=W,
            coefficients=np.ones(6),
        )
    ]
    knowing, plain = diagnose("a", W, rounds, Needs(("q", "work"))), diagnose("fedavg", W, rounds)
    choice = recommend([knowing, plain])
    assert choice.name == "fedavg"
    assert choice.unknowing is None


def test_where_none_is_consistent_the_nearest_is_taken():
    fedavg = diagnose("fedavg", W, [played(W)])
    fednova = diagnose("fednova", W, [played(W, 1 / T)])
    assert recommend([fedavg, fednova]).name == "fednova"
    with pytest.raises(ValueError, match="nothing to choose from"):
        recommend([])


def test_words():
    assert number_ranges([3, 1, 2, 9]) == "1-3, 9"
    assert number_ranges([]) == ""
    assert (
        distortion("classes", [0.5, 0.5], [0.1, 0.9]) == "class 0 carries 50 % of the weight but 10 % of the objective"
    )
    assert distortion("clients", W, W) == ""
    many = np.full(100, 0.01)
    scattered = np.where(np.arange(100) % 2, 0.019, 0.001)
    assert distortion("clients", many, scattered).startswith("50 of 100 clients carry 50 %")
    np.testing.assert_allclose(class_shares([0.5, 0.5], [[10, 0], [5, 5]]), [0.75, 0.25])


def test_needs_in_words():
    assert str(Needs()) == "nothing"
    assert str(Needs(("q", "work"), ("name",), "memory")) == "q and work of all; name of uploads; memory"
    assert Needs(("q",), ("name",), "m").count == 3
