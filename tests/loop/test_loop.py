"""The round: what it hands on, what it costs, and that it is reproducible."""

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.aggregators.aggregator import mixed_buffers
from fl_lightning.callbacks import ChannelFailures, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data import DatasetFederation, Quadratic, TensorFederation
from fl_lightning.engine.batches import batch_indices
from fl_lightning.module import FederatedModule, QuadraticModule
from fl_lightning.planning import target_weights
from fl_lightning.samplers import FullParticipation, HeterogeneityAware, Importance
from fl_lightning.server.rates import Calibration
from fl_lightning.types import Updates
from systems import gaussian_federation, linear_module, small_loop


class Watcher:
    def __init__(self):
        self.calls, self.results = [], []

    def on_federation_start(self, loop):
        self.calls.append("federation_start")

    def on_round_start(self, loop, plan):
        self.calls.append("round_start")

    def on_round_end(self, loop, result):
        self.calls.append("round_end")
        self.results.append(result)

    def on_federation_end(self, loop):
        self.calls.append("federation_end")


def run(sampler=None, module=None, federation=None, **settings):
    watcher = Watcher()
    loop = small_loop(sampler, **settings)
    loop.callbacks.append(watcher)
    state = loop.run(module or linear_module(), federation or gaussian_federation())
    return state, watcher


def test_hooks_come_in_order():
    _, watcher = run(rounds=2)
    assert watcher.calls == ["federation_start", *["round_start", "round_end"] * 2, "federation_end"]


def test_rounds_can_be_iterated_and_give_what_run_gives():
    state, watcher = run()
    loop = small_loop()
    results = list(loop.iterate(linear_module(), gaussian_federation()))
    assert torch.equal(loop.state.weights, state.weights)
    assert [r.plan.index for r in results] == [r.plan.index for r in watcher.results] == [1, 2, 3, 4]
    assert all("local_steps" in r.metrics for r in results)


def test_leaving_the_for_early_pauses_a_run_that_can_be_resumed():
    whole, _ = run()
    calls, module, loop = Watcher(), linear_module(), small_loop()
    calls.on_federation_pause = lambda loop: calls.calls.append("federation_pause")
    loop.callbacks.append(calls)
    for result in loop.iterate(module, gaussian_federation()):
        if result.plan.index == 2:
            break
    assert calls.calls[-1] == "federation_pause"
    assert not loop.finished
    held = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(held, loop.state.weights)
    other = small_loop()
    other.run(linear_module(), gaussian_federation(), resume_from=loop.state_dict())
    assert torch.equal(other.state.weights, whole.weights)


def test_each_delivered_client_is_shown_once():
    seen = []
    watcher = type(
        "Watch", (), {"on_client_end": lambda self, loop, update: seen.append((loop.round_index, update.client))}
    )()
    _, rounds = run(callbacks=[watcher])
    expected = [(r.plan.index - 1, m) for r in rounds.results for m in np.flatnonzero(r.delivered)]
    assert seen == expected


def test_a_round_of_fedavg_equals_a_loop_written_by_hand():
    federation, module = gaussian_federation(), linear_module()
    weight, bias = (p.detach().clone() for p in module.network.parameters())
    state, watcher = run(Importance(), module, federation, rounds=3, lr=0.1)
    for result in watcher.results:
        steps = torch.zeros(18)
        for client in np.flatnonzero(result.delivered):
            local = nn.Linear(5, 3)
            local.load_state_dict({"weight": weight, "bias": bias})
            optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
            num_steps = int(result.plan.profiles.num_steps[client])
            for indices in batch_indices(0, result.plan.index, int(client), 12, 4, num_steps):
                inputs, labels = federation.batch(int(client), indices)
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(inputs), labels).backward()
                optimizer.step()
            end = torch.cat([p.detach().reshape(-1) for p in local.parameters()])
            start = torch.cat([weight.reshape(-1), bias])
            steps += int(result.delivered[client]) / 3 * (end - start)  # divided by K = 3, never by the arrivals
        flat = torch.cat([weight.reshape(-1), bias]) + steps
        weight, bias = flat[:15].view(3, 5), flat[15:]
    torch.testing.assert_close(state.weights, flat, rtol=1e-5, atol=1e-6)


def test_the_same_seed_gives_the_same_run_bit_for_bit():
    (first, a), (second, b) = run(), run()
    assert torch.equal(first.weights, second.weights)
    timed = {"wall_time", "training_seconds"}
    for left, right in zip(a.results, b.results, strict=True):
        assert left.metrics.keys() == right.metrics.keys()
        for name in left.metrics.keys() - timed:
            np.testing.assert_equal(left.metrics[name], right.metrics[name])
    other, _ = run(seed=1)
    assert not torch.equal(first.weights, other.weights)


