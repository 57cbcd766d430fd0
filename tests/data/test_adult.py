import os

import numpy as np
import pytest

from fl_lightning.data import Adult
from fl_lightning.data.archives import PackageFile

ROW = "{age}, Private, 1, HS-grad, 9, Divorced, {job}, Husband, White, Male, {gain}, 0, 40, {country}, {income}"


@pytest.fixture
def made(monkeypatch):
    keys = ("age", "job", "gain", "country", "income")

    def rows(*people):
        return "\n".join(ROW.format(**dict(zip(keys, each, strict=True))) for each in people)

    train = rows((20, "Sales", 0, "Cuba", "<=50K"), (60, "?", 99, "Peru", ">50K"), (30, "Sales", 0, "Peru", ">50K"))
    test = "|1x3 Cross validator\n" + rows((40, "Craft", 0, "Cuba", ">50K."), (40, "Sales", 0, "Oz", "<=50K.")) + "\n\n"
    monkeypatch.setattr(PackageFile, "members", lambda *_: [train.encode(), test.encode()])


def test_clients_are_occupations_or_countries(made):
    federation = Adult().load(0)
    assert list(federation.names) == ["unknown", "Sales"]
    assert federation.batch(1, np.arange(2))[1].tolist() == [0, 1]
    assert federation.test[1].tolist() == [1, 0]
    assert federation.train[0][:, 5:].sum(dim=1).tolist() == [7.0] * 3  # one of each category
    assert federation.test[0][:, 5:].sum(dim=1).tolist() == [6.0] * 2  # a job and a country that nobody trained on
    countries = Adult(clients="country").load(0)
    assert (list(countries.names), countries.sizes.tolist()) == (["Cuba", "Peru"], [1, 2])
    with pytest.raises(ValueError, match="clients='age' is unknown"):
        Adult(clients="age")


@pytest.mark.realdata
def test_the_real_table():
    root = os.environ.get("FL_LIGHTNING_DATA", "datasets")
    federation = Adult(root).load(0)
    assert (federation.num_clients, federation.sizes.min(), federation.sizes.max()) == (15, 9, 4140)
    assert (tuple(federation.train[0].shape), len(federation.test[1])) == ((32_561, 91), 16_281)
    assert float(federation.train[1].float().mean()) == pytest.approx(0.2408, abs=1e-4)
    assert (federation.train[0][:, :5].mean(dim=0).abs() < 0.03).all()
    assert Adult(root, "country").load(0).num_clients == 42
