"""Predicted against measured, for pairs of (preset, upload step), (preset, clock feature) and (preset, channel)."""

import numpy as np
import pytest

from fl_lightning import algorithm as preset
from fl_lightning.algorithms import Algorithm
from fl_lightning.callbacks import ChannelFailures
from fl_lightning.callbacks.channels import GilbertElliott, GroupFailures
from fl_lightning.diagnosis.dry_run import bounded_parts, unknown_parts
from fl_lightning.system import Clock, DayNight, OnOff
from fl_lightning.types import Conditions
from fl_lightning.uploads import Quantized, RandomK, Signs, TopK
from reference.played_rounds import distance, measured, played_planner, predicted

PRESETS = (
    *(
        "fedavg",
        "uniform",
        "full",
        "cafedavg",
        "cafednova",
        "fednova",
        "schemec",
        "fedacs",
        "limitedfedacs",
        "workaware",
    ),
    *("varianceoptimal", "fedvarp", "mifa", "fedstale", "fedavgm", "scaffold", "fedacscv"),
)
ROUNDS, SKIP, EXACT, BOUNDED = 4000, 400, 0.08, 0.25


def system_of(name: str) -> tuple[list[Conditions], np.ndarray]:
    """Two federations of six clients: one whose work and links are fixed, and one in which both change."""
    rng = np.random.default_rng(11)
    weights = rng.dirichlet(np.full(6, 5.0))
    low, rates = np.array([2, 3, 5, 8, 10, 12]), np.array([0.4, 0.3, 0.3, 0.2, 0.1, 0.05])
    if name == "fixed":
        return [Conditions(low, rates)] * 16, weights
    rounds = [Conditions(low + rng.integers(0, 5, 6), rates * rng.uniform(0.7, 1.3, 6)) for _ in range(96)]
    return rounds, weights


UPLOADS = {
    "quantised": lambda: [Quantized(6)],
    "random-k": lambda: [RandomK(0.5)],
    "top-k with feedback": lambda: [TopK(0.5)],
    "signs with feedback": lambda: [Signs()],
}
CLOCKS = {
    "deadline": lambda: Clock(deadline=13.5, jitter=0.2),
    "take first": lambda: Clock(take_first=2, latency=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    "day and night": lambda: Clock(availability=DayNight(0.6, 0.3, 12, 2)),
    "on and off": lambda: Clock(availability=OnOff(4.0, [1.0, 2.0, 3.0, 4.0, 2.0, 6.0])),
}
CHANNELS = {
    "independent": lambda: ChannelFailures("independent"),
    "bursts": lambda: GilbertElliott(4.0),
    "groups": lambda: GroupFailures(2, 0.8),
}


def check(name: str, system: str, clock=None, channel=None, uploads=()) -> None:
    conditions, weights = system_of(system)
    planner = played_planner(conditions, weights, None if clock is None else clock(), channel=channel and channel())
    made = preset(name, clients_per_round=3)
    parts = {field: getattr(made, field) for field in ("sampling", "aggregator", "solver", "calibration")}
    algorithm = Algorithm(**parts, max_local_steps=made.max_local_steps, uploads=uploads)
    assert not unknown_parts(algorithm)
    found = measured(algorithm, planner, ROUNDS, SKIP)
    said = predicted(algorithm, planner).effective_weights
    limit = BOUNDED if bounded_parts(algorithm, planner.system) else EXACT
    assert distance(found, said) < limit, (found.round(3), said.round(3))


@pytest.mark.slow
@pytest.mark.parametrize("system", ["fixed", "changing"])
@pytest.mark.parametrize("step", UPLOADS)
@pytest.mark.parametrize("name", PRESETS)
def test_presets_with_upload_steps(name, step, system):
    check(name, system, uploads=UPLOADS[step]())


@pytest.mark.slow
@pytest.mark.parametrize("system", ["fixed", "changing"])
@pytest.mark.parametrize("feature", CLOCKS)
@pytest.mark.parametrize("name", PRESETS)
def test_presets_with_clock_features(name, feature, system):
    check(name, system, clock=CLOCKS[feature])


@pytest.mark.slow
@pytest.mark.parametrize("system", ["fixed", "changing"])
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("name", PRESETS)
def test_presets_with_channels(name, channel, system):
    check(name, system, channel=CHANNELS[channel])
