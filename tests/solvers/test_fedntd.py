"""Not-true distillation: by hand on a linear softmax, and refused where nothing is classified."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data.quadratic import QuadraticFederation
from fl_lightning.engine import Engine
from fl_lightning.module import FederatedModule, QuadraticModule
from fl_lightning.personal import PulledModels
from fl_lightning.samplers import Importance
from fl_lightning.solvers import SGD, NotTrueDistillation
from systems import gaussian_federation, linear_module, small_loop


def loop(solver, steps=4, mode="sequential", **settings):
    return small_loop(
        rounds=3,
        lr=0.5,
        batch_size=12,
        schedule=HeterogeneitySchedule(groups=[Group(1.0, (steps, steps), 0.0)]),
        sampling=SamplerSelection(Importance(), 3),
        channel=ChannelFailures(),
        callbacks=[],
        engine=Engine(mode, threads=2),
        solver=solver,
        **settings,
    )


def softmax(z):
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def reference(start, x, y, steps, lr, beta, tau):
    """The update of a client whose batch is all it has: gradients of both losses with respect to the logits."""
    truth = np.eye(3)[y]

    def others(weights):
        z = np.where(truth > 0, -np.inf, (x @ weights[:, :5].T + weights[:, 5]) / tau)
        return softmax(z)

    weights, taught = start.copy(), others(start)
    for _ in range(steps):
        logits = x @ weights[:, :5].T + weights[:, 5]
        slope = (softmax(logits) - truth + beta / tau * (others(weights) - taught)) / len(x)
        weights = weights - lr * np.column_stack([slope.T @ x, slope.sum(axis=0)])
    return (start - weights) / lr


@pytest.mark.parametrize("mode", ["sequential", "threads", "stacked"])
def test_updates_are_those_of_the_equation(mode):
    federated, federation = loop(NotTrueDistillation(2.0, 1.5), mode=mode), gaussian_federation()
    module = linear_module()
    before = module.network.weight.detach().clone(), module.network.bias.detach().clone()
    for result in federated.iterate(module, federation):
        start = np.column_stack([before[0].numpy(), before[1].numpy()]).astype(float)
        for row, client in enumerate(result.updates.clients.tolist()):
            x, y = (each.numpy() for each in federation.batch(client, np.arange(12)))
            wanted = reference(start, x, y, 4, result.plan.learning_rate, 2.0, 1.5)
            found = result.updates.deltas[row].numpy()
            np.testing.assert_allclose(found[:15].reshape(3, 5), wanted[:, :5], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found[15:], wanted[:, 5], rtol=1e-4, atol=1e-5)
        weights = federated.state.weights
        before = weights[:15].reshape(3, 5), weights[15:]
    assert federated.engine.choice.mode == mode


def test_one_step_is_that_of_sgd_and_more_are_not():
    """Where a round begins both models are one, and the term has no slope."""
    for steps in (1, 5):
        plain, distilled = loop(SGD(), steps), loop(NotTrueDistillation(), steps)
        for federated in (plain, distilled):
            federated.run(linear_module(), gaussian_federation())
        assert torch.allclose(plain.state.weights, distilled.state.weights, atol=1e-6) == (steps == 1)


def test_local_work_is_that_of_plain_steps():
    steps = np.array([1, 4, 9])
    assert NotTrueDistillation(momentum=0.9).accumulation(steps, 0.1).tolist() == pytest.approx(
        SGD(momentum=0.9).accumulation(steps, 0.1).tolist()
    )


def test_a_resumed_run_is_the_same_and_the_module_is_left_as_it_was():
    def module():
        torch.manual_seed(0)
        return FederatedModule(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 3)), 3)

    whole, first, second = (loop(NotTrueDistillation()) for _ in range(3))
    made = module()
    whole.run(made, gaussian_federation())
    assert "training_step" not in vars(made)
    assert not made._forward_hooks
    for _ in first.iterate(module(), gaussian_federation()):
        break
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.run(module(), gaussian_federation(), torch.load(file, weights_only=True))
    assert torch.equal(second.state.weights, whole.state.weights)
    assert torch.equal(second.state.buffers, whole.state.buffers)


def test_hooks_of_a_module_see_the_whole_loss():
    seen = []

    class Watching(FederatedModule):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(float(outputs["loss"]))

        def training_step(self, batch, batch_idx):
            return {"loss": super().training_step(batch, batch_idx)}

    torch.manual_seed(0)
    federated = loop(NotTrueDistillation())
    federated.run(Watching(nn.Linear(5, 3), 3), gaussian_federation())
    plain = loop(NotTrueDistillation())
    plain.run(linear_module(), gaussian_federation())
    assert torch.allclose(federated.state.weights, plain.state.weights, atol=1e-6)
    assert len(seen) == 3 * 3 * 4


def test_personal_models_beside_it_leave_the_global_one_alone():
    plain, own = loop(NotTrueDistillation()), loop(NotTrueDistillation(), personal=PulledModels())
    for federated in (plain, own):
        federated.run(linear_module(), gaussian_federation())
    assert torch.equal(plain.state.weights, own.state.weights)


class Direct(FederatedModule):
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("module", "federation", "said"),
    [
        (lambda: QuadraticModule(4), lambda: QuadraticFederation(np.eye(4)), "called itself 0 times on a Tensor"),
        (lambda: Direct(nn.Linear(5, 3), 3), gaussian_federation, "Direct.training_step called itself 0 times"),
    ],
    ids=["no classes", "no call"],
)
@pytest.mark.parametrize("mode", ["sequential", "stacked"])
def test_what_classifies_nothing_is_refused_in_one_line(module, federation, said, mode):
    with pytest.raises(ValueError, match=said) as error:
        loop(NotTrueDistillation(), mode=mode).run(module(), federation())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [{"beta": -1.0}, {"temperature": 0.0}, {"beta": float("nan")}])
def test_bad_values_are_refused(settings):
    with pytest.raises(ValueError, match=r"beta=.* must be finite and >= 0, temperature=.* finite and > 0"):
        NotTrueDistillation(**settings)
