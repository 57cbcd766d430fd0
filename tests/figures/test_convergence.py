"""The vectorised toy is the federated loop, and ends where the theory says."""

import numpy as np
import pytest

from fl_lightning import theory
from fl_lightning.aggregators import CommunicationAware
from fl_lightning.algorithms import System
from fl_lightning.callbacks import ChannelFailures, HeterogeneitySchedule, SamplerSelection
from fl_lightning.callbacks.schedule import Group, Ramp
from fl_lightning.data import Quadratic
from fl_lightning.figures.convergence import predict, simulate
from fl_lightning.loop import FederatedLoop
from fl_lightning.module import QuadraticModule
from fl_lightning.planning import Planner
from fl_lightning.samplers import HeterogeneityAware, Importance, Systematic, WithReplacement
from fl_lightning.server.rates import Calibration
from fl_lightning.solvers import SGD
from made import made_planner

STATIC = HeterogeneitySchedule(num_steps=Ramp(1, 30), failure_rates=Ramp(0.01, 0.3))
DYNAMIC = HeterogeneitySchedule(groups=[Group(0.5, (1, 10), (0.2, 0.4)), Group(0.5, (20, 30), (0.0, 0.2))])
W = np.full(30, 1 / 30)


def variant(sampler=None, solver=None, schedule=STATIC, calibration=None, aggregator=None, drawing=None, lr=0.001):
    return made_planner(
        sampling=SamplerSelection(sampler or Importance(), 15, drawing or WithReplacement()),
        aggregator=aggregator,
        solver=solver,
        calibration=calibration or Calibration(apply="local"),
        schedule=schedule,
        channel=ChannelFailures(),
        weights=W,
        learning_rate=lr,
    )


class Path:
    def __init__(self):
        self.points = []

    def on_round_end(self, loop, result):
        self.points.append(loop.state.weights.numpy().astype(np.float64))


def played_by_the_loop(made: Planner, seed: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances of the model and of its running average, by real training."""
    path = Path()
    federation = Quadratic().load(seed)
    loop = FederatedLoop(
        made.algorithm,
        System(schedule=made.system.schedule, channel=made.system.channel, weights="uniform"),
        rounds=rounds,
        lr=made.learning_rate,
        batch_size=1,
        callbacks=[path],
        seed=seed,
    )
    loop.run(QuadraticModule(start=1.0), federation)
    points, optimum = np.array(path.points), W @ federation.targets
    averages = np.cumsum(points, axis=0) / np.arange(1, rounds + 1)[:, None]
    return np.linalg.norm(points - optimum, axis=1), np.linalg.norm(averages - optimum, axis=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": SGD(momentum=0.3)},
        {"solver": SGD(decay=0.005), "schedule": DYNAMIC},
        {"sampler": HeterogeneityAware()},
        {"sampler": HeterogeneityAware(), "schedule": DYNAMIC},
        {"sampler": HeterogeneityAware(), "schedule": DYNAMIC, "calibration": Calibration("average", "local")},
        {"sampler": HeterogeneityAware(), "solver": SGD(proximal=1.0), "lr": 0.01},
        {"sampler": HeterogeneityAware(), "calibration": Calibration(apply="server"), "drawing": Systematic()},
        {"aggregator": CommunicationAware(), "schedule": DYNAMIC, "lr": 0.01},
    ],
)
def test_the_simulation_is_the_loop_round_by_round(settings):
    made, seed, rounds = variant(**settings), 3, 25
    (curves,) = simulate({"x": made}, Quadratic().load(seed).targets[None], [seed], rounds, start=1.0)
    distance, average = played_by_the_loop(made, seed, rounds)
    np.testing.assert_allclose(curves.distance[0], distance, atol=1e-5)
    np.testing.assert_allclose(curves.average[0], average, atol=1e-5)
    assert distance[-1] < distance[0] - 0.1  # something happened


def test_variants_and_seeds_played_together_are_those_played_alone():
    makes = [variant(), variant(solver=SGD(momentum=0.3)), variant(HeterogeneityAware())]
    seeds = [0, 5]
    targets = np.stack([Quadratic().load(seed).targets for seed in seeds])
    together = simulate(dict(enumerate(makes)), targets, seeds, 12)
    for place, made in enumerate(makes):
        for row, seed in enumerate(seeds):
            (alone,) = simulate({"x": made}, targets[row : row + 1], [seed], 12)
            np.testing.assert_allclose(together[place].distance[row], alone.distance[0], rtol=1e-12)


# Mean bias over many draws of the targets: E |sum_m d_m e_m| = |d| times the mean length of a normal vector.
REFERENCE = {
    "sgd": (SGD(), 0.2706),
    "proximal": (SGD(proximal=1.0), 0.2690),
    "decay": (SGD(decay=0.005), 0.2627),
    "momentum": (SGD(momentum=0.3), 0.2793),
}


@pytest.mark.parametrize("name", REFERENCE)
def test_predicted_bias_of_fedavg_is_the_reference(name):
    solver, expected = REFERENCE[name]
    targets = np.random.default_rng(0).standard_normal((400, 30, 10))
    assert predict(variant(solver=solver), targets).bias.mean() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("scope", "expected"), [("none", 0.0024), ("round", 0.0043)])
def test_predicted_bias_of_fedacs_is_the_reference(scope, expected):
    targets = np.random.default_rng(0).standard_normal((400, 30, 10))
    made = variant(HeterogeneityAware(), calibration=Calibration(scope, "local"))
    assert predict(made, targets).bias.mean() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("schedule", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_predicted_noise_is_that_of_the_simulation(schedule):
    # A large learning rate forgets its start in a few rounds, so that 160 rounds of 16 seeds are a sample.
    seeds = list(range(16))
    targets = np.stack([Quadratic().load(seed).targets for seed in seeds])
    made = variant(HeterogeneityAware(), schedule=schedule, lr=0.01)
    (curves,) = simulate({"x": made}, targets, seeds, 160)
    measured = np.sqrt((curves.distance[:, 50:] ** 2).mean())
    predicted = np.sqrt((predict(made, targets).distance ** 2).mean())
    assert measured == pytest.approx(predicted, rel=0.06)


def test_noise_floors_of_the_static_toy():
    targets = np.random.default_rng(1).standard_normal((200, 30, 10))
    for scope, floor in (("none", 0.0767), ("round", 0.1017)):
        made = variant(HeterogeneityAware(), calibration=Calibration(scope, "local"))
        # The reference is for one draw of the targets, and a mean instead of a root mean square.
        assert predict(made, targets).distance.mean() == pytest.approx(floor, rel=0.1)
    assert predict(variant(), targets).distance.mean() == pytest.approx(0.3, rel=0.15)


def test_codesign_removes_the_bias():
    steps = np.array([2] * 20 + [3] * 10)
    design = theory.codesign(steps, np.linspace(0.01, 0.3, 30))
    fitted = HeterogeneitySchedule(num_steps=steps.tolist(), failure_rates=design.failure_rates.tolist())
    plain = HeterogeneitySchedule(num_steps=steps.tolist(), failure_rates=Ramp(0.01, 0.3))
    targets = np.random.default_rng(0).standard_normal((50, 30, 10))
    bias = [predict(variant(schedule=each), targets).bias.mean() for each in (plain, fitted)]
    assert bias[0] > 0.05
    assert bias[1] < 0.001


def test_other_solvers_are_refused():
    with pytest.raises(ValueError, match="simulated for SGD without weight decay"):
        simulate({"x": variant(solver=SGD(weight_decay=0.1))}, np.zeros((1, 30, 10)), [0], 1)
