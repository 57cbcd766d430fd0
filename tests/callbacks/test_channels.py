import csv
import json
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fl_lightning.callbacks import (
    ChannelFailures,
    GilbertElliott,
    GroupFailures,
    HeterogeneitySchedule,
    RayleighOutage,
    TraceChannel,
)
from fl_lightning.callbacks.schedule import rayleigh_outage
from fl_lightning.types import Cohort, RoundPlan
from made import made_profiles
from systems import gaussian_federation, linear_module, made_plan, small_loop


def plan_of(rates, counts=None, index: int = 1) -> RoundPlan:
    rates = np.asarray(rates, dtype=float)
    ones = np.ones(len(rates))
    counts = ones.astype(np.int64) if counts is None else np.asarray(counts)
    profiles = made_profiles(
        weights=ones / len(rates), num_steps=ones.astype(np.int64), failure_rates=rates, accumulation=ones
    )
    return made_plan(
        index,
        profiles,
        Cohort(probabilities=ones / len(rates), coefficients=ones, counts=counts, num_draws=int(counts.sum())),
        ones,
        0.1,
    )


def losses(channel, rates, num_rounds: int, seed: int = 0) -> np.ndarray:
    """Whether each upload is lost, (rounds, M)."""
    return np.array(
        [channel.configure_delivery(plan_of(rates, index=index), seed) == 0 for index in range(1, num_rounds + 1)]
    )


RATES = np.repeat([0.0, 0.1, 0.3, 0.6], 500)
BAD_ROWS = ("0,1,maybe\n", "0,1,1\n0,1,1\n", "0,1,1\n1,2,1\n", "1,1,1\n", "-1,1,1\n0,1,1\n")
CHANNELS = [
    ChannelFailures(),
    ChannelFailures("independent"),
    GilbertElliott(4.0),
    GilbertElliott(3.0, 0.8, "independent"),
    GroupFailures(200),
    GroupFailures(20, 0.5),
]


@pytest.mark.parametrize("channel", CHANNELS)
def test_loss_rates_are_those_of_the_clients(channel) -> None:
    lost = losses(channel, RATES, 100)
    assert lost.mean(axis=0).reshape(4, 500).mean(axis=1) == pytest.approx([0, 0.1, 0.3, 0.6], abs=0.02)
    assert not lost[:, :500].any()


@pytest.mark.parametrize("channel", CHANNELS)
def test_links_depend_on_seed_and_round_alone(channel) -> None:
    first = channel.configure_delivery(plan_of(RATES, index=7), 3)
    channel.configure_delivery(plan_of(RATES, index=2), 3)
    assert np.array_equal(first, channel.configure_delivery(plan_of(RATES, index=7), 3))
    assert not np.array_equal(first, channel.configure_delivery(plan_of(RATES, index=8), 3))
    assert not np.array_equal(first, channel.configure_delivery(plan_of(RATES, index=7), 4))
    everybody, few = np.full(len(RATES), 3), np.zeros(len(RATES), dtype=np.int64)
    few[::7] = 3  # who is drawn does not change whose link works
    assert np.array_equal(
        channel.configure_delivery(plan_of(RATES, everybody, 7), 3)[::7],
        channel.configure_delivery(plan_of(RATES, few, 7), 3)[::7],
    )


def test_independent_links_lose_each_draw_on_its_own() -> None:
    counts = np.full(20_000, 4)
    shared = ChannelFailures().configure_delivery(plan_of(np.full(20_000, 0.3), counts), 0)
    independent = ChannelFailures("independent").configure_delivery(plan_of(np.full(20_000, 0.3), counts), 0)
    assert set(shared.tolist()) == {0, 4}
    assert shared.mean() == pytest.approx(2.8, abs=0.05)
    assert independent.mean() == pytest.approx(2.8, abs=0.05)
    assert independent.var() == pytest.approx(4 * 0.3 * 0.7, abs=0.05)
    assert shared.var() == pytest.approx(16 * 0.3 * 0.7, abs=0.1)
    once = plan_of(np.full(20_000, 0.3))
    assert np.array_equal(
        ChannelFailures().configure_delivery(once, 0), ChannelFailures("independent").configure_delivery(once, 0)
    )


@pytest.mark.parametrize(("burst_length", "rate"), [(5.0, 0.3), (2.0, 0.1), (8.0, 0.6)])
def test_bursts_have_their_length_and_the_chain_no_longer_memory(burst_length: float, rate: float) -> None:
    lost = losses(GilbertElliott(burst_length), np.full(3000, rate), 60)
    before, now = lost[:-1].ravel(), lost[1:].ravel()
    assert lost.mean() == pytest.approx(rate, abs=0.01)
    assert (before & ~now).sum() / before.sum() == pytest.approx(1 / burst_length, abs=0.01)
    assert (~before & now).sum() / (~before).sum() == pytest.approx(rate / (1 - rate) / burst_length, abs=0.01)
    # Markov: given the present, the past says nothing about the future.
    past, present, future = lost[:-2].ravel(), lost[1:-1].ravel(), lost[2:].ravel()
    assert future[present & past].mean() == pytest.approx(future[present & ~past].mean(), abs=0.02)


