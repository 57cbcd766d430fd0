"""The table of clients: each of them, or groups, quantiles and a parquet file where there are too many."""

import csv

import numpy as np
import pytest

from fl_lightning.callbacks import run_files
from fl_lightning.callbacks.run_files import write_client_table
from fl_lightning.cli.main import main


def read(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def test_few_clients_have_a_row_each(tmp_path):
    write_client_table(tmp_path / "clients.csv", {"size": np.array([3, 5]), "weight": np.array([0.375, 0.625])})
    assert (tmp_path / "clients.csv").read_text().split() == ["client,size,weight", "0,3,0.375", "1,5,0.625"]
    assert [path.name for path in tmp_path.iterdir()] == ["clients.csv"]


def test_many_clients_have_groups_quantiles_and_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rng, num_clients = np.random.default_rng(0), 250_123
    columns = {"size": rng.integers(1, 9, num_clients), "weight": rng.dirichlet(np.ones(num_clients))}
    write_client_table(tmp_path / "clients.csv", columns)
    groups, quantiles = read(tmp_path / "clients.csv"), read(tmp_path / "clients_quantiles.csv")
    assert len(groups["client"]) == 1000
    assert groups["num_clients"].sum() == num_clients
    for name, values in columns.items():
        parts = np.array_split(values, 1000)
        np.testing.assert_allclose(groups[name], [part.mean() for part in parts])
        np.testing.assert_allclose(quantiles[name], np.quantile(values, run_files.LEVELS))
    assert (groups["weight"] * groups["num_clients"]).sum() == pytest.approx(1)
    everybody = parquet.read_table(tmp_path / "clients.parquet")
    assert everybody.column_names == ["client", "size", "weight"]
    assert np.array_equal(everybody["weight"].to_numpy(), columns["weight"])


def test_a_run_and_its_report_with_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "MAX_ROWS", 5)
    monkeypatch.setattr(run_files, "GROUPS", 4)
    run = tmp_path / "run"
    arguments = ["--config", "digits_fedacs.yaml", "--logger", "none", "--run_dir", str(run)]
    assert main(["train", *arguments, "--loop.rounds", "2"]) == 0
    assert read(run / "clients.csv")["num_clients"].tolist() == [5.0] * 4
    assert main(["report", str(run), "--out", str(tmp_path / "report"), "--no-figures"]) == 0
    assert "20 clients" in (tmp_path / "report" / "index.html").read_text()
    monkeypatch.setattr(run_files, "MAX_ROWS", 100)
    assert main(["train", *arguments, "--loop.rounds", "1", "--resume", "never"]) == 0
    assert not (run / "clients_quantiles.csv").exists()  # of the run before
    assert len(read(run / "clients.csv")["client"]) == 20
