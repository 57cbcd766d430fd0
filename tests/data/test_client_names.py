"""Names of clients stay: from tables, columns, dicts and loaders to clients.csv, W&B and pages."""

import csv
import json
import logging
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import FederatedLoop
from fl_lightning.callbacks import RunRecorder
from fl_lightning.cli.main import main
from fl_lightning.data import ByColumn, FromDataModule, FromTable, ValidationSplit
from fl_lightning.data.given import as_federation
from fl_lightning.diagnosis.words import objective_line
from fl_lightning.runs import reading
from systems import linear_module

NAMES = ["Ada", "Bo, Jr.", "<b>Eve</b>"]


def frame(rows=30):
    torch.manual_seed(0)
    values = {f"x{place}": torch.randn(rows).tolist() for place in range(5)}
    return pandas.DataFrame({**values, "who": [NAMES[row % 3] for row in range(rows)], "y": [0, 1, 2] * (rows // 3)})


def dataset(rows=6):
    return TensorDataset(torch.randn(rows, 5), torch.arange(rows) % 3)


class Wards(LightningDataModule):
    def train_dataloader(self):
        return {name: DataLoader(dataset()) for name in NAMES}

    def val_dataloader(self):
        return DataLoader(dataset())


class Records(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, row):
        return {"x": torch.randn(2), "y": row % 3, "who": NAMES[row % 3]}


@pytest.mark.parametrize(
    "made",
    [
        lambda: FromTable(frame(), "who", "y").load(0),
        lambda: FromTable(frame(), "who", "y", test=frame(9)).load(0),
        lambda: ValidationSplit(FromTable(frame(), "who", "y"), 0.2).load(0),
        lambda: as_federation({name: dataset() for name in sorted(NAMES)}, 0, test=dataset()),
        lambda: as_federation(Records(), 0, ByColumn("who"), Records()),
        lambda: FromDataModule(Wards()).load(0),
    ],
)
def test_a_federation_knows_the_names_of_its_clients(made):
    assert sorted(made().names) == sorted(NAMES)


def test_hugging_face_columns_name_the_clients():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"who": ["b", "a", "b"], "label": [0, 1, 0]})
    assert as_federation(table, 0, ByColumn("who"), table).names == ("a", "b")
    assert as_federation(table, 0, ByColumn("who", min_size=2), table).names == ("b",)


def test_an_empty_client_is_left_out_by_its_name(caplog):
    with caplog.at_level(logging.WARNING, logger="fl_lightning"):
        found = as_federation({"Ada": dataset(), "Bo": dataset(0), "Eve": dataset()}, 0, test=dataset())
    assert found.names == ("Ada", "Eve")
    assert "no training example: Bo" in caplog.text


def test_clients_csv_and_a_resumed_run_have_the_names(tmp_path):
    federation = FromTable(frame(), "who", "y").load(0)

    def loop_of():
        return FederatedLoop(rounds=4, lr=0.05, callbacks=[RunRecorder(str(tmp_path))])

    first = loop_of()
    for result in first.iterate(linear_module(), federation):
        if result.plan.index == 2:
            break
    loop_of().run(linear_module(), federation, first.state_dict())
    with (tmp_path / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["client"], row["name"]) for row in rows] == [(str(i), name) for i, name in enumerate(federation.names)]


def test_files_pages_and_wandb_show_the_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("rows.csv", index=False)
    Path("mine.yaml").write_text(
        "data:\n  class_path: fl_lightning.data.FromTable\n  init_args: {table: rows.csv, client: who, label: y}\n"
        "model:\n  class_path: fl_lightning.FederatedModule\n  init_args:\n    num_classes: 3\n    network:\n"
        "      class_path: torch.nn.Linear\n      init_args: {in_features: 5, out_features: 3}\n"
        "loop: {rounds: 2, lr: 0.1, batch_size: 8}\n"
    )
    given = ["--config", "mine.yaml", "--config", "fedavg.yaml", "--run_dir", "run", "--logger", "wandb"]
    assert main(["train", *given]) == 0
    assert "wanted" not in capsys.readouterr().err
    run = reading.load(Path("run"))
    assert sorted(run.names) == sorted(NAMES)
    table = json.loads(next(Path("run/wandb").rglob("clients_*.table.json")).read_text())
    assert [row[table["columns"].index("name")] for row in table["data"]] == run.names
    assert main(["report", "run", "--out", "page", "--logger", "none"]) == 0
    page = next(Path("page").rglob("*.html")).read_text()
    assert "&lt;b&gt;Eve&lt;/b&gt;, Ada, Bo, Jr." in page
    assert "<b>Eve</b>" not in page


def test_the_closing_line_calls_clients_by_their_names():
    w = np.array([0.25, 0.25, 0.5])
    said = objective_line(w, np.array([0.02, 0.08, 0.9]), w, ["Ada", "B\x1bo", "Eve"])
    assert said.startswith("objective: clients Ada, Bo should carry 50 %")
