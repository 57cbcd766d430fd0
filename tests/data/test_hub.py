import numpy as np
import pytest
import torch

from fl_lightning.cli.main import main
from fl_lightning.config import building
from fl_lightning.config import compose as configs
from fl_lightning.data import FromHub
from fl_lightning.data.shakespeare import decode

datasets = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def femnist(tmp_path_factory):
    """Return a folder with the columns of flwrlabs/femnist: three writers, of whom one has a single picture."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
    rows = {
        "image": list(pixels),
        "writer_id": ["f2", "f1", "f1", "f2", "f1", "f2", "f1", "f3", "f1"],
        "hsf_id": [0] * 9,
        "character": [0, 61, 1, 2, 3, 4, 5, 6, 7],
    }
    kinds = {
        "image": datasets.Image(mode="L"),
        "writer_id": datasets.Value("string"),
        "hsf_id": datasets.Value("int64"),
    }
    kinds["character"] = datasets.ClassLabel(num_classes=62)
    folder = tmp_path_factory.mktemp("hub") / "femnist"
    datasets.Dataset.from_dict(rows, features=datasets.Features(kinds)).save_to_disk(folder)
    return str(folder), pixels


@pytest.fixture(scope="module")
def shakespeare(tmp_path_factory):
    text = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings"
    rows = {"character_id": ["HAMLET"] * 10, "x": [text[n : n + 80] for n in range(10)], "y": list(text[80:90])}
    folder = tmp_path_factory.mktemp("hub") / "shakespeare"
    datasets.Dataset.from_dict(rows).save_to_disk(folder)
    return str(folder), text


def loaded(preset, folder, *more):
    settings = building.parse(configs.compose([f"{preset}_fedavg.yaml"]), ["--data.dataset", folder, *more])
    return building.instantiate_data(settings).load(0)


def test_pictures_by_writer(femnist):
    folder, pixels = femnist
    federation = loaded("hffemnist", folder)
    assert (list(federation.names), federation.sizes.tolist()) == (["f1", "f2"], [4, 2])
    inputs, labels = federation.batch(0, np.arange(4))
    assert labels.tolist() == [61, 1, 3, 5]
    assert torch.equal(inputs[:, 0], torch.from_numpy(pixels[[1, 2, 4, 6]]).float() / 255)
    assert federation.test[1].tolist() == [7, 4]
    assert list(loaded("hffemnist", folder, "--data.num_clients", "1").names) == ["f1"]


def test_texts_by_role(shakespeare):
    folder, text = shakespeare
    federation = loaded("hfshakespeare", folder)
    inputs, targets = federation.batch(0, np.arange(8))
    assert decode(inputs[3].numpy()) == text[3:83]
    assert decode(targets[3].numpy()) == text[4:84]
    assert decode(federation.test[0][1].numpy()) == text[9:89]


def test_a_column_that_is_not_there_and_a_set_that_is_not_there(femnist, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"no column 'who': its columns are image, writer_id, hsf_id, character"):
        FromHub(femnist[0], client="who", inputs="image", label="character").load(0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty cannot be loaded .*give --data\.dataset that folder") as caught:
        FromHub(str(tmp_path / "empty"), client="a", inputs="b", label="c").load(0)
    assert "\n" not in str(caught.value)


def test_one_round_from_the_command_line(femnist, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--config", "hffemnist_fedavg.yaml", "--data.dataset", femnist[0], "--loop.rounds", "1", "--logger", "[]"]
    words += ["--loop.sampling.clients_per_round", "2", "--loop.batch_size", "2"]
    assert main(["train", *words]) == 0
    assert "round 1/1" in "".join(capsys.readouterr())
