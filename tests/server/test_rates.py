"""Learning rates over the rounds: a factor before calibration, a function of the round alone."""

import numpy as np
import pytest
import torch

from fl_lightning import algorithm
from fl_lightning.callbacks import HeterogeneitySchedule
from fl_lightning.cli.main import main
from fl_lightning.server.rates import CosineRate, RateSchedule, StepRate, TorchRate
from made import made_loop
from systems import PAPER_GROUPS, gaussian_federation, linear_module


def made(lr_schedule, name="fedacs", **settings):
    schedule = HeterogeneitySchedule(groups=PAPER_GROUPS)
    settings = {"rounds": 6, "lr": 0.05, "batch_size": 4} | settings
    return made_loop(algorithm(name, 3), schedule=schedule, lr_schedule=lr_schedule, **settings)


def run(loop, **arguments):
    return loop.run(linear_module(), gaussian_federation(), **arguments)


@pytest.mark.parametrize("name", ["fedavg", "fedacs", "workaware"])
def test_the_factor_multiplies_the_calibrated_rate(name):
    constant, falling = run(made(None, name)), run(made(StepRate(every=2, gamma=0.5), name))
    for column in ("learning_rate", "step_length"):
        ratio = np.array(falling.history.column(column)) / np.array(constant.history.column(column))
        if (name, column) != ("workaware", "learning_rate"):  # calibrates on the server
            np.testing.assert_allclose(ratio, [1, 1, 0.5, 0.5, 0.25, 0.25], rtol=1e-9)


def test_a_constant_schedule_changes_no_bit():
    assert torch.equal(run(made(None)).weights, run(made(RateSchedule())).weights)
    assert torch.equal(run(made(None)).weights, run(made(TorchRate("ConstantLR", {"factor": 1.0}))).weights)


@pytest.mark.parametrize("name", ["fedacs", "fedprox"])
@pytest.mark.parametrize("schedule", [CosineRate(warm_up=2), TorchRate("StepLR", {"step_size": 2})])
def test_a_resumed_run_has_the_same_rates(schedule, name):
    whole = run(made(schedule, name))
    loop = made(schedule, name)
    for result in loop.iterate(linear_module(), gaussian_federation()):
        if result.plan.index == 3:
            break
    resumed = run(made(schedule, name), resume_from=loop.state_dict())
    assert torch.equal(whole.weights, resumed.weights)
    assert whole.history.column("learning_rate") == resumed.history.column("learning_rate")


def test_torch_schedulers_by_name_are_what_torch_gives():
    cases = (("CosineAnnealingLR", {"T_max": 10}), ("LinearLR", {}), ("MultiStepLR", {"milestones": [2, 4]}))
    for name, options in cases:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        reference = getattr(torch.optim.lr_scheduler, name)(optimizer, **options)
        rates = []
        for _ in range(6):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            reference.step()
        schedule = TorchRate(name, options)
        assert [schedule.factor(number, 6) for number in (3, 1, 6, 2, 5, 4)] == [rates[i] for i in (2, 0, 5, 1, 4, 3)]


def test_wrong_schedules_are_refused():
    for bad, message in (
        (lambda: TorchRate("ReduceLROnPlateau"), "depends on the round alone: use LambdaLR"),
        (lambda: TorchRate("Nothing"), "scheduler='Nothing'"),
        (lambda: TorchRate("StepLR", {"size": 2}), "StepLR does not take options"),
        (lambda: StepRate(every=0), "every=0"),
        (lambda: CosineRate(final=-1), "final=-1"),
    ):
        with pytest.raises(ValueError, match=message):
            bad()
    with pytest.raises(ValueError, match=r"learning rate of round 3 is 0: lr_schedule must stay above 0"):
        run(made(TorchRate("LinearLR", {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 2})))


def test_the_command_line_takes_a_schedule(tmp_path):
    arguments = ["--loop.rounds", "3", "--logger", "none", "--run_dir", str(tmp_path / "run")]
    chosen = ["--loop.lr_schedule", "fl_lightning.server.StepRate", "--loop.lr_schedule.every", "1"]
    assert main(["train", "--config", "toy_fedavg.yaml", *arguments, *chosen]) == 0
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    place = rows[0].split(",").index("learning_rate")
    np.testing.assert_allclose([float(row.split(",")[place]) for row in rows[1:]], [1e-3, 1e-4, 1e-5])
