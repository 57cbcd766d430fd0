"""A second run starts anew: the loop, and everything in it that learns or counts."""

import pytest
import torch
from torch import nn

from fl_lightning import algorithm
from fl_lightning.callbacks import ComputationTime, HeterogeneitySchedule, StopAtTarget
from fl_lightning.config import compose as configs
from fl_lightning.module import FederatedModule
from fl_lightning.parts.memory import Remembers
from fl_lightning.uploads import GaussianMechanism
from fl_lightning.uploads.noise import Noise
from made import made_loop
from systems import PAPER_GROUPS, gaussian_federation


def two_layers():
    torch.manual_seed(0)
    return FederatedModule(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), 3)


def made(parts, **settings):
    schedule = HeterogeneitySchedule(groups=PAPER_GROUPS)
    return made_loop(parts, **({"rounds": 4, "lr": 0.05, "schedule": schedule, "batch_size": 4} | settings))


def run(loop, **arguments):
    return loop.run(two_layers(), gaussian_federation(), **arguments)


@pytest.mark.parametrize("name", configs.names("algorithms"))
def test_a_second_run_is_like_the_first_for_every_algorithm(name):
    loop = made(algorithm(name, 3))
    for step in loop.algorithm.uploads.steps:
        if isinstance(step, GaussianMechanism):
            step.noise = Noise(0)  # a secret key is drawn anew in each run
    first, second = run(loop), run(loop)
    assert len(first.history) == len(second.history) == 4
    assert not torch.equal(second.weights, torch.cat([p.detach().reshape(-1) for p in two_layers().parameters()]))
    assert torch.equal(first.weights, second.weights)


@pytest.mark.parametrize("name", ["scaffold", "hics", "fedadam"])
def test_parts_that_were_in_another_loop_start_anew_as_well(name):
    parts = algorithm(name, 3)
    assert torch.equal(run(made(parts)).weights, run(made(parts)).weights)


def test_callbacks_count_anew():
    times = ComputationTime()
    loop = made(None, callbacks=[times])
    first = run(loop).history[-1]["local_steps"]
    assert run(loop).history[-1]["local_steps"] == times.local_steps == first


def test_a_run_that_was_stopped_early_does_not_stop_the_next():
    loop = made(None, callbacks=[StopAtTarget(0.0)])
    assert len(run(loop).history) == 1
    loop.callbacks.pop()
    assert len(run(loop).history) == 4


def test_a_pause_is_granted_once():
    loop = made(None)
    loop.interrupted = True
    assert len(run(loop).history) == 0
    assert len(run(loop).history) == 4


def test_a_run_that_resumes_keeps_what_was_learned():
    whole = run(made(algorithm("scaffold", 3)))
    loop = made(algorithm("scaffold", 3))
    for result in loop.iterate(two_layers(), gaussian_federation()):
        if result.plan.index == 2:
            break
    resumed = run(loop, resume_from=loop.state_dict())
    assert torch.equal(resumed.weights, whole.weights)
    assert [row["round"] for row in resumed.history] == [1, 2, 3, 4]


def test_only_what_is_named_as_memory_is_forgotten():
    class Counter(Remembers):
        memory = ("count", "inner")

        def __init__(self, inner=None):
            self.count, self.kept, self.inner = [], [], inner

    inner = Counter()
    part = Counter(inner)
    part.start_anew()
    for each in (part, inner):
        each.count.append(1)
        each.kept.append(1)
    part.start_anew()
    assert (part.count, inner.count, part.kept, part.inner) == ([], [], [1], inner)
    part.count.append(2)
    part.start_anew()
    assert part.count == []