def test_bursts_start_in_equilibrium_and_keep_the_rate_where_it_changes() -> None:
    channel, rng = GilbertElliott(10.0), np.random.default_rng(0)
    for index in range(1, 20):
        rates = np.full(20_000, rng.uniform(0, 0.8))
        lost = channel.configure_delivery(plan_of(rates, index=index), 0) == 0
        assert lost.mean() == pytest.approx(rates[0], abs=0.015)


def test_bursts_shorter_than_those_of_chance_are_independent_losses() -> None:
    lost = losses(GilbertElliott(1.0), np.full(3000, 0.5), 30)
    assert lost[1:][lost[:-1]].mean() == pytest.approx(0.5, abs=0.01)


def test_a_bad_state_that_loses_some_draws() -> None:
    counts, rates = np.full(20_000, 4), np.full(20_000, 0.4)
    channel = GilbertElliott(5.0, 0.8, "independent")
    delivered = channel.configure_delivery(plan_of(rates, counts), 0)
    assert delivered.mean() == pytest.approx(4 * 0.6, abs=0.05)
    # Half of the clients are in the bad state; of those, 4 of 4 draws arrive with probability 0.2^4.
    assert (delivered == 4).mean() == pytest.approx(0.5 + 0.5 * 0.2**4, abs=0.02)
    assert (delivered == 0).mean() == pytest.approx(0.5 * 0.8**4, abs=0.02)
    with pytest.raises(ValueError, match=r"client 0 has a failure rate of 0\.900"):
        channel.configure_delivery(plan_of([0.9, 0.1]), 0)


def test_a_group_fails_together() -> None:
    rates = np.tile([0.4, 0.4, 0.2], 40)
    lost = losses(GroupFailures(40), rates, 500).reshape(500, 40, 3)
    assert np.array_equal(lost[..., 0], lost[..., 1])
    assert not (lost[..., 2] & ~lost[..., 0]).any()  # the more reliable fails only where the less reliable does
    assert np.corrcoef(lost[:, 0, 0], lost[:, 1, 0])[0, 1] == pytest.approx(0, abs=0.12)


def test_correlation_of_a_group_is_the_square_of_the_parameter() -> None:
    lost = losses(GroupFailures(np.repeat(np.arange(1000), 2).tolist(), 0.7), np.full(2000, 0.3), 100)
    first, second = lost[:, ::2], lost[:, 1::2]
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] == pytest.approx(0.49, abs=0.02)
    assert np.corrcoef(first[:, :-1].ravel(), second[:, 1:].ravel())[0, 1] == pytest.approx(0, abs=0.02)


def test_groups_are_cut_in_order() -> None:
    assert GroupFailures(3)._members(7).tolist() == [0, 0, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="groups has 2 entries, but there are 3 clients"):
        GroupFailures([0, 1]).configure_delivery(plan_of([0.1] * 3), 0)


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_trace_is_played_and_starts_again(tmp_path: Path, suffix: str) -> None:
    arrived = np.array([[1, 0, 1], [0, 0, 1]])
    rows = [
        {"client": client, "round": index + 1, "arrived": int(arrived[index, client])}
        for index in range(2)
        for client in (2, 0, 1)
    ]
    path = tmp_path / f"trace.{suffix}"
    if suffix == "json":
        path.write_text(json.dumps([row | {"arrived": bool(row["arrived"])} for row in rows]))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["client", "round", "arrived"])
            writer.writeheader()
            writer.writerows(rows)
    channel = TraceChannel(str(path))
    for index in (1, 2, 3, 4):
        expected = arrived[(index - 1) % 2] * 5
        assert channel.configure_delivery(plan_of([0.9] * 3, [5] * 3, index), 0).tolist() == expected.tolist()
    assert (1 - channel.arrived.mean(axis=0)).tolist() == [0.5, 1, 0]
    with pytest.raises(ValueError, match="has 3 clients, but the federation has 2"):
        channel.configure_delivery(plan_of([0.1] * 2), 0)


@pytest.mark.parametrize(
    "text",
    ["", "client,round\n0,1\n", *("client,round,arrived\n" + rows for rows in BAD_ROWS)],
)
def test_a_trace_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"trace\.csv"):
        TraceChannel(str(path))
    with pytest.raises(FileNotFoundError, match=r"other\.csv does not exist"):
        TraceChannel(str(tmp_path / "other.csv"))


