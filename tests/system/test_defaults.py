"""A loop of which only rounds and rate are said."""

import numpy as np
import pytest
import torch

from fl_lightning import algorithm
from fl_lightning.callbacks import ChannelFailures, HeterogeneitySchedule, SamplerSelection
from fl_lightning.samplers import Importance, Systematic
from fl_lightning.solvers import SGD, TorchOptimizer, as_solver
from fl_lightning.system.defaults import EqualWork
from made import made_loop
from systems import PAPER_GROUPS, gaussian_federation, linear_module


def run(**settings):
    loop = made_loop(rounds=5, lr=0.1, batch_size=5, **settings)
    return loop.run(linear_module(), gaussian_federation()), loop


def test_nothing_said_is_plain_fedavg():
    plain, loop = run()
    same, _ = run(algorithm=algorithm("fedavg"))
    steps = HeterogeneitySchedule(num_steps=3, failure_rates=0.0)  # 12 examples in batches of 5
    spelled, _ = run(
        schedule=steps, sampling=SamplerSelection(Importance(), 0.3, Systematic()), channel=ChannelFailures()
    )
    assert torch.equal(plain.weights, same.weights)
    assert torch.equal(plain.weights, spelled.weights)
    assert plain.history.column("num_delivered") == plain.history.column("num_sampled") == [2] * 5
    assert isinstance(loop.algorithm.solver, SGD)


def test_the_default_channel_keeps_the_failures_of_a_schedule():
    schedule = HeterogeneitySchedule(groups=PAPER_GROUPS)
    default, _ = run(schedule=schedule)
    spelled, _ = run(schedule=schedule, channel=ChannelFailures())
    assert torch.equal(default.weights, spelled.weights)
    assert sum(default.history.column("num_delivered")) < sum(default.history.column("num_sampled"))


def test_equal_work_is_one_pass_over_an_average_client_or_what_is_said():
    conditions = EqualWork().configure_conditions(1, np.array([1, 2, 6]), 0)
    assert conditions.num_steps.tolist() == [3, 3, 3]
    assert conditions.failure_rates.tolist() == [0, 0, 0]
    assert EqualWork(7).configure_conditions(1, np.array([1, 2]), 0).num_steps.tolist() == [7, 7]
    with pytest.raises(ValueError, match="num_steps=0"):
        EqualWork(0)


def test_optimizers_have_the_names_of_torch():
    named, _ = run(solver="SGD")
    assert torch.equal(named.weights, run()[0].weights)
    assert as_solver("Adam").obstacle == "Adam is not linear in the gradients"
    with pytest.raises(ValueError, match="solver='Sgd' is unknown"):
        as_solver("Sgd")
    with pytest.raises(ValueError, match="solver='Optimizer' is unknown"):
        as_solver("Optimizer")
    given = TorchOptimizer(torch.optim.SGD)
    assert as_solver(given) is given
