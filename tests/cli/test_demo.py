"""The demo, made short: a diagnosis, two runs at equal computation, a table, a picture, a page."""

import json

import pytest

from fl_lightning.cli.main import main
from fl_lightning.cli.train import next_command


def test_the_demo_leaves_what_it_promises(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    small = ["--data.partition.num_clients=10", "--loop.batch_size=8"]
    assert main(["demo", "--rounds", "4", *small]) == 0
    said = capsys.readouterr()
    assert "FedAvg would optimise something else" in said.out
    assert "Recommended: limitedfedacs" in said.out
    assert "saturate" not in said.err.split("training fedavg")[0]  # nothing about training before anybody trains
    assert (tmp_path / "runs/demo/demo.png").stat().st_size > 20_000
    assert (tmp_path / "runs/demo/report/index.html").as_uri() in said.out
    assert max(map(len, said.out.splitlines()[:-4])) <= 80
    steps = {}
    for name in ("fedavg", "limitedfedacs"):
        summary = json.loads((tmp_path / f"runs/demo/{name}/seed_0/summary.json").read_text())
        rows = (tmp_path / f"runs/demo/{name}/seed_0/metrics.csv").read_text().splitlines()
        steps[name] = float(rows[-1].split(",")[rows[0].split(",").index("local_steps")])
        assert summary["rounds"] == len(rows) - 1
    assert steps["limitedfedacs"] == pytest.approx(steps["fedavg"], rel=0.5)  # a few rounds: the draws decide
    assert main(["demo", "--rounds", "4", *small]) == 0  # finished runs are kept
    assert main(["demo", "--rounds", "0"]) == 2


def test_what_to_type_next():
    assert next_command(["mnist_fedavg.yaml"]).endswith(
        "--config mnist.yaml --algorithms fedavg,limitedfedacs --seeds 0:3"
    )
    assert next_command(["mine.yaml"]) == "fl-lightning diagnose --config mine.yaml"