def test_outage_is_the_probability_of_a_deep_fade() -> None:
    rng = np.random.default_rng(0)
    distances, shadowing = np.array([50.0, 200.0, 400.0]), np.array([0.0, -3.0, 5.0])
    mean = 10 ** ((8 - 35 * np.log10(distances / 500) + shadowing) / 10)
    amplitude = rng.normal(size=(200_000, 3)) + 1j * rng.normal(size=(200_000, 3))  # Rayleigh: complex Gaussian
    ratio = mean * np.abs(amplitude) ** 2 / 2
    measured = (ratio < 10 ** (12 / 10)).mean(axis=0)
    assert rayleigh_outage(distances, 500, 8, 12, 3.5, shadowing) == pytest.approx(measured, abs=0.005)


def test_radio_sets_the_rates_that_the_sampler_sees() -> None:
    steps = np.ones(5000, dtype=np.int64)
    radio = RayleighOutage(shadowing_db=6.0)
    schedule = HeterogeneitySchedule(num_steps=3, radio=radio)
    first, second = (schedule.configure_conditions(index, steps, 0).failure_rates for index in (1, 2))
    assert 0 < first.min() < first.max() <= 0.99
    assert not np.array_equal(first, second)
    assert np.corrcoef(first, second)[0, 1] > 0.2  # the same places
    static = HeterogeneitySchedule(num_steps=3, radio=RayleighOutage(shadowing_db=6.0, dynamic=False))
    assert np.array_equal(*(static.configure_conditions(index, steps, 0).failure_rates for index in (1, 2)))
    # Without shadowing the rate at the edge is the largest: half of the area lies beyond 0.707 of the radius.
    plain = HeterogeneitySchedule(num_steps=3, radio=RayleighOutage()).configure_conditions(1, steps, 0).failure_rates
    halfway = rayleigh_outage([np.sqrt((25**2 + 500**2) / 2)], 500, 6.0, 3.0)[0]
    assert plain.max() <= rayleigh_outage([500], 500, 6.0, 3.0)[0]
    assert np.median(plain) == pytest.approx(halfway, rel=0.05)


def test_shadowing_is_normal() -> None:
    radio = RayleighOutage(distances=[100.0] * 20_000, shadowing_db=4.0, edge_snr_db=-10.0)
    rates = radio(20_000, 1, 0)
    decibel = 3.0 - 10 * np.log10(-np.log1p(-rates))  # back from q to the mean ratio
    shadow = decibel - (-10 + 35 * np.log10(5))
    assert shadow.mean() == pytest.approx(0, abs=0.1)
    assert shadow.std() == pytest.approx(4, abs=0.1)
    assert (np.abs(shadow) < 4).mean() == pytest.approx(0.683, abs=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChannelFailures("both"), "multiplicity='both'"),
        (lambda: GilbertElliott(0.5), r"burst_length=0\.5"),
        (lambda: GilbertElliott(2, 0), "loss_when_bad=0"),
        (lambda: GilbertElliott(2, multiplicity="both"), "multiplicity='both'"),
        (lambda: GroupFailures(0), "groups=0"),
        (lambda: GroupFailures([]), r"groups=\[\]"),
        (lambda: GroupFailures(2, 1.5), r"correlation=1\.5"),
        (lambda: RayleighOutage(min_distance=900), "min_distance=900"),
        (lambda: RayleighOutage(distances=[1.0, 0.0]), "distances="),
        (lambda: RayleighOutage(shadowing_db=-1), "shadowing_db=-1"),
        (lambda: RayleighOutage(distances=[1.0])(2, 1, 0), "distances has 1 entries"),
        (lambda: rayleigh_outage([0.0], 1, 1, 1), "distances must be positive"),
    ],
)
def test_impossible_settings_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("channel", [GilbertElliott(3.0), GroupFailures(2), GilbertElliott(2.0, 0.9, "independent")])
def test_channels_run_in_the_loop(channel) -> None:
    loop = small_loop(channel=channel, schedule=HeterogeneitySchedule(num_steps=2, radio=RayleighOutage()))
    loop.run(linear_module(), gaussian_federation())
    assert loop.round_index == 4


@pytest.mark.parametrize("channel", [GilbertElliott(3.0), GroupFailures(2)])
def test_channels_of_many_clients_refuse_a_plain_trainer(channel) -> None:
    with pytest.raises(MisconfigurationException, match="no meaning in a plain Trainer"):
        Trainer(max_epochs=1, callbacks=[channel], logger=False, accelerator="cpu").fit(linear_module(), [])
