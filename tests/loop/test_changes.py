"""What a callback changes in a running loop: applied from the next round on, or refused."""

import pytest
import torch

from fl_lightning import FederatedLoop
from fl_lightning.engine import Engine
from fl_lightning.server import CosineRate
from fl_lightning.server.averaging import NoAverage
from fl_lightning.solvers import SGD
from made import made_loop
from systems import gaussian_federation, linear_module


class Changes:
    """Does something after some round."""

    def __init__(self, change, after=2):
        self.change, self.after = change, after

    def on_round_end(self, loop, result):
        if result.plan.index == self.after:
            self.change(loop)


def halve(loop):
    loop.lr *= 0.5


def played(callbacks=(), rounds=5, **settings):
    settings = {"lr": 0.08, "batch_size": 4, "averaging": NoAverage()} | settings
    return made_loop(rounds=rounds, callbacks=callbacks, **settings)


def test_a_learning_rate_that_a_callback_sets_holds_from_the_next_round_on():
    loop = played([Changes(halve)])
    changed = loop.run(linear_module(), gaussian_federation())
    rates = changed.history.column("learning_rate")
    plain = played().run(linear_module(), gaussian_federation())
    before = plain.history.column("learning_rate")
    assert rates[:2] == before[:2]
    assert rates[2:] == pytest.approx([0.5 * rate for rate in before[2:]])
    assert not torch.equal(changed.weights, plain.weights)
    again = loop.run(linear_module(), gaussian_federation())  # a second run starts anew
    assert again.history.column("learning_rate") == rates


def test_it_is_a_factor_on_a_schedule_of_rates():
    rates = [
        played(callbacks, lr_schedule=CosineRate()).run(linear_module(), gaussian_federation()).history
        for callbacks in ([Changes(halve)], [])
    ]
    first, second = (each.column("learning_rate") for each in rates)
    assert first[2:] == pytest.approx([0.5 * rate for rate in second[2:]])


def test_a_resumed_run_has_the_changed_rate():
    whole = played([Changes(halve)]).run(linear_module(), gaussian_federation())
    loop = played([Changes(halve)])
    for result in loop.iterate(linear_module(), gaussian_federation()):
        if result.plan.index == 3:
            break
    resumed = played([Changes(halve)]).run(linear_module(), gaussian_federation(), loop.state_dict())
    assert torch.equal(resumed.weights, whole.weights)
    assert "lr" not in played(rounds=1).run(linear_module(), gaussian_federation()).summary


def test_between_two_rounds_of_iterate_it_can_be_set_as_well():
    loop, rates = played(), []
    for result in loop.iterate(linear_module(), gaussian_federation()):
        rates.append(result.plan.learning_rate)
        loop.lr *= 0.1
    assert rates == pytest.approx([rates[0] * 0.1**number for number in range(5)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 8),
        ("seed", 1),
        ("rounds", 9),
        ("monitor", "test_loss"),
        ("mode", "min"),
        ("evaluate_clients", 1),
        ("engine", Engine()),
        ("algorithm", None),
        ("system", None),
        ("fabric", None),
        ("callbacks", []),
        ("module", None),
        ("federation", None),
        ("client_weights", None),
    ],
)
def test_what_a_run_has_taken_at_its_start_cannot_be_changed_during_it(name, value):
    loop = played([Changes(lambda loop: setattr(loop, name, value))])
    with pytest.raises(AttributeError, match=f"loop.{name} cannot change during a run"):
        loop.run(linear_module(), gaussian_federation())
    if name in ("batch_size", "seed", "rounds"):
        setattr(loop, name, value)  # the run is over


@pytest.mark.parametrize("lr", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(lr):
    with pytest.raises(ValueError, match=f"lr={lr} must be a positive number"):
        played([Changes(lambda loop: setattr(loop, "lr", lr))]).run(linear_module(), gaussian_federation())


def test_the_rate_of_a_module_is_its_own():
    loop = played([Changes(lambda loop: setattr(loop, "lr", 0.1))], solver="module", lr=None)
    with pytest.raises(AttributeError, match="which the module's optimizer has"):
        loop.run(linear_module(), gaussian_federation())


def test_a_callback_that_comes_during_a_run_is_refused():
    with pytest.raises(ValueError, match="callbacks have changed during a run"):
        played([Changes(lambda loop: loop.callbacks.append(Changes(halve)))]).run(
            linear_module(), gaussian_federation()
        )


def test_what_is_read_in_each_round_may_be_changed():
    loop = played([Changes(lambda loop: setattr(loop, "evaluate_every", 2), after=1)])
    history = loop.run(linear_module(), gaussian_federation()).history
    assert ["test_accuracy" in row for row in history] == [True, True, False, True, True]
    assert isinstance(loop, FederatedLoop)


def test_a_solver_that_is_changed_has_another_accumulation():
    solver = SGD()
    loop = played([Changes(lambda loop: setattr(solver, "momentum", 0.9))], solver=solver)
    lengths = loop.run(linear_module(), gaussian_federation()).history.column("step_length")
    assert lengths[0] == lengths[1] < lengths[2] == lengths[4]
    solver.proximal = 0.5
    assert solver.depends_on_learning_rate