def test_all_algorithms_meet_the_same_weather():
    settings = {"sampling": SamplerSelection(FullParticipation(), 6)}
    _, everybody = run(**settings)
    for sampler in (Importance(), HeterogeneityAware()):
        _, watcher = run(sampler)
        for all_links, result in zip(everybody.results, watcher.results, strict=True):
            np.testing.assert_array_equal(result.plan.profiles.num_steps, all_links.plan.profiles.num_steps)
            np.testing.assert_array_equal(result.plan.profiles.failure_rates, all_links.plan.profiles.failure_rates)
            np.testing.assert_array_equal(
                result.delivered > 0, (all_links.delivered > 0) & (result.plan.cohort.counts > 0)
            )


def test_an_all_lost_round_keeps_the_model_and_still_costs():
    schedule = HeterogeneitySchedule(num_steps=2, failure_rates=1 - 1e-12)
    module = linear_module()
    before = [p.detach().clone() for p in module.parameters()]
    _, watcher = run(Importance(), module, schedule=schedule, rounds=2)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert watcher.results[-1].metrics["num_delivered"] == 0
    assert watcher.results[-1].metrics["local_steps"] > 0
    assert np.isnan(watcher.results[-1].metrics["train_loss"])


def test_cost_counts_each_asked_client_once_lost_or_not():
    _, watcher = run(rounds=3)
    expected = 0
    for result in watcher.results:
        drawn = result.plan.cohort.counts > 0
        expected += int(result.plan.profiles.num_steps[drawn].sum())
        assert result.metrics["local_steps"] == expected == result.metrics["computation_time"]
        assert result.metrics["round_time"] == result.plan.profiles.num_steps[drawn].max()


def test_limited_clients_do_what_they_are_asked_for_under_the_same_conditions():
    _, free = run()
    _, bound = run(max_local_steps=3)
    expected = 0
    for offered, result in zip(free.results, bound.results, strict=True):
        profiles, drawn = result.plan.profiles, result.plan.cohort.counts > 0
        np.testing.assert_array_equal(profiles.num_steps, np.minimum(offered.plan.profiles.num_steps, 3))
        np.testing.assert_array_equal(profiles.failure_rates, offered.plan.profiles.failure_rates)
        np.testing.assert_array_equal(result.updates.num_steps, profiles.num_steps[result.updates.clients])
        expected += int(profiles.num_steps[drawn].sum())
        assert result.metrics["local_steps"] == expected
        assert result.plan.step_length == pytest.approx(offered.plan.step_length)


@pytest.mark.parametrize("apply", ["local", "server"])
@pytest.mark.parametrize("scope", ["round", "average"])
def test_calibration_gives_the_step_length_of_fedavg(scope, apply):
    _, reference = run(Importance(), rounds=5)
    _, watcher = run(HeterogeneityAware(), rounds=5, calibration=Calibration(scope, apply))
    wanted = [r.plan.step_length for r in reference.results]
    got = [r.plan.step_length for r in watcher.results]
    if scope == "round":
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    else:
        factors = {r.plan.learning_rate * r.plan.server_scale for r in watcher.results}
        assert len(factors) == 1
        np.testing.assert_allclose(np.mean(got), np.mean(wanted), rtol=0.5)
    assert all(r.plan.learning_rate == 0.05 for r in watcher.results) == (apply == "server")


