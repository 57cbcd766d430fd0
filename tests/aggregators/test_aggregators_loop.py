"""Aggregators in the real loop, with real local training."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import (
    AdaptiveControlVariates,
    Aggregator,
    Amplified,
    AnonymousMean,
    CommunicationAware,
    CommunicationAwareNormalizedMean,
    ControlVariates,
    DynamicRegularizer,
    EchoedInnovations,
    EstimatedParticipation,
    Extrapolated,
    IncompleteWork,
    LagTolerant,
    LastKnownUpdates,
    MemorizedMean,
    NormalizedMean,
    ParticipationIntervals,
    PostponedBroadcast,
    PushPull,
    RecentMean,
    RectifiedMean,
    ReweightedProgress,
    ServerAdam,
    ServerMomentum,
    ServerYogi,
    StaleMixture,
    UplinkMerge,
)
from fl_lightning.loop import FederatedLoop
from fl_lightning.samplers import FullParticipation, Importance
from fl_lightning.types import RoundResult
from systems import gaussian_federation, linear_module, small_loop

MAKERS: list[Callable[[], Aggregator]] = [
    AdaptiveControlVariates,
    lambda: AnonymousMean("received"),
    CommunicationAware,
    CommunicationAwareNormalizedMean,
    ControlVariates,
    lambda: ControlVariates("always"),
    EchoedInnovations,
    IncompleteWork,
    LastKnownUpdates,
    lambda: LastKnownUpdates("paper"),
    MemorizedMean,
    NormalizedMean,
    ParticipationIntervals,
    PostponedBroadcast,
    lambda: ServerAdam(ControlVariates()),
    lambda: ServerMomentum(EchoedInnovations(), lr=0.1),
    lambda: ServerYogi(AnonymousMean()),
    StaleMixture,
    lambda: Amplified(AnonymousMean()),
    DynamicRegularizer,
    EstimatedParticipation,
    lambda: Extrapolated(AnonymousMean()),
    LagTolerant,
    PushPull,
    RecentMean,
    RectifiedMean,
    ReweightedProgress,
    UplinkMerge,
]


def losses(aggregator: Aggregator | None, rounds: int) -> list[float]:
    """The test loss after each round."""
    watch = Watch()
    loop = small_loop(Importance(), rounds=rounds, lr=0.02, aggregator=aggregator, callbacks=[watch])
    loop.run(linear_module(), gaussian_federation())
    return [result.metrics["test_loss"] for result in watch.results]


class Watch:
    def __init__(self) -> None:
        self.results: list[RoundResult] = []

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        self.results.append(result)


@pytest.mark.parametrize("make", MAKERS)
def test_every_aggregator_learns(make: Callable[[], Aggregator]) -> None:
    seen = losses(make(), rounds=10)
    assert np.isfinite(seen).all()
    assert min(seen[-3:]) < 0.8 * max(seen[:2])


def test_control_variates_change_local_training_once_they_are_there() -> None:
    plain, corrected = losses(None, rounds=6), losses(ControlVariates(), rounds=6)
    assert plain[0] == pytest.approx(corrected[0])
    assert plain[-1] != pytest.approx(corrected[-1], rel=1e-4)


def test_clients_of_postponed_broadcast_are_all_charged_under_full_participation() -> None:
    loop = small_loop(FullParticipation(), rounds=3, aggregator=PostponedBroadcast())
    watch = Watch()
    loop.callbacks.append(watch)
    loop.run(linear_module(), gaussian_federation())
    steps = np.cumsum([result.plan.profiles.num_steps.sum() for result in watch.results])
    assert [result.metrics["local_steps"] for result in watch.results] == steps.tolist()
    assert all(len(result.updates) == 6 for result in watch.results)


def test_lost_clients_train_on_from_their_own_models() -> None:
    aggregator = PostponedBroadcast()
    loop = small_loop(FullParticipation(), rounds=3, aggregator=aggregator)
    loop.run(linear_module(), gaussian_federation())
    own = aggregator.models.dense()[~aggregator.synchronised]
    assert len(own)
    assert all(not torch.allclose(model, loop.state.weights) for model in own)
