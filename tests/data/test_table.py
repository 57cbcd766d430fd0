"""Data as it comes: tables with a column of clients, empty clients, and the names of a DataLoader."""

import logging

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import TensorDataset

from fl_lightning import DatasetFederation, FederatedLoop, FederatedModule, TensorFederation
from fl_lightning.data import FromTable


def frame(labels=("sick", "well")):
    rng = np.random.default_rng(0)
    hospital = np.repeat(["north", "east", "west"], [30, 20, 10])
    outcome = np.asarray(labels)[rng.integers(0, 2, 60)]
    return pandas.DataFrame({"age": rng.normal(size=60), "hospital": hospital, "dose": range(60), "outcome": outcome})


@pytest.mark.parametrize("as_file", [False, True])
def test_a_table_with_a_column_of_clients_is_a_federation(as_file, tmp_path):
    table = frame()
    if as_file:
        table.to_csv(tmp_path / "visits.csv", index=False)
    source = FromTable(str(tmp_path / "visits.csv") if as_file else table, client="hospital", label="outcome")
    federation = source.load(0)
    assert source.names == ["east", "north", "west"]
    assert federation.sizes.tolist() == [16, 24, 8]
    assert (federation.train[0].shape, federation.train[1].dtype) == ((60, 2), torch.int64)
    assert len(federation.test[0]) == 12
    result = FederatedLoop(rounds=2, lr=0.001).run(FederatedModule(torch.nn.Linear(2, 2), 2), source)
    assert len(result.history) == 2


def test_rows_of_their_own_for_the_test_and_a_regression():
    table, rest = frame((0.5, 1.5)).iloc[:50], frame((0.5, 1.5)).iloc[50:]
    federation = FromTable(table, "hospital", "outcome", test=rest).load(0)
    assert federation.train[1].dtype == torch.float32
    assert (sum(federation.sizes), len(federation.test[0])) == (50, 10)


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (lambda table: table, {"client": "ward"}, "no column 'ward': its columns are age, hospital"),
        (lambda table: table.assign(sex="f"), {}, "column 'sex' holds no numbers"),
        (lambda table: table.assign(age=np.nan), {}, "empty cells"),
        (lambda table: table, {"test": 1.5}, "test=1.5 must be a share"),
        (lambda table: table, {"test": frame(("sick", "dead"))}, "that no training row has"),
    ],
)
def test_what_does_not_fit_is_named(change, settings, message):
    with pytest.raises(ValueError, match=message):
        FromTable(change(frame()), **({"client": "hospital", "label": "outcome"} | settings)).load(0)


def test_a_frame_by_itself_names_what_to_use():
    with pytest.raises(TypeError, match=r"FromTable\(frame, client="):
        FederatedLoop(rounds=1, lr=0.1).run(FederatedModule(torch.nn.Linear(2, 2), 2), frame())


def test_clients_without_examples_are_left_out_with_one_line(caplog):
    values, labels = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    whole = TensorDataset(values, labels)
    with caplog.at_level(logging.WARNING, "fl_lightning"):
        made = TensorFederation((values, labels), (values, labels), [[0, 1], [], [2, 3, 4, 5]])
        several = DatasetFederation([whole, TensorDataset(values[:0], labels[:0])], whole)
    assert made.sizes.tolist() == [2, 4]
    assert several.sizes.tolist() == [6]
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "left out 1 of 3 clients, which have no training example: 1"
    assert len(lines) == 2
    with pytest.raises(ValueError, match="1 of 1 clients have no training example"):
        DatasetFederation([TensorDataset(values[:0])], whole)


def test_collate_fn_is_taken_as_collate_is():
    whole = TensorDataset(torch.arange(4.0))
    made = DatasetFederation([whole], collate_fn=lambda examples: len(examples))
    assert made.batch(0, np.array([0, 1, 2])) == 3
    with pytest.raises(ValueError, match="collate and collate_fn are the same"):
        DatasetFederation([whole], collate=list, collate_fn=list)
