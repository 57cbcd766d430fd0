"""A promise of privacy is kept or refused: beside other steps, over other links, with broken clients, when resumed."""

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import SecureSum
from fl_lightning.callbacks import ChannelFailures, SamplerSelection
from fl_lightning.samplers import HeterogeneityAware, Independent, WithReplacement
from fl_lightning.uploads import Attack, Clip, GaussianMechanism, OverTheAir, Quantized, TopK, Upload
from systems import gaussian_federation, linear_module, small_loop


def mechanism(**settings):
    return GaussianMechanism(Clip(1.0), **({"noise_multiplier": 1.0} | settings))


def play(uploads, resume=None, sampler=None, **settings):
    chosen = SamplerSelection(sampler or HeterogeneityAware(), 3, settings.pop("drawing", Independent()))
    loop = small_loop(sampling=chosen, uploads=uploads, **settings)
    return loop, list(loop.iterate(linear_module(), gaussian_federation(), resume))


class Unknown(Upload):
    """A step of a user, which says nothing about itself."""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([OverTheAir(snr_db=-10)], [], "OverTheAir.*put it after GaussianMechanism"),
        ([OverTheAir(max_norm=9.0)], [], "OverTheAir.*put it after GaussianMechanism"),
        ([], [OverTheAir(snr_db=-10)], "OverTheAir.*max_norm"),
        ([Clip(1.0, quantile=0.5)], [], "Clip.*leave out its quantile"),
        ([Attack("little_is_enough")], [], "Attack.*kind"),
        ([Attack("inner_product")], [], "Attack.*kind"),
        ([Unknown()], [], "Unknown.*UploadTraits"),
        ([], [Unknown()], "Unknown changes updates after"),
        ([mechanism()], [], "more than one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_step_beside_the_mechanism_that_depends_on_others_data_is_refused(before, after, message):
    with pytest.raises(ValueError, match=message):
        play([*before, mechanism(), *after])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([TopK()], []),
        ([Quantized()], []),
        ([Clip(1.0)], []),
        ([Attack("sign_flip")], []),
        ([], [OverTheAir(max_norm=1e3)]),
    ],
    ids=["TopK", "Quantized", "Clip", "Attack", "OverTheAir"],
)
def test_a_step_that_looks_at_one_client_at_a_time_is_fine(before, after):
    assert play([*before, mechanism(), *after], rounds=1)[1]


def test_noise_over_the_air_does_not_depend_on_the_updates():
    """With or without the longest client, the receiver's noise is the same."""
    scales = []
    for lr in (0.05, 0.5):
        _, results = play([mechanism(), OverTheAir(snr_db=-10, max_norm=1e3)], rounds=3, lr=lr)
        scales.append([result.metrics["channel_noise"] for result in results])
    assert scales[0] == scales[1]


def test_links_of_their_own_for_each_draw_leave_the_whole_noise():
    """Three of a client's four draws may arrive: its share of the noise is still a whole one."""
    step = mechanism(place="distributed", noise_multiplier=50.0)
    settings = {"drawing": WithReplacement(), "channel": ChannelFailures("independent"), "rounds": 30}
    loop = small_loop(
        sampling=SamplerSelection(HeterogeneityAware(), 12, settings.pop("drawing")),
        uploads=[step], aggregator=SecureSum(1e9, threshold=2), **settings,
    )  # fmt: skip
    squares, partly = [], 0
    for result in loop.iterate(linear_module(), gaussian_federation()):
        plan, clients = result.plan, result.updates.clients
        counts, arrived = plan.cohort.counts[clients], result.delivered[clients]
        partly += int((arrived < counts).sum())
        sums = torch.from_numpy(arrived * plan.coefficients[clients])[:, None] * result.updates.deltas
        wanted = 50.0 * step.clip.units(plan).max() / 2**0.5
        squares += (sums.double().square().mean(dim=1) / wanted**2).tolist()
    assert partly > 20
    assert np.mean(squares) == pytest.approx(1.0, rel=0.15)


def test_what_is_learned_about_links_does_not_depend_on_what_clients_send(monkeypatch):
    """A client whose updates are not finite counts as one that sends zeros, not as one whose link fails."""

    def probabilities(broken):
        loop = small_loop(
            sampling=SamplerSelection(HeterogeneityAware("estimated"), 3, Independent()),
            uploads=[mechanism()], rounds=12,
        )  # fmt: skip
        train = loop.engine.train

        def with_a_broken_client(state, plan, clients, *rest):
            updates = train(state, plan, clients, *rest)
            updates.deltas[torch.from_numpy(np.flatnonzero(updates.clients == 1))] = broken
            return updates

        monkeypatch.setattr(loop.engine, "train", with_a_broken_client)
        return loop, list(loop.iterate(linear_module(), gaussian_federation()))

    silent, first = probabilities(0.0)
    loud, second = probabilities(float("nan"))
    assert [result.plan.cohort.probabilities.tolist() for result in first] == [
        result.plan.cohort.probabilities.tolist() for result in second
    ]
    assert torch.equal(silent.state.weights, loud.state.weights)
    assert sum(len(result.faults) for result in second) > 0


@pytest.mark.parametrize("drawing", [Independent(), WithReplacement()], ids=["independent", "with replacement"])
def test_a_run_that_is_resumed_with_more_rounds_stays_within_epsilon(drawing):
    state, reached = None, []
    for rounds in (6, 9, 12, 15):
        step = mechanism(noise_multiplier=None, epsilon=2.0, delta=1e-2)
        chosen = SamplerSelection(HeterogeneityAware(), 3, drawing)
        loop = small_loop(sampling=chosen, uploads=[step], rounds=rounds)
        loop.run(linear_module(), gaussian_federation(), state)
        state = loop.state_dict()
        reached.append(step.account.epsilon)
        assert loop.round_index == 6
    assert max(reached) <= 2.0
