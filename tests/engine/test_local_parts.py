"""Parameters that stay at the clients."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning.aggregators import (
    AdaptiveControlVariates,
    AnonymousMean,
    CommunicationAware,
    CommunicationAwareNormalizedMean,
    ControlVariates,
    EchoedInnovations,
    IncompleteWork,
    LastKnownUpdates,
    MemorizedMean,
    NormalizedMean,
    ParticipationIntervals,
    PostponedBroadcast,
    ServerAdam,
    ServerMomentum,
    ServerYogi,
    StaleMixture,
)
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.engine import Engine
from fl_lightning.loop import FederatedLoop
from fl_lightning.module import FederatedModule
from fl_lightning.parts.protocols import PLAIN
from fl_lightning.parts.traits import AggregatorTraits
from fl_lightning.samplers import FullParticipation, Importance, NormProportional
from made import made_work
from systems import gaussian_federation, small_loop

CLIENTS = 6
MAKERS = [
    AdaptiveControlVariates,
    AnonymousMean,
    CommunicationAware,
    CommunicationAwareNormalizedMean,
    ControlVariates,
    lambda: ControlVariates("always"),
    EchoedInnovations,
    IncompleteWork,
    LastKnownUpdates,
    MemorizedMean,
    NormalizedMean,
    ParticipationIntervals,
    PostponedBroadcast,
    lambda: ServerAdam(ControlVariates()),
    lambda: ServerMomentum(EchoedInnovations(), lr=0.1),
    lambda: ServerYogi(AnonymousMean()),
    StaleMixture,
]
HEAD = ["network.2.*"]
NORM = ["network.1.*"]


def module() -> FederatedModule:
    torch.manual_seed(0)
    return FederatedModule(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), 3)


def loop(patterns, rounds=3, failures=0.0, sampler=None, **settings) -> FederatedLoop:
    return small_loop(
        rounds=rounds,
        schedule=HeterogeneitySchedule(groups=[Group(1.0, (1, 4), failures)]),
        sampling=SamplerSelection(sampler or Importance(), 4),
        channel=ChannelFailures(),
        local_parameters=patterns,
        callbacks=[],
        **({"engine": Engine("sequential")} | settings),
    )


def values(state, place):
    """The entries of the flat state that belong to a layer: 24 of the first, 8 of the norm, 15 of the head."""
    return state.weights[{"first": slice(0, 24), "norm": slice(24, 32), "head": slice(32, 47)}[place]]


def test_local_values_differ_by_client_and_the_global_ones_stay():
    made = module()
    start = nn.utils.parameters_to_vector(made.parameters()).detach().clone()
    federated = loop(HEAD, sampler=FullParticipation())
    state = federated.run(made, gaussian_federation())
    assert torch.equal(values(state, "head"), start[32:47])
    assert not torch.allclose(values(state, "first"), start[:24])
    own = [federated.local_parts.personalised(client, state) for client in range(CLIENTS)]
    for mine in own:
        assert torch.equal(values(mine, "first"), values(state, "first"))
        assert not torch.allclose(values(mine, "head"), values(state, "head"))
    assert not torch.allclose(values(own[0], "head"), values(own[1], "head"))
    assert federated.local_parts.num_kept == (15, 0)


@pytest.mark.parametrize("mode", ["sequential", "threads", "stacked"])
def test_one_client_alone_trains_as_without_patterns(mode):
    """Its own head and its share of the global model together make the model of plain local training."""
    plain_module, local_module = (FederatedModule(nn.Linear(5, 3), 3) for _ in range(2))
    local_module.load_state_dict(plain_module.state_dict())
    data = gaussian_federation(num_clients=1)
    settings = {"engine": Engine(mode, threads=2), "sampler": FullParticipation()}
    plain = loop([], **settings)
    plain.sampling = SamplerSelection(FullParticipation(), 1.0)
    local = loop(["network.bias"], **settings)
    local.sampling = SamplerSelection(FullParticipation(), 1.0)
    state = plain.run(plain_module, data)
    local.run(local_module, data)
    mine = local.load_client(0)
    torch.testing.assert_close(mine.weights, state.weights, rtol=1e-5, atol=1e-6)
    assert torch.equal(nn.utils.parameters_to_vector(local_module.parameters()), mine.weights)
    assert local.engine.choice.mode == mode


def test_running_means_of_a_client_are_its_own():
    federated = loop(NORM, sampler=FullParticipation())
    made = module()
    before = made.network[1].running_mean.clone()
    state = federated.run(made, gaussian_federation())
    assert torch.equal(state.buffers[:4], before)
    assert torch.equal(state.buffers, torch.tensor([0.0] * 4 + [1.0] * 4))
    mine = federated.load_client(2)
    assert torch.equal(made.network[1].running_mean, mine.buffers[:4])
    assert not torch.allclose(mine.buffers, state.buffers)


def test_a_client_goes_on_from_its_own_values():
    federated = loop(NORM, rounds=1, sampler=FullParticipation())
    federated.run(module(), gaussian_federation())
    own = federated.local_parts.personalised(1, federated.state)
    handout = federated.local_parts.added_to(PLAIN)
    assert torch.equal(handout.start(1, federated.state.weights), own.weights)
    steps, one = np.full(CLIENTS, 3), np.array([1])
    updates = federated.engine.work(federated.state, one, made_work(2, steps, 0.05, handout))
    alone = federated.engine.work(own, one, made_work(2, steps, 0.05))
    assert torch.equal(updates.deltas, alone.deltas)
    assert torch.equal(updates.buffers, alone.buffers)


@pytest.mark.parametrize("maker", MAKERS)
def test_every_aggregator_leaves_the_global_values_alone(maker):
    made = module()
    start = nn.utils.parameters_to_vector(made.parameters()).detach().clone()
    federated = loop(HEAD, failures=0.3, aggregator=maker())
    state = federated.run(made, gaussian_federation())
    assert torch.equal(values(state, "head"), start[32:47])
    assert len(federated.local_parts.weights) >= 4
    assert not torch.equal(values(state, "first"), start[:24])
    assert bool(torch.isfinite(state.weights).all())


class Silence(ChannelFailures):
    def configure_delivery(self, plan, seed):
        return np.zeros_like(plan.cohort.counts)


def test_what_is_trained_for_oneself_survives_a_lost_upload():
    made = module()
    federated = loop(HEAD, rounds=1)
    silent = federated.callbacks[2] = Silence()
    federated.system = replace(federated.system, channel=silent)
    before = nn.utils.parameters_to_vector(made.parameters()).detach().clone()
    results = list(federated.iterate(made, gaussian_federation()))
    drawn = results[0].plan.cohort.clients
    assert len(results[0].updates) == 0
    assert torch.equal(federated.state.weights, before)
    assert sorted(federated.local_parts.weights) == drawn.tolist()


def test_the_memory_has_rows_of_those_who_trained_alone():
    federated = loop(HEAD, rounds=1)
    (result,) = federated.iterate(module(), gaussian_federation())
    assert sorted(federated.local_parts.weights) == result.plan.cohort.clients.tolist()
    assert len(federated.local_parts.weights) < CLIENTS
    assert {len(own) for own in federated.local_parts.weights.values()} == {15}


class Recording(AnonymousMean):
    traits = AggregatorTraits()

    def direction(self, updates, delivered, plan):
        self.seen = updates
        return super().direction(updates, delivered, plan)


def test_an_upload_has_none_of_it():
    aggregator = Recording()
    federated = loop([*HEAD, *NORM], rounds=2, aggregator=aggregator, failures=0.4)
    federated.run(module(), gaussian_federation())
    assert torch.equal(aggregator.seen.deltas[:, 24:], torch.zeros(len(aggregator.seen), 23))
    assert bool((aggregator.seen.deltas[:, :24].norm(dim=1) > 0).all())
    assert bool((aggregator.seen.buffers == federated.state.buffers).all())


def test_samplers_do_not_see_it():
    federated = loop(HEAD, rounds=2, sampler=NormProportional())
    federated.run(module(), gaussian_federation())
    _, shared = federated._stages.plan(3, federated.state)
    clients = np.arange(CLIENTS)
    for rows in (shared.gradients(clients), shared.updates(clients).deltas):
        assert torch.equal(rows[:, 32:47], torch.zeros(CLIENTS, 15))
        assert bool((rows[:, :32].norm(dim=1) > 0).all())


def test_not_finite_values_are_not_kept():
    federated = loop(HEAD, rounds=1, sampler=FullParticipation())
    federated.run(module(), gaussian_federation())
    before = dict(federated.local_parts.weights)
    plan, clients = federated.planner.plan(2), np.arange(CLIENTS)
    handout = federated.local_parts.added_to(PLAIN)
    updates = federated.engine.train(federated.state, plan, clients, handout)
    updates.deltas[3, 40] = float("nan")
    kept = federated.local_parts.keep(updates, clients, federated.state, plan, handout)
    assert federated.local_parts.weights[3] is before[3]
    assert federated.local_parts.weights[2] is not before[2]
    assert bool(torch.isnan(kept.deltas[3]).any())  # so that it is rejected


@pytest.mark.parametrize("patterns", [HEAD, NORM])
def test_a_resumed_run_is_the_same_to_the_last_bit(patterns):
    whole = loop(patterns, rounds=4, failures=0.3)
    whole.run(module(), gaussian_federation())
    first = loop(patterns, rounds=4, failures=0.3)
    for result in first.iterate(module(), gaussian_federation()):
        if result.plan.index == 2:
            break
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = loop(patterns, rounds=4, failures=0.3)
    second.run(module(), gaussian_federation(), torch.load(file, weights_only=True))
    assert torch.equal(second.state.weights, whole.state.weights)
    assert torch.equal(second.state.buffers, whole.state.buffers)
    assert second.local_parts.weights.keys() == whole.local_parts.weights.keys()
    for client, own in whole.local_parts.weights.items():
        assert torch.equal(second.local_parts.weights[client], own)
        assert torch.equal(second.local_parts.buffers[client], whole.local_parts.buffers[client])


def test_what_fits_nothing_is_refused():
    with pytest.raises(ValueError, match=r"'tail\.\*' fits no trainable parameter.*network\.0\.weight"):
        loop([*HEAD, "tail.*"]).run(module(), gaussian_federation())
    with pytest.raises(ValueError, match="must be a list"):
        loop("head.*")
    federated = loop(HEAD, rounds=1)
    federated.run(module(), gaussian_federation())
    with pytest.raises(ValueError, match="client=6 must be in"):
        federated.load_client(6)
    with pytest.raises(ValueError, match="local_parameters="):
        loop(NORM, rounds=2).run(module(), gaussian_federation(), federated.state_dict())


def test_personalised_models_are_evaluated():
    federated = loop(HEAD, rounds=8, sampler=FullParticipation())
    federated.run(module(), gaussian_federation())
    states = [federated.local_parts.personalised(client, federated.state) for client in range(CLIENTS)]
    found = {federated.engine.evaluate(state)[0]["test_loss"] for state in states}
    assert len(found) == CLIENTS
