"""A promise of privacy is kept or refused: beside other steps, over other links, with broken clients, when resumed."""

import json
import stat

import numpy as np
import pytest
import torch
from scipy import stats

from fl_lightning.aggregators import SecureSum
from fl_lightning.callbacks import ChannelFailures, SamplerSelection
from fl_lightning.cli.main import main
from fl_lightning.runs.records import RunError, kept_key
from fl_lightning.samplers import HeterogeneityAware, Independent, WithReplacement
from fl_lightning.uploads import Attack, Clip, GaussianMechanism, OverTheAir, Quantized, TopK, Upload
from fl_lightning.uploads.accounting import EXACT
from fl_lightning.uploads.noise import Noise
from systems import gaussian_federation, linear_module, small_loop


def mechanism(**settings):
    noise = {} if "epsilon" in settings else {"noise_multiplier": 1.0}
    return GaussianMechanism(Clip(1.0), **(noise | settings))


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
            uploads=[mechanism(key=1)], rounds=12,
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
    for rounds in (6, 15):
        step = mechanism(epsilon=2.0, delta=1e-2)
        chosen = SamplerSelection(HeterogeneityAware(), 3, drawing)
        loop = small_loop(sampling=chosen, uploads=[step], rounds=rounds)
        loop.run(linear_module(), gaussian_federation(), state)
        state = loop.state_dict()
        reached.append(step.account.epsilon)
        assert loop.round_index == 6
    assert max(reached) <= 2.0


def noises(seed=0, **settings):
    return [result.updates.noise for result in play([mechanism(**settings)], rounds=2, seed=seed)[1]]


def test_nobody_can_recompute_the_noise_from_the_seed():
    first, second = noises(), noises()
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], first[1])
    fixed = noises(key=3)
    assert torch.equal(fixed[0], noises(key=3)[0])
    assert not torch.equal(fixed[0], noises(key=4)[0])
    assert not torch.equal(fixed[0], noises(key=3, seed=1)[0])


def test_the_draws_of_a_private_run_are_secret_as_the_amplification_assumes():
    def draws(**settings):
        _, results = play([mechanism(**settings)], rounds=8)
        return [result.plan.cohort.counts.tolist() for result in results]

    assert draws() != draws()
    assert draws(key=3) == draws(key=4)  # a study compares algorithms on the same draws


def test_noise_from_a_key_is_standard_normal_and_independent():
    noise = Noise()
    noise.renew(0)
    found = [noise.numbers(100_001, index, name) for index, name in ((1, "sum"), (1, "client 1"), (2, "sum"))]
    for numbers in found:
        assert numbers.shape == (100_001,)
        assert stats.kstest(numbers, "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(found) - np.eye(3)).max() < 0.02
    assert abs(np.corrcoef(found[0][:50_000], found[0][50_000:100_000])[0, 1]) < 0.02


def test_the_key_of_a_run_is_kept_where_only_its_owner_can_read_it(tmp_path, capsys):
    def start(folder, **settings):
        arguments = ["--config", "toy_dpfedacs.yaml", "--logger", "none", "--run_dir", str(folder)]
        return main(["train", *arguments, *(str(part) for pair in settings.items() for part in pair)])

    assert start(tmp_path / "a", **{"--loop.rounds": 4}) == 0
    key = tmp_path / "a" / "noise.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_text().strip()
    others = [path for path in (tmp_path / "a").rglob("*") if path.is_file() and path != key]
    assert not any(part in path.read_bytes() for path in others for part in (secret.encode(), bytes.fromhex(secret)))
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["noise_key"] == "secret"
    assert summary["epsilon_kind"] == EXACT
    assert f"epsilon {summary['epsilon']:.4g} ({EXACT})" in capsys.readouterr().out


def test_a_resumed_run_takes_its_key_from_the_folder(tmp_path):
    path, key = tmp_path / "noise.key", bytes(range(32))
    assert kept_key(path, key, resumed=False) == key
    assert kept_key(path, bytes(32), resumed=True) == key
    assert kept_key(path, bytes(32), resumed=False) == bytes(32)
    path.chmod(0o644)
    with pytest.raises(RunError, match="only its owner can read"):
        kept_key(path, key, resumed=True)
    path.unlink()
    with pytest.raises(RunError, match="start anew"):
        kept_key(path, key, resumed=True)
    (tmp_path / "elsewhere").write_text(key.hex())
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="cannot be read"):
        kept_key(path, key, resumed=True)
    kept_key(path, bytes(32), resumed=False)
    assert (tmp_path / "elsewhere").read_text() == key.hex()
