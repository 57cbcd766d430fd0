"""Compressed uploads: mean, variance, size and memory against their definitions."""

import numpy as np
import pytest
import torch

from fl_lightning.types import Cohort, Updates
from fl_lightning.uploads import Quantized, RandomK, Signs, TopK
from made import made_profiles
from systems import gaussian_federation, linear_module, made_plan, small_loop

D = 40


def plan(index, num_clients):
    ones = np.ones(num_clients)
    counts = ones.astype(np.int64)
    profiles = made_profiles(weights=ones / num_clients, num_steps=counts, failure_rates=0 * ones, accumulation=ones)
    cohort = Cohort(probabilities=ones / num_clients, coefficients=ones, counts=counts, num_draws=num_clients)
    return made_plan(index, profiles, cohort, ones, learning_rate=float(num_clients))


def sent(upload, rows, num_rounds=1, first=1, seed=0):
    """Upload the same rows in each round, (rounds, n, d)."""
    clients = np.arange(len(rows))
    steps = np.ones(len(rows), dtype=np.int64)
    made = []
    for index in range(first, first + num_rounds):
        updates = Updates(
            clients=clients, deltas=rows, buffers=rows.new_empty((len(rows), 0)), num_steps=steps, losses=0.0 * steps
        )
        made.append(upload(updates, plan(index, len(rows)), seed).deltas)
    return torch.stack(made)


@pytest.fixture
def rows():
    return torch.randn(3, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("upload", [Quantized(3), Quantized(8), RandomK(0.25)], ids=["QSGD 3", "QSGD 8", "random-k"])
def test_unbiased_ones_keep_the_mean_and_have_the_stated_variance(upload, rows):
    upload.setup(3, rows[0])
    made = sent(upload, rows, 1500)
    norms = rows.square().sum(dim=1)
    variance = (made - rows).square().sum(dim=2).mean(dim=0) / norms
    if isinstance(upload, RandomK):
        assert variance.numpy() == pytest.approx(D / 10 - 1, rel=0.08)
    else:
        levels = 2 ** (upload.bits - 1) - 1
        assert (variance <= min(D / levels**2, D**0.5 / levels)).all()
        assert len(torch.unique((made[0, 0] * levels / rows[0].norm()).round(decimals=6))) <= 2 * levels + 1
    allowed = 4 * (variance * norms / 1500 / D).sqrt().max()
    assert (made.mean(dim=0) - rows).abs().max() < 2 * allowed


@pytest.mark.parametrize("upload", [TopK(0.1), RandomK(0.1, True), Signs()], ids=["top-k", "random-k", "signs"])
def test_with_feedback_everything_arrives_in_the_end(upload, rows):
    upload.setup(3, rows[0])
    total = sent(upload, rows, 300).sum(dim=0)
    assert torch.allclose(total + upload.residuals, 300 * rows)  # nothing is lost on the way
    assert (total / 300 - rows).abs().max() < 0.5


@pytest.mark.parametrize("upload", [TopK(0.1, False), Signs(False)], ids=["top-k", "signs"])
def test_without_feedback_some_of_it_never_arrives(upload, rows):
    upload.setup(3, rows[0])
    assert (sent(upload, rows, 300).mean(dim=0) - rows).abs().max() > 0.5


def test_top_k_are_the_largest(rows):
    upload = TopK(0.1, error_feedback=False)
    upload.setup(3, rows[0])
    made = sent(upload, rows)[0].numpy()
    for got, row in zip(made, rows.numpy(), strict=True):
        largest = np.sort(np.argsort(-np.abs(row))[:4])
        assert np.flatnonzero(got).tolist() == largest.tolist()
        assert (got[largest] == row[largest]).all()


def test_a_draw_depends_on_seed_round_and_client_alone(rows):
    upload = RandomK(0.25)
    upload.setup(3, rows[0])
    made = sent(upload, rows, 2)
    assert torch.equal(made, sent(upload, rows, 2))
    assert torch.equal(made[:, :2], sent(upload, rows[:2], 2))
    assert not torch.equal(made[0] != 0, made[1] != 0)
    assert not torch.equal(made[0] != 0, sent(upload, rows, seed=1)[0] != 0)
    long = torch.zeros(2, 70_000) + 1
    whole = sent(Quantized(2), long)[0]
    assert torch.equal(whole[:1], sent(Quantized(2), long[:1])[0])  # also where rows have streams of their own
    assert not torch.equal(whole[0], whole[1])


@pytest.mark.parametrize(
    ("upload", "size"),
    [(Quantized(4), 54), (TopK(0.1), 80), (RandomK(0.1), 48), (Signs(), 16.5)],
    ids=["QSGD", "top-k", "random-k", "signs"],
)
def test_uploads_are_counted_as_short_as_they_are(upload, size):
    loop = small_loop(uploads=[upload], rounds=2)
    results = list(loop.iterate(linear_module(), gaussian_federation()))
    assert loop.algorithm.uploads.num_bytes(100) == size
    assert loop.system.clock.traffic.upload == loop.algorithm.uploads.num_bytes(18)
    sent_by = sum(len(result.plan.cohort.clients) for result in results)
    assert results[-1].metrics["uplink_bytes"] == pytest.approx(sent_by * loop.algorithm.uploads.num_bytes(18))
    assert results[-1].metrics["downlink_bytes"] == sent_by * 72


@pytest.mark.parametrize("make", [lambda: TopK(0.2), lambda: Quantized(3), Signs, lambda: RandomK(0.2, True)])
def test_a_resumed_run_is_the_same(make):
    def play(rounds, resume=None):
        loop = small_loop(uploads=[make()], rounds=rounds)
        loop.run(linear_module(), gaussian_federation(), resume)
        return loop

    whole, part = play(6), play(3)
    assert torch.equal(play(6, part.state_dict()).state.weights, whole.state.weights)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [(lambda: Quantized(1), "bits=1"), (lambda: TopK(0.0), "share=0.0"), (lambda: RandomK(2.0), "share=2.0")],
)
def test_bad_values_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
