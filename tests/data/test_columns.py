"""Labels and other columns of a data set: found where they usually are, or asked for, never made up."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Subset, TensorDataset

from fl_lightning.data import IID, ByColumn, Digits, Dirichlet, FromDataModule, GivenIndices, OneClassPerClient
from fl_lightning.data.given import column_values, find_labels

WORDS = ["cat", "dog", "cat", "eel", "dog", "cat"]
LABELS = [0, 1, 0, 2, 1, 0]
ANIMALS = [{"x": torch.tensor([float(i)]), "animal": word, "user_id": i % 2} for i, word in enumerate(WORDS)]


class Given(LightningDataModule):
    def __init__(self, dataset, **settings):
        super().__init__()
        self.dataset, self.settings = dataset, settings

    def train_dataloader(self):
        return DataLoader(self.dataset, **self.settings)

    val_dataloader = train_dataloader


class WithAttribute(list):
    pass


def with_attribute(name, values):
    data = WithAttribute([torch.zeros(1)] * len(values))
    setattr(data, name, values)
    return data


@pytest.mark.parametrize("partition", [Dirichlet(2, alpha=0.1), OneClassPerClient(3)], ids=["Dirichlet", "one class"])
def test_a_split_by_label_without_labels_is_refused(partition):
    with pytest.raises(ValueError, match=r"splits by label, but .* has none .*'x', 'animal', 'user_id'; give labels="):
        FromDataModule(Given(ANIMALS), partition).load(0)


def test_a_float_target_is_no_label():
    with pytest.raises(ValueError, match="splits by label"):
        FromDataModule(Given(TensorDataset(torch.randn(10, 3), torch.randn(10))), Dirichlet(2, alpha=1.0)).load(0)
    with pytest.raises(ValueError, match="splits by label"):
        FromDataModule(Given(with_attribute("targets", [0.5, 1.5, 2.5])), Dirichlet(2, alpha=1.0)).load(0)


@pytest.mark.parametrize("given", ["animal", lambda example: example["animal"], LABELS, np.array(LABELS)])
def test_labels_can_be_named_computed_or_given(given):
    federation = FromDataModule(Given(ANIMALS), OneClassPerClient(3), labels=given).load(0)
    assert [sorted(int(i) for i in part.indices) for part in federation.datasets] == [[0, 2, 5], [1, 4], [3]]


@pytest.mark.parametrize("name", ["label", "labels", "target", "targets"])
def test_usual_names_are_recognised(name):
    assert find_labels([{"x": 0.0, name: label} for label in LABELS]).tolist() == LABELS
    assert find_labels([{"x": 0.0, name: torch.tensor(label)} for label in LABELS]).tolist() == LABELS
    assert find_labels(with_attribute(name, LABELS)).tolist() == LABELS
    assert find_labels(with_attribute(name, torch.tensor(LABELS))).tolist() == LABELS


def test_labels_are_found_through_a_subset():
    whole = with_attribute("targets", LABELS)
    assert find_labels(Subset(Subset(whole, [5, 4, 3, 1]), [0, 2])).tolist() == [0, 2]
    pairs = TensorDataset(torch.zeros(6, 2), torch.tensor(LABELS))
    assert find_labels(Subset(pairs, [3, 1])).tolist() == [2, 1]


def test_a_list_of_tokens_called_labels_is_not_taken_for_a_label():
    assert find_labels([{"labels": [1, 2, 3]}, {"labels": [4, 5, 6]}]) is None


def test_wrong_columns_are_named():
    with pytest.raises(ValueError, match=r"no column 'colour' in a list: its examples have the keys 'x'"):
        find_labels(ANIMALS, "colour")
    with pytest.raises(ValueError, match=r"shape \(2,\), but the data set has 6 examples"):
        find_labels(ANIMALS, [0, 1])
    with pytest.raises(ValueError, match="group them first"):
        find_labels(ANIMALS, [0.5] * 6)


def test_labels_for_a_split_that_ignores_them_are_refused():
    for partition in (IID(2), GivenIndices([[0], [1]]), ByColumn("user_id")):
        with pytest.raises(ValueError, match="looks at no labels"):
            FromDataModule(Given(ANIMALS), partition, labels="animal").load(0)


def test_each_user_is_a_client():
    federation = FromDataModule(Given(ANIMALS), ByColumn("user_id")).load(0)
    assert [[int(i) for i in part.indices] for part in federation.datasets] == [[0, 2, 4], [1, 3, 5]]
    by_animal = FromDataModule(Given(ANIMALS), ByColumn("animal", min_size=2)).load(0)
    assert by_animal.sizes.tolist() == [3, 2]


def test_a_column_can_be_a_position_or_the_values():
    pairs = TensorDataset(torch.arange(4.0), torch.tensor([7, 5, 7, 5]))
    assert [part.tolist() for part in ByColumn(1).split_dataset(pairs, None)] == [[1, 3], [0, 2]]
    assert [part.tolist() for part in ByColumn(["u", "v", "v", "u"]).split_dataset(pairs, None)] == [[0, 3], [1, 2]]
    assert column_values(pairs, lambda pair: pair[0] > 1).tolist() == [False, False, True, True]


def test_a_column_of_users_is_not_taken_from_the_labels():
    with pytest.raises(ValueError, match="has labels but no column 'user_id'"):
        Digits(ByColumn("user_id")).load(0)
    with pytest.raises(ValueError, match="no value of 'user_id' has min_size=9 examples, most: 3"):
        FromDataModule(Given(ANIMALS), ByColumn("user_id", min_size=9)).load(0)


def test_a_data_module_may_have_a_loader_for_each_client():
    class Hospitals(LightningDataModule):
        def train_dataloader(self):
            return {"north": DataLoader(ANIMALS[:2]), "south": DataLoader(ANIMALS[2:])}

        def val_dataloader(self):
            return DataLoader(ANIMALS)

    assert FromDataModule(Hospitals()).load(0).sizes.tolist() == [2, 4]
    with pytest.raises(ValueError, match="one DataLoader, but returned dict"):
        FromDataModule(Hospitals(), IID(2)).load(0)
    with pytest.raises(ValueError, match=r"Given returns one loader, .* give a partition"):
        FromDataModule(Given(ANIMALS)).load(0)


def test_hugging_face_data_sets_are_split_and_batched():
    datasets = pytest.importorskip("datasets")
    rows = {"x": [[float(i), 1.0] for i in range(12)], "label": LABELS * 2, "user_id": ["b", "a", "b"] * 4}
    table = datasets.Dataset.from_dict(rows).with_format("torch")
    federation = FromDataModule(Given(table), OneClassPerClient(3)).load(0)
    assert federation.sizes.tolist() == [6, 4, 2]
    batch = federation.batch(1, np.array([0, 3]))
    assert batch["label"].tolist() == [1, 1]
    assert batch["x"].tolist() == [[1.0, 1.0], [10.0, 1.0]]
    users = FromDataModule(Given(table), ByColumn("user_id")).load(0)
    assert users.sizes.tolist() == [4, 8]
    assert len(next(users.test_batches(5))["x"]) == 1  # the batch size of the data module's own loader
    with pytest.raises(ValueError, match="splits by label"):
        FromDataModule(Given(table.remove_columns("label")), Dirichlet(2, alpha=0.1)).load(0)