class DictBatchNorm(LightningModule):
    """A module of somebody else: dict batches, BatchNorm, its own metric names, a log call in training."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch["x"]), batch["y"])
        self.log("train_loss", loss)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        self.log_dict({"my_accuracy": (self.net(batch["x"]).argmax(1) == batch["y"]).float().mean()})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def dict_federation():
    plain = gaussian_federation(num_clients=6, size=12)
    data = {"x": plain.train[0], "y": plain.train[1]}
    return TensorFederation(data, data, np.split(np.random.default_rng(0).permutation(72), 6))


def test_any_lightning_module_can_be_federated():
    torch.manual_seed(0)
    module = DictBatchNorm()
    counter = module.net[1].num_batches_tracked.clone()
    _, watcher = run(FullParticipation(), module, dict_federation(), rounds=15, lr=0.1, batch_size=12)
    assert watcher.results[-1].metrics["my_accuracy"] > watcher.results[0].metrics["my_accuracy"]
    assert watcher.results[-1].metrics["my_accuracy"] > 0.7
    assert not torch.equal(module.net[1].running_mean, torch.zeros(8))
    assert (module.net[1].running_var > 0).all()
    assert module.net[1].num_batches_tracked >= counter
    assert module.net[1].num_batches_tracked.dtype == torch.int64


def test_float_buffers_are_averaged_like_weights():
    buffers = torch.tensor([1.0, 1.0])
    updates = Updates(
        clients=np.array([0, 2]),
        deltas=torch.zeros(2, 1),
        buffers=torch.tensor([[3.0, 0.0], [5.0, 1.0]]),
        num_steps=np.ones(2),
        losses=np.ones(2),
    )

    class Plan:
        coefficients = np.array([1.0, 1.0, 1.0])
        cohort = type("Cohort", (), {"num_draws": 4})

    mixed = mixed_buffers(buffers, updates, np.array([2, 0, 1]), Plan)
    torch.testing.assert_close(mixed, torch.tensor([1 + 2 / 4 * 2 + 1 / 4 * 4, 1 - 2 / 4]))
    Plan.coefficients = np.array([100.0, 1.0, 100.0])  # amplified: still convex
    mixed = mixed_buffers(buffers, updates, np.array([2, 0, 1]), Plan)
    torch.testing.assert_close(mixed, torch.tensor([(2 * 3 + 5) / 3, 1 / 3]))


def test_plain_datasets_train_like_tensors():
    tensors = gaussian_federation()
    parts = [TensorDataset(*tensors.batch(m, np.arange(12))) for m in range(6)]
    datasets = DatasetFederation(parts, TensorDataset(*tensors.test))
    (a, _), (b, _) = run(federation=tensors), run(federation=datasets)
    torch.testing.assert_close(a.weights, b.weights)


def test_our_module_trains_in_a_plain_trainer(tmp_path):
    federation, module = gaussian_federation(), linear_module()
    loader = DataLoader(TensorDataset(*federation.train), batch_size=12, shuffle=True)
    trainer = Trainer(
        max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path,
        accelerator="cpu", enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    (metrics,) = trainer.test(module, loader, verbose=False)
    assert metrics["test_accuracy"] > 0.6


def test_evaluation_every_third_round_and_the_last():
    _, watcher = run(rounds=7, evaluate_every=3)
    assert [r.plan.index for r in watcher.results if "test_accuracy" in r.metrics] == [3, 6, 7]


def test_toy_reports_both_distances():
    federation = Quadratic(num_clients=6, dimension=4).load(0)
    _, watcher = run(Importance(), QuadraticModule(4), federation, weights="uniform", rounds=2, batch_size=1)
    result = watcher.results[-1]
    assert {"distance", "surrogate_distance", "test_loss"} <= set(result.metrics)


def test_several_optimizers_are_refused():
    class Two(DictBatchNorm):
        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[0], self.net[3])]

    with pytest.raises(ValueError, match="returns 2 optimizers"):
        run(module=Two(), federation=dict_federation())


def test_precision_comes_through_fabric():
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    (full, _), (half, _) = run(rounds=2), run(rounds=2, fabric=fabric)
    assert half.weights.dtype == torch.float32
    assert not torch.equal(full.weights, half.weights)
    torch.testing.assert_close(full.weights, half.weights, rtol=0.1, atol=0.05)


def test_manual_optimization_is_refused():
    module = DictBatchNorm()
    module.automatic_optimization = False
    with pytest.raises(ValueError, match="automatic_optimization"):
        run(module=module, federation=dict_federation())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": -1}, "rounds=-1 must be at least 1"),
        ({"lr": float("nan")}, "lr=nan must be a positive number"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": -3}, "seed=-3"),
        ({"max_local_steps": 0}, "max_local_steps=0 must be"),
        ({"max_local_steps": 2.5}, "max_local_steps=2.5 must be"),
        ({"max_local_steps": "few"}, "max_local_steps='few' must be"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        small_loop(**settings)


def test_target_weights_are_checked():
    sizes = np.array([1, 2, 3])
    np.testing.assert_allclose(target_weights([1, 1, 2], sizes), [0.25, 0.25, 0.5])
    for bad, message in (
        ([1, 2], "2 entries"),
        ([1, -1, 1], ">= 0"),
        ([float("nan")] * 3, "finite"),
        ("big", "unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            target_weights(bad, sizes)


def test_links_of_repeated_draws_can_be_independent():
    draws = {"sampling": SamplerSelection(Importance(), 60), "rounds": 3}
    _, shared = run(**draws)
    _, single = run(**draws, channel=ChannelFailures("independent"))
    assert all(
        set(np.unique(r.delivered[r.delivered > 0] - r.plan.cohort.counts[r.delivered > 0])) <= {0}
        for r in shared.results
    )
    assert any((r.delivered < r.plan.cohort.counts).any() and (r.delivered > 0).any() for r in single.results)


def test_our_classifier_refuses_one_class():
    with pytest.raises(ValueError, match="num_classes=1"):
        FederatedModule(nn.Linear(2, 1), num_classes=1)
