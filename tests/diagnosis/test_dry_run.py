"""Typical rounds of real parts: what is predicted, what depends on the data, what must be known."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fl_lightning import theory
from fl_lightning.aggregators import (
    AdaptiveControlVariates,
    ControlVariates,
    NormalizedMean,
    SecureSum,
)
from fl_lightning.algorithms import Algorithm
from fl_lightning.callbacks import SamplerSelection
from fl_lightning.config import algorithm_parts as parts
from fl_lightning.config import compose as configs
from fl_lightning.diagnosis.dry_run import dry_run, typical_rounds
from fl_lightning.diagnosis.objective import diagnose
from fl_lightning.diagnosis.systems import needs_of
from fl_lightning.personal import HeadFirst, PulledModels
from fl_lightning.samplers import (
    HeterogeneityAware,
    Importance,
    NormProportional,
    PowerOfChoice,
    Sampler,
    WithReplacement,
)
from fl_lightning.server.rates import Calibration
from fl_lightning.system import Clock, Traffic
from fl_lightning.types import Conditions
from made import made_case

T = np.array([1, 3, 5, 10, 20, 30])
Q = np.array([0.45, 0.4, 0.3, 0.2, 0.1, 0.0])
W = np.array([0.1, 0.2, 0.15, 0.25, 0.1, 0.2])
STATIC = [Conditions(T, Q)] * 16


def case(algorithm, rounds=STATIC, clock=None):
    return made_case(algorithm, rounds, W, clock=clock)


def algorithm(sampler, aggregator=None, solver=None, calibration=None, drawing=None) -> Algorithm:
    sampling = SamplerSelection(sampler, 3, drawing)
    return Algorithm(sampling=sampling, aggregator=aggregator, solver=solver, calibration=calibration)


def dynamic(num_rounds=64, seed=0) -> list[Conditions]:
    rng = np.random.default_rng(seed)
    return [
        Conditions(
            rng.integers([1] * 3 + [20] * 3, [11] * 3 + [31] * 3),
            rng.uniform([0.4] * 3 + [0] * 3, [0.5] * 3 + [0.1] * 3),
        )
        for _ in range(num_rounds)
    ]


# Spec: theory of each rule, in units of w (1-q) A and so on; written out here independently of the parts.
STATED = {
    "fedavg": W * (1 - Q) * T,
    "uniform": W * (1 - Q) * T,
    "full": W * (1 - Q) * T,
    "os": W * (1 - Q) * T,
    "delta": W * (1 - Q) * T,
    "clustered": W * (1 - Q) * T,
    "cafedavg": W * T,
    "fedvarp": W * T,
    "fedau": W * T,
    "mifa": W * T,
    "fedstale": W * T,
    "fednova": W * (1 - Q),
    "fedacs": W,
    "fedacscv": W,
    "limitedfedacs": W,
    "cafednova": W,
    "scaffold": W,
    "varianceoptimal": W,
    "workaware": W,
}


def test_shipped_algorithms_are_diagnosed_as_stated():
    merged = configs.compose([])
    for name, made in parts.algorithms(merged, [n for n in STATED if n in configs.names("algorithms")], []):
        result = diagnose(name, W, typical_rounds(case(made)))
        np.testing.assert_allclose(result.effective_weights, STATED[name] / STATED[name].sum(), atol=1e-6, err_msg=name)


def test_greedy_selection_depends_on_the_data():
    for name, made in parts.algorithms(configs.compose([]), ["divfl", "hics", "powerofchoice", "median"], []):
        assert typical_rounds(case(made)) is None, name


def test_norms_that_are_not_undone_depend_on_the_data():
    assert typical_rounds(case(algorithm(NormProportional(reweight=False)))) is None
    assert typical_rounds(case(algorithm(NormProportional()))) is not None


def test_fedacs_keeps_the_objective_in_every_round_of_a_dynamic_system():
    for each in dry_run(case(algorithm(HeterogeneityAware()), dynamic())):
        amounts = theory.contribution(each.probabilities, each.failure_rates, each.coefficients, each.accumulation)
        np.testing.assert_allclose(theory.effective_weights(amounts), W)


def test_mean_knowledge_is_consistent_over_rounds_but_not_in_one():
    result = diagnose(
        "mean", W, dry_run(case(algorithm(HeterogeneityAware("mean"), calibration=Calibration("none")), dynamic()))
    )
    assert result.distance < 0.02
    assert result.round_chi_square > 0.05


@pytest.mark.parametrize("knowledge", ["instant", "mean"])
def test_limited_work_keeps_the_objective_with_less_variance_and_less_work(knowledge):
    free = algorithm(HeterogeneityAware(knowledge))
    limits = [None, 12, 6, 3, 1]
    found = [diagnose("", W, dry_run(case(replace(free, max_local_steps=limit), dynamic()))) for limit in limits]
    assert all(each.distance < 0.02 for each in found)
    for looser, tighter in pairwise(found):
        assert tighter.work < looser.work
        assert tighter.variance < looser.variance
    # One step each: the factor is that of drawing with p ~ w / (1-q), whatever T is.
    rates = np.stack([each.failure_rates for each in dynamic()])
    if knowledge == "instant":
        assert found[-1].variance == pytest.approx(float((W / (1 - rates)).sum(axis=1).mean()))


def test_limited_clients_meet_a_deadline_that_they_would_miss():
    clock = Clock(deadline=10.5)
    system = dynamic()
    clock.setup(len(W), 0, case(algorithm(HeterogeneityAware()), system).raw_profiles, Traffic())
    late, limited = (
        diagnose("", W, dry_run(case(replace(algorithm(HeterogeneityAware()), max_local_steps=limit), system, clock)))
        for limit in (None, 10)
    )
    assert late.effective_weights[3:].max() < 1e-6  # 20 to 30 steps of a second each
    assert limited.distance < 1e-6


def test_expected_work_counts_a_client_that_is_drawn_twice_once():
    (each, *_) = dry_run(case(algorithm(Importance(), drawing=WithReplacement())))
    counts = np.random.default_rng(0).multinomial(3, W, size=200_000)
    assert each.work == pytest.approx(((counts > 0) @ T).mean(), rel=0.01)


def test_work_of_clients_that_are_asked_is_charged():
    (each, *_) = dry_run(case(algorithm(NormProportional("exact"))))
    assert each.work + each.questions == pytest.approx(T.sum())
    (each, *_) = dry_run(case(algorithm(NormProportional("first_gradient"))))
    assert each.questions == len(W)


def test_work_for_personal_models_is_counted():
    plain = dry_run(case(algorithm(Importance())))[0]
    own, heads = (
        dry_run(case(replace(algorithm(Importance()), personal=each)))[0] for each in (PulledModels(), HeadFirst(3))
    )
    assert own.work == pytest.approx(2 * plain.work)
    assert plain.work < heads.work < plain.work + 3 * plain.num_draws + 1e-9
    assert np.array_equal(own.probabilities, plain.probabilities)


def test_a_dry_run_leaves_the_parts_as_they_are():
    made = algorithm(PowerOfChoice())
    dry_run(case(made), learn=True)
    assert not len(made.sampling.sampler.selected)


def test_estimated_knowledge_is_learned_from_made_up_uploads():
    made = algorithm(HeterogeneityAware("estimated"))
    long = case(made, STATIC * 40)
    first, last = (diagnose("x", W, part) for part in (dry_run(long, learn=True)[:5], dry_run(long, learn=True)[-300:]))
    assert last.distance < first.distance / 2


def needs(planner):
    return needs_of(planner, dry_run(planner, num_rounds=1)[0])


@pytest.mark.parametrize(
    ("made", "before", "with_upload", "has_memory"),
    [
        (algorithm(Importance()), (), (), False),
        (algorithm(HeterogeneityAware()), ("q", "work"), (), False),
        (algorithm(Importance(), NormalizedMean()), (), ("work",), False),
        (algorithm(Importance(), ControlVariates()), (), (), True),
        (algorithm(HeterogeneityAware(), SecureSum(1.0)), ("q", "work"), (), False),
        (algorithm(HeterogeneityAware(corrects="links"), NormalizedMean()), ("q",), ("work",), False),
        (algorithm(HeterogeneityAware(), AdaptiveControlVariates()), ("q", "work"), (), True),
        (algorithm(NormProportional()), ("answers",), (), False),
    ],
)
def test_what_must_be_known_is_found_from_the_parts(made, before, with_upload, has_memory):
    found = needs(case(made))
    assert (found.before_draw, found.with_upload, bool(found.memory)) == (before, with_upload, has_memory)


class LinksOnly(Sampler):
    """A sampler of a user's own."""

    def probabilities(self, profiles, num_draws):
        shares = profiles.weights / (1 - profiles.failure_rates)
        return shares / shares.sum()


def test_parts_of_a_users_own_are_diagnosed_too():
    made = algorithm(LinksOnly())
    assert needs(case(made)).before_draw == ("q",)
    result = diagnose("own", W, typical_rounds(case(made)))
    np.testing.assert_allclose(result.effective_weights, W * T / (W @ T))


def test_names_and_q_are_needed_by_communication_aware_aggregation():
    for name, made in parts.algorithms(configs.compose([]), ["cafedavg", "cafednova"], []):
        wanted = ("q", "name") if name == "cafedavg" else ("q", "work", "name")
        assert needs(case(made)).with_upload == wanted
