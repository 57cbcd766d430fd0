import os

import numpy as np
import pytest
import torch

from fl_lightning.data import Shakespeare, shakespeare
from fl_lightning.data.archives import PackageFile
from fl_lightning.data.derived import HeldOut, ValidationSplit
from fl_lightning.data.shakespeare import decode, load_roles

STOPPED = """ACT I.

HAMLET.
To be, or not to be;
  that is the question.

[Enter Ghost.]

Ghost.
Mark [aside] me.

HAMLET.
I will.

This line is nobody's.
"""
BARE = "THESEUS\nNow, fair Hippolyta,\n\nHIPPOLYTA\nFour days.\n\nTHESEUS\nGo, Philostrate\n"


@pytest.fixture
def plays(monkeypatch):
    """Serve two plays in place of those of the package."""
    texts = {"hamlet": STOPPED.replace("\n", "\r\n"), "midsummer_nights_dream": BARE}
    monkeypatch.setattr(shakespeare, "_PLAYS", list(texts))
    monkeypatch.setattr(PackageFile, "members", lambda *_: [text.encode("latin-1") for text in texts.values()])


def test_roles_are_found_by_both_rules(plays):
    assert load_roles("") == {
        "hamlet: GHOST": "Mark  me.",
        "hamlet: HAMLET": "To be, or not to be;\nthat is the question.\nI will.",
        "midsummer nights dream: HIPPOLYTA": "Four days.",
        "midsummer nights dream: THESEUS": "Now, fair Hippolyta,\nGo, Philostrate",
    }


def test_targets_are_one_character_later_and_the_last_windows_are_the_test(plays):
    federation = Shakespeare(min_characters=20, length=5, test_share=0.25).load(3)
    assert list(federation.names) == ["hamlet: HAMLET", "midsummer nights dream: THESEUS"]
    text = load_roles("")["hamlet: HAMLET"]
    inputs, targets = federation.batch(0, np.arange(federation.sizes[0]))
    number = (len(text) - 1) // 5
    kept = number - round(0.25 * number)
    assert "".join(decode(row) for row in inputs.numpy()) == text[: 5 * kept]
    assert "".join(decode(row) for row in targets.numpy()) == text[1 : 5 * kept + 1]
    tested = "".join(decode(row) for row in federation.test[0].numpy())
    assert tested.startswith(text[5 * kept : 5 * number])
    assert len(tested) == 5 * (number - kept) + 5 * 2


def test_what_is_held_out_of_a_client_is_its_last(plays):
    federation = Shakespeare(min_characters=20, length=1).load(0)
    whole = decode(federation.batch(0, np.arange(federation.sizes[0]))[0][:, 0].numpy())
    held = HeldOut(federation, 0.25, 0)
    assert decode(held.own_batch(0, 1000)[0][:, 0].numpy()) == whole[held.sizes[0] :]
    assert decode(held.training().batch(0, np.arange(held.sizes[0]))[0][:, 0].numpy()) == whole[: held.sizes[0]]
    part = ValidationSplit(Shakespeare(min_characters=20, length=1), 0.25).load(0)
    assert list(part.names) == list(federation.names)
    assert decode(part.batch(0, np.arange(part.sizes[0]))[0][:, 0].numpy()) == whole[: part.sizes[0]]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [({"length": 0}, "length"), ({"test_share": 1.0}, "test_share"), ({"min_characters": 99}, "no role")],
)
def test_bad_arguments(plays, wrong, match):
    with pytest.raises(ValueError, match=match):
        Shakespeare(**{"min_characters": 20, **wrong}).load(0)


@pytest.mark.realdata
def test_the_real_roles():
    roles = load_roles(os.environ.get("FL_LIGHTNING_DATA", "datasets"))
    sizes = np.array([len(text) for text in roles.values()])
    assert (len(roles), int((sizes >= 2000).sum()), int(sizes.sum())) == (1339, 438, 3_984_121)
    assert sum(name.startswith("midsummer") for name in roles) == 34
    federation = Shakespeare(os.environ.get("FL_LIGHTNING_DATA", "datasets")).load(0)
    assert (federation.num_clients, int(federation.sizes.sum()), len(federation.test[0])) == (438, 34_882, 8_724)
    inputs, targets = federation.train
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
