"""Attackers send what they are said to send, and nobody else does."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fl_lightning.data import Digits, FlippedLabels, OneClassPerClient, Quadratic
from fl_lightning.uploads import Attack
from fl_lightning.uploads.attacks import attackers
from systems import gaussian_federation, linear_module, small_loop


@pytest.fixture(scope="module")
def round_one():
    loop = small_loop(rounds=1)
    loop.algorithm.sampling.clients_per_round = 60
    (result,) = loop.iterate(linear_module(), gaussian_federation(num_clients=10))
    assert len(result.updates) > 6
    return result


def sent(result, seed=0, **settings):
    """Return before and after, per unit of work, and who attacks."""
    attack = Attack(share=0.7, **settings)
    after = attack(result.updates, result.plan, seed)
    work = torch.from_numpy(result.plan.profiles.accumulation[after.clients]).float()[:, None]
    bad = np.isin(after.clients, attackers(10, 0.7, seed))
    assert torch.equal(after.deltas[~bad], result.updates.deltas[~bad])
    assert 0 < bad.sum() < len(bad)
    return result.updates.deltas / work, after.deltas / work, bad


def test_each_kind_of_attack(round_one):
    before, after, bad = sent(round_one, kind="sign_flip", strength=3.0)
    assert torch.allclose(after[bad], -3 * before[bad])
    honest = before[~bad]
    _, after, _ = sent(round_one, kind="inner_product", strength=0.5)
    assert torch.allclose(after[bad], (-0.5 * honest.mean(dim=0)).expand_as(after[bad]), atol=1e-6)
    _, after, _ = sent(round_one, kind="little_is_enough", strength=1.5)
    wanted = honest.mean(dim=0) - 1.5 * honest.std(dim=0, correction=0)
    assert torch.allclose(after[bad], wanted.expand_as(after[bad]), atol=1e-5)
    _, after, _ = sent(round_one, kind="free_rider")
    assert not after[bad].any()
    _, after, _ = sent(round_one, kind="gaussian", strength=2.0)
    assert torch.allclose(after[bad].norm(dim=1), 2 * before[bad].norm(dim=1), rtol=1e-4)
    assert not torch.allclose(after[bad][0], after[bad][1])


def test_attackers_are_a_function_of_the_seed_and_obey_their_schedule(round_one):
    assert attackers(20, 0.2, 3).tolist() == attackers(20, 0.2, 3).tolist() != attackers(20, 0.2, 4).tolist()
    assert len(attackers(20, 0.25, 0)) == 5
    updates = round_one.updates
    for index, changed in ((1, False), (2, True), (3, True), (4, False)):
        plan = replace(round_one.plan, index=index)
        after = Attack(share=0.5, first_round=2, last_round=3)(updates, plan, 0)
        assert torch.equal(after.deltas, updates.deltas) != changed


def test_labels_of_attackers_are_flipped_and_those_of_others_are_not():
    data = Digits(OneClassPerClient(20, assignment="cyclic"))
    plain, flipped = data.load(0), FlippedLabels(data, 0.2).load(0)
    bad = attackers(20, 0.2, 0)
    for client in range(20):
        every = np.arange(plain.sizes[client])
        own, other = plain.batch(client, every)[1], flipped.batch(client, every)[1]
        assert torch.equal(other, 9 - own if client in bad else own)
    assert torch.equal(flipped.test[1], plain.test[1])
    with pytest.raises(ValueError, match="Quadratic has something else"):
        FlippedLabels(Quadratic(num_clients=3)).load(0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "shout"}, "kind='shout' is unknown"),
        ({"share": 1.0}, "share=1.0"),
        ({"strength": 0.0}, "strength=0.0"),
        ({"first_round": 3, "last_round": 2}, "first_round=3, last_round=2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_values_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Attack(**settings)
