"""Secure sums: exact in the ring, whoever drops out, and nothing of a single update at the server."""

import json
import sys
import time

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import (
    AnonymousMean,
    CommunicationAware,
    MemorizedMean,
    NormalizedMean,
    SecureSum,
    ServerMomentum,
)
from fl_lightning.cli.main import main
from fl_lightning.runs.storage import checkpoints, read_checkpoint
from fl_lightning.samplers import DiversityBased, NormProportional
from fl_lightning.secure import FixedPoint, Participant, recover, secure_sum, split
from fl_lightning.secure.primitives import KeyPair, library, mask, opened, sealed
from fl_lightning.uploads import Clip, GaussianMechanism
from systems import gaussian_federation, linear_module, small_loop


@pytest.mark.parametrize("num_trials", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_sums_with_random_drop_outs_are_exact(num_trials):
    rng = np.random.default_rng(0)
    failed = 0
    for trial in range(num_trials):
        num_clients, bits = int(rng.integers(2, 7)), (32, 64)[trial % 2]
        clients = rng.choice(1000, num_clients, replace=False).tolist()
        threshold = int(rng.integers(2, num_clients + 1))
        present = [client for client in clients if rng.random() < 0.8]
        ring = FixedPoint(bound=3.0, num_parties=num_clients, bits=bits)
        vectors = {client: rng.uniform(-3, 3, 4) for client in present}
        total, view = secure_sum(vectors, clients, ring, threshold, f"trial {trial}")
        if len(present) < threshold:
            failed += 1
            assert total is None
            assert not view.shares  # nobody revealed anything
            continue
        plain = sum((ring.encode(vector) for vector in vectors.values()), np.zeros(4, dtype=ring.dtype))
        assert np.array_equal(view.total(), plain)
        assert np.abs(total - sum(vectors.values())).max() <= len(present) * ring.step / 2 + 1e-12
    assert 0.05 < failed / num_trials < 0.7


def test_the_servers_view_contains_no_single_update():
    rng = np.random.default_rng(1)
    size, clients = 20_000, [3, 5, 8, 9]
    ring = FixedPoint(bound=1.0, num_parties=4, bits=32)
    vectors = {client: rng.uniform(-1, 1, size) for client in clients[:3]}
    total, view = secure_sum(vectors, clients, ring, threshold=2)
    assert np.abs(total - sum(vectors.values())).max() < 4 * ring.step
    encoded = {client: ring.encode(vector) for client, vector in vectors.items()}
    for client, seen in view.masked.items():
        for other in encoded.values():
            assert abs(np.corrcoef(seen.astype(float), other.view(np.int32).astype(float))[0, 1]) < 0.05
        assert (seen == encoded[client]).mean() < 1e-3
        counts = np.bincount(seen >> 28, minlength=16)  # uniform: chi-square with 15 degrees of freedom
        assert ((counts - size / 16) ** 2 / (size / 16)).sum() < 45
    # Sums of some of the masked vectors, with all masks that the revealed secrets give, are still masked.
    for chosen in ([3], [5], [3, 5], [5, 8]):
        part = sum((view.masked[client] for client in chosen), np.zeros(size, dtype=ring.dtype))
        for client in chosen:
            part -= mask(recover(view.shares[client]).to_bytes(32, "big"), size, ring.dtype)
        plain = sum((encoded[client] for client in chosen), np.zeros(size, dtype=ring.dtype))
        assert (part == plain).mean() < 1e-3
    # Of nobody both secrets: of who arrived the shares of its own seed, of who dropped out those of its key.
    for client in clients:
        secret = recover(view.shares[client]).to_bytes(32, "big")
        assert (KeyPair(secret).public == view.directory[client][0]) == (client not in view.masked)


def test_shares_are_sealed_for_their_receivers():
    parties = {client: Participant(client, "s") for client in (0, 1, 2)}
    directory = {client: party.public for client, party in parties.items()}
    messages = parties[0].shares(directory, 2)
    assert len({len(message) > 100 for message in messages.values()}) == 1
    with pytest.raises(Exception):  # noqa: B017, PT011  (cryptography's InvalidTag)
        parties[2].reveal({0: messages[1]}, directory, survivors=[0], dropped=[])
    assert parties[1].reveal({0: messages[1]}, directory, survivors=[0], dropped=[]).keys() == {0}
    with pytest.raises(ValueError, match="both secrets"):
        parties[1].reveal({0: messages[1]}, directory, survivors=[0], dropped=[0])


def test_secrets_come_back_from_any_threshold_of_their_shares():
    rng = np.random.default_rng(2)
    for _ in range(50):
        secret, threshold = int(rng.integers(0, 2**62)) << 190, int(rng.integers(1, 6))
        shares = split(secret, threshold, [2, 3, 5, 7, 11])
        chosen = rng.permutation(list(shares))[:threshold].tolist()
        assert recover({holder: shares[holder] for holder in chosen}) == secret
        if threshold > 1:
            assert recover({holder: shares[holder] for holder in chosen[1:]}) != secret
    for arguments, message in (
        ((1, 4, [1, 2, 3]), "threshold=4"),
        ((1, 1, [0, 1]), "holders"),
        ((-1, 1, [1]), "secret"),
    ):
        with pytest.raises(ValueError, match=message):
            split(*arguments)


def test_keys_agree_for_two_and_differ_by_purpose():
    one, two = KeyPair(), KeyPair()
    assert one.agree(two.public, "a") == two.agree(one.public, "a") != one.agree(two.public, "b")
    assert KeyPair(one.private).public == one.public
    key = one.agree(two.public, "a")
    assert opened(key, sealed(key, {"key": 2**500})) == {"key": 2**500}


def play(aggregator=None, sampler=None, rounds=6, **settings):
    loop = small_loop(sampler, aggregator=aggregator, rounds=rounds, **settings)
    return loop, list(loop.iterate(linear_module(), gaussian_federation()))


@pytest.mark.parametrize("weighting", [None, NormalizedMean(), CommunicationAware()], ids=["none", "nova", "links"])
def test_a_secure_run_is_the_plain_run(weighting):
    plain, before = play(weighting or AnonymousMean())
    secure, after = play(SecureSum(bound=1e4, threshold=2, weighting=weighting))
    failed = [int(row.metrics["failed_sums"]) for row in after]
    arrivals = [len(row.updates) for row in after]
    assert failed == np.cumsum([number < 2 for number in arrivals]).tolist()
    for left, right in zip(before, after, strict=True):
        assert np.array_equal(left.plan.expected.contribution, right.plan.expected.contribution)
    assert not torch.allclose(secure.state.weights, plain.state.weights, atol=1e-2)  # too few arrived in some rounds
    begins_alike(weighting or AnonymousMean(), SecureSum(bound=1e4, threshold=2, weighting=weighting))


def begins_alike(plain, secure, rounds=2, **settings):
    """Check that both end with the same weights after the first rounds, in which enough clients arrive for a sum."""
    expected, _ = play(plain, rounds=rounds, **settings)
    found, rows = play(secure, rounds=rounds, **settings)
    assert [row.metrics["failed_sums"] for row in rows] == [0] * rounds
    assert torch.allclose(found.state.weights, expected.state.weights, atol=1e-5)
    return rows


def test_one_step_is_the_plain_one_to_the_quantisation_step():
    _, (result, *_) = play()
    plan, updates, delivered = result.plan, result.updates, result.delivered
    part = SecureSum(bound=1e3, threshold=2, bits=32)
    plain = AnonymousMean().direction(updates, delivered, plan)
    found = part.direction(updates, delivered, plan)
    assert len(updates) >= 2
    step = FixedPoint(1e3, len(plan.cohort.clients), 32).step
    assert float((found - plain).abs().max()) <= len(updates) * step / plan.cohort.num_draws + 1e-6


def test_too_few_arrivals_leave_the_model_as_it_is():
    loop = small_loop(aggregator=SecureSum(bound=1e4, threshold=1.0 - 1e-9), rounds=8)
    weights, kept = None, 0
    for result in loop.iterate(linear_module(), gaussian_federation()):
        if weights is not None and len(result.updates) < max(2, len(result.plan.cohort.clients)):
            assert torch.equal(loop.state.weights, weights)
            kept += 1
        weights = loop.state.weights
    assert kept == loop.algorithm.aggregator.num_failed or kept == loop.algorithm.aggregator.num_failed - 1
    assert kept > 0


def test_noise_of_the_server_goes_on_top():
    from fl_lightning.callbacks import SamplerSelection
    from fl_lightning.samplers import HeterogeneityAware, Independent

    settings = {"sampling": SamplerSelection(HeterogeneityAware(), 5, Independent())}
    noise = [GaussianMechanism(Clip(1.0), noise_multiplier=0.5, key=0)]
    rows = begins_alike(AnonymousMean(), SecureSum(bound=1e4, threshold=2), rounds=4, uploads=noise, **settings)
    assert rows[-1].metrics["epsilon"] > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: play(SecureSum(bound=1e-3, threshold=2)), r"above the declared bound=0.001: raise the bound"),
        (lambda: play(SecureSum(bound=1.0, threshold=7)), "threshold=7 is above the 3 draws"),
        (lambda: SecureSum(bound=0.0), "bound=0.0"),
        (lambda: SecureSum(bound=float("inf")), "bound=inf"),
        (lambda: SecureSum(bound=1.0, threshold=0), "threshold=0"),
        (lambda: SecureSum(bound=1.0, threshold=1.5), "threshold=1.5"),
        (lambda: SecureSum(bound=1.0, bits=16), "bits=16"),
        (lambda: SecureSum(bound=1.0, weighting=MemorizedMean()), "MemorizedMean needs each update"),
        (lambda: play(SecureSum(bound=1e4), sampler=DiversityBased()), "DiversityBased draws by what clients compute"),
        (lambda: play(SecureSum(bound=1e4), sampler=NormProportional()), "NormProportional draws by what"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_momentum_on_the_server_takes_a_secure_sum():
    begins_alike(ServerMomentum(AnonymousMean(), lr=0.1), ServerMomentum(SecureSum(bound=1e4, threshold=2), lr=0.1))


def test_a_missing_library_is_one_line_and_nothing_secret_is_left_behind(monkeypatch, tmp_path, capsys):
    arguments = ["--config", "digits_secaggfedacs.yaml", "--logger", "none", "--loop.rounds", "2"]
    assert main(["train", *arguments, "--run_dir", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "key" not in said.out + said.err
    stored = read_checkpoint(checkpoints(tmp_path / "run" / "checkpoints")[-1][1])
    assert set(stored["loop"]["parts"]["aggregator"]) == {"num_failed", "weighting"}
    assert "failed_sums" in (tmp_path / "run" / "metrics.csv").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["algorithm"] == "secaggfedacs"
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    assert main(["train", *arguments, "--run_dir", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith("pip install -e '.[privacy]' in your clone")


@pytest.mark.slow
def test_a_million_values_of_a_hundred_clients():
    size, clients = 10**6, list(range(100))
    ring = FixedPoint(bound=1.0, num_parties=100, bits=32)
    parties = {client: Participant(client, "big") for client in clients}
    directory = {client: party.public for client, party in parties.items()}
    values = ring.encode(np.zeros(size))
    began = time.process_time()
    parties[0].shares(directory, 67)
    shared = time.process_time()
    parties[0].masked(values, directory)
    masked = time.process_time()
    print(f"shares {shared - began:.2f} s, masking {masked - shared:.2f} s")
    assert masked - began < 2


@pytest.mark.parametrize(("num_parties", "bits"), [(4096, 32), (100_000, 32), (4096, 64)])
def test_a_sum_at_the_bound_does_not_wrap_around(num_parties, bits):
    """Each entry may be rounded up by half a step, and all of them in the same direction."""
    ring = FixedPoint(bound=1.0, num_parties=num_parties, bits=bits)
    for value in (1.0, -1.0):
        encoded = ring.encode(np.array([value]))
        total = (encoded.astype(ring.dtype) * ring.dtype(num_parties)).astype(ring.dtype)
        assert ring.decode(total)[0] == pytest.approx(value * num_parties, rel=1e-4)


@pytest.mark.parametrize("sampler", [DiversityBased(), NormProportional()], ids=["DiversityBased", "NormProportional"])
def test_a_server_optimizer_around_a_secure_sum_needs_what_the_sum_needs(sampler):
    with pytest.raises(ValueError, match="SecureSum hides single updates"):
        small_loop(sampler, aggregator=ServerMomentum(SecureSum(1e3))).run(linear_module(), gaussian_federation())
