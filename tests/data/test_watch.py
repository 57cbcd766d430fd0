import os
import pickle

import numpy as np
import pytest

from fl_lightning.data import Watch, watch
from fl_lightning.data.archives import PackageFile
from fl_lightning.data.watch import load_watch, unpickled

HEADER = bytes(128)


@pytest.fixture
def made(monkeypatch):
    """Two people, two arms, two exercises of 10 and 20 samples; each sample says whose it is, which and when."""
    series, keys = [], []
    for person in (4, 9):
        for side in (1.0, 0.0):
            for exercise, length in ((0, 10), (1, 20)):
                rows = np.zeros((length, 6))
                rows[:, 0], rows[:, 1], rows[:, 2] = person, exercise, np.arange(length)
                series.append(rows)
                keys.append((person, side, exercise))
    subject, side, exercise = (np.array(each) for each in zip(*keys, strict=True))
    table = np.array({"X": series, "y": exercise, "subject": subject, "side": side}, dtype=object)
    packed = HEADER + pickle.dumps(table, protocol=2).replace(b"numpy._core", b"numpy.core")
    monkeypatch.setattr(PackageFile, "members", lambda *_: [packed])
    monkeypatch.setattr(watch, "_MEAN", (0.0,) * 6)
    monkeypatch.setattr(watch, "_STD", (1.0,) * 6)


def test_the_last_windows_of_each_exercise_are_the_test(made):
    federation = Watch(length=2, test_share=0.2).load(0)
    assert list(federation.names[1:3]) == ["person 4, right arm", "person 9, left arm"]
    assert federation.sizes.tolist() == [12] * 4
    inputs, labels = federation.batch(2, np.arange(12))
    assert inputs.shape == (12, 6, 2)
    assert set(inputs[:, 0].flatten().tolist()) == {9.0}
    assert inputs[:, 1, 0].tolist() == labels.tolist()
    trained = {(int(label), int(each[2, 0])) for each, label in zip(inputs, labels, strict=True)}
    assert trained == {(0, time) for time in range(0, 8, 2)} | {(1, time) for time in range(0, 16, 2)}
    assert sorted(federation.test[0][:3, 2, 1].tolist()) == [9.0, 17.0, 19.0]


def test_people_nobody_trained_on(made):
    federation = Watch(length=2, test_people=1).load(0)
    assert list(federation.names) == ["person 4, left arm", "person 4, right arm"]
    assert set(federation.train[0][federation.order][:, 0].flatten().tolist()) == {4.0}
    assert set(federation.test[0][:, 0].flatten().tolist()) == {9.0}
    with pytest.raises(ValueError, match="test_people must lie between 0 and 9, got 10"):
        Watch(test_people=10)


class Runs:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "hostile", [Runs(os.system, "touch ran"), Runs(eval, "open('ran', 'w')"), Runs(getattr, "os", "x")]
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch, hostile, wrapped):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(np.array({"X": hostile}, dtype=object) if wrapped else hostile)
    with pytest.raises(ValueError, match=r"it is damaged \(it wants to run .*start again") as caught:
        unpickled(content, "it")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"\x80", b"noise", pickle.dumps(np.zeros(9))[:-20], b"X" * 99])
def test_a_damaged_pickle_is_refused_in_one_line(content):
    with pytest.raises(ValueError, match="it is damaged"):
        unpickled(content, "it")


@pytest.mark.realdata
def test_the_real_series():
    root = os.environ.get("FL_LIGHTNING_DATA", "datasets")
    series = load_watch(root)
    assert sum(map(len, series["X"])) == 244_102
    assert len(set(series["subject"])) == 10
    federation = Watch(root).load(0)
    assert (federation.num_clients, int(federation.sizes.sum()), len(federation.test[1])) == (20, 1895, 474)
    whole = np.concatenate(series["X"])
    np.testing.assert_allclose(watch._MEAN, whole.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(watch._STD, whole.std(axis=0), rtol=2e-3)
