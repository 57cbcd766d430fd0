"""Distinct clients drawn one after another: what is said of them is what is drawn."""

import numpy as np
import pytest

from fl_lightning.aggregators import AnonymousMean, CommunicationAware
from fl_lightning.algorithms import Algorithm
from fl_lightning.callbacks import SamplerSelection
from fl_lightning.cli.main import main
from fl_lightning.samplers import HeterogeneityAware, Importance, Successive, Systematic, VarianceOptimal
from fl_lightning.server import Calibration
from fl_lightning.system import Clock, OnOff
from fl_lightning.types import Conditions
from made import made_planner
from reference.played_rounds import distance, measured, played_planner, predicted

P = np.array([0.05, 0.1, 0.0, 0.3, 0.15, 0.25, 0.15])


def paper_rounds(number, rng=None):
    rng = rng or np.random.default_rng(5)
    return [
        Conditions(
            np.concatenate([rng.integers(1, 11, 10), rng.integers(20, 31, 10)]),
            np.concatenate([rng.uniform(0.4, 0.5, 10), rng.uniform(0.0, 0.1, 10)]),
        )
        for _ in range(number)
    ]


def algorithm(sampler=None, drawing=None, calibration=None, aggregator=None):
    return Algorithm(
        sampling=SamplerSelection(sampler or HeterogeneityAware(), 0.3, Successive() if drawing is None else drawing),
        aggregator=aggregator or AnonymousMean(),
        calibration=calibration or Calibration(),
    )


def test_draws_are_distinct_and_as_frequent_as_their_shares():
    rng, drawing, rounds = np.random.default_rng(7), Successive(), 20_000
    counts = np.array([drawing(P, 3, rng) for _ in range(rounds)])
    assert counts.dtype == np.int64
    assert set(np.unique(counts)) == {0, 1}
    assert (counts.sum(axis=1) == 3).all()
    inclusion = 3 * drawing.shares(P, 3)
    assert np.abs(counts.mean(axis=0) - inclusion).max() < 5 * np.sqrt(0.25 / rounds)
    assert np.abs(counts.mean(axis=0) - 3 * P).max() > 0.05  # not those of K p
    table = drawing.distribution(drawing.shares(P, 3), 3)
    assert table[:, 1] == pytest.approx(inclusion)
    assert table.sum(axis=1) == pytest.approx(1)


def test_the_objective_of_fedacs_in_the_setting_of_the_paper_is_what_rounds_descend():
    w = np.full(20, 0.05)
    planner = played_planner(paper_rounds(256), w)
    nominal = algorithm(calibration=Calibration(apply="local", shares="nominal"))
    said = predicted(nominal, planner)
    assert said.effective_weights[:10].sum() == pytest.approx(0.43, abs=0.005)  # 0.5 with Systematic
    assert said.work == pytest.approx(41.4, abs=1)
    slow = measured(nominal, planner, 1500)[:10].sum()
    assert distance(np.array([slow, 1 - slow]), [0.43, 0.57]) < 0.02
    assert predicted(algorithm(drawing=Systematic()), planner).distance < 1e-9


def test_omega_of_a_round_is_that_of_its_draws_client_by_client():
    conditions, w, rounds = paper_rounds(1)[0], np.full(20, 0.05), 60_000
    sampling, rng = SamplerSelection(HeterogeneityAware(), 0.3, Successive()), np.random.default_rng(3)
    planner = made_planner(sampling=sampling, weights=w, learning_rate=0.02)
    plan = planner.undrawn(planner.profiles(conditions))
    counts = sum(sampling.configure_cohort(plan.cohort, rng).counts for _ in range(rounds))
    amounts = counts * (1 - conditions.failure_rates) * conditions.num_steps
    omega = plan.expected.contribution / plan.expected.step_length
    assert distance(amounts / amounts.sum(), omega) < 0.02
    assert distance(omega, w) > 0.1
    assert plan.expected.step_length == pytest.approx(amounts.sum() / rounds / 6, rel=0.01)
    assert plan.cohort.inclusion == pytest.approx(counts / rounds, abs=0.01)


@pytest.mark.parametrize("sampler", [VarianceOptimal(), Importance()])
def test_samplers_that_reweight_and_equal_probabilities_stay_consistent(sampler):
    w = np.full(20, 0.05)
    conditions = paper_rounds(60)
    if isinstance(sampler, Importance):
        conditions = [Conditions(np.full(20, 5), each.failure_rates) for each in conditions]
    corrected = CommunicationAware() if isinstance(sampler, Importance) else AnonymousMean()
    assert predicted(algorithm(sampler, aggregator=corrected), played_planner(conditions, w)).distance < 1e-6


def test_calibration_by_nominal_shares_is_the_formula_of_the_paper():
    conditions, w = paper_rounds(1)[0], np.full(20, 0.05)
    rate = (1 - conditions.failure_rates) * conditions.num_steps
    lengths = {}
    for shares in ("drawn", "nominal"):
        settings = {"calibration": Calibration(apply="local", shares=shares), "drawing": Successive()}
        planner = made_planner(
            sampling=SamplerSelection(HeterogeneityAware(), 0.3, settings["drawing"]),
            calibration=settings["calibration"],
            weights=w,
            learning_rate=0.02,
        )
        plan = planner.plan(1, conditions)
        lengths[shares] = plan.learning_rate * plan.expected.step_length
        if shares == "nominal":  # eta_2 of the paper's appendix
            assert plan.learning_rate == pytest.approx(0.02 * (w @ rate) * (w @ (1 / rate)))
    assert lengths["drawn"] == pytest.approx(0.02 * (w @ rate))
    assert lengths["nominal"] > 1.15 * lengths["drawn"]
    with pytest.raises(ValueError, match="shares='paper'"):
        Calibration(shares="paper")


def test_absent_clients_are_replaced_and_a_correction_is_refused():
    with pytest.raises(ValueError, match="absent='corrected' needs draws with E\\[n\\] = K p, which Successive"):
        SamplerSelection(HeterogeneityAware(), 2, Successive(), absent="corrected")
    w = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    clock = Clock(availability=OnOff(4.0, [2.0, 2.0, 3.0, 4.0, 2.0]))
    conditions = [Conditions(np.array([1, 2, 10, 5, 3]), np.array([0.5, 0.1, 0.0, 0.3, 0.0]))]
    own = Algorithm(sampling=SamplerSelection(HeterogeneityAware(), 2, Successive()))
    planner = played_planner(conditions, w, clock)
    assert distance(measured(own, planner, 1200), predicted(own, planner).effective_weights) < 0.1


def test_diagnose_says_how_much_the_slow_half_gets(tmp_path, capsys):
    command = ["diagnose", "--config", "mnist.yaml", "--algorithms", "fedacs,fedavg"]
    assert (
        main(
            [
                *command,
                "--picture",
                str(tmp_path / "a.png"),
                "--loop.sampling.drawing",
                "fl_lightning.samplers.Successive",
            ]
        )
        == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "Nearest: fedacs, at distance 0.14" in said
    assert "clients 0-9 carry 50 % of the weight and 43 % of its objective" in said
