"""Loggers of Lightning by their class paths: several at once, inside the run's folder, and whole after a resume."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fl_lightning.cli import report
from fl_lightning.cli.main import main
from fl_lightning.runs import reading
from made import made_loop
from systems import gaussian_federation, linear_module

QUICK = ["train", "--config", "toy_fedavg.yaml", "--loop.rounds", "3"]
OF_LIGHTNING = "lightning.pytorch.loggers"


def rows_of(folder):
    with next(Path(folder).rglob("metrics.csv")).open(newline="") as file:
        return list(csv.DictReader(file))


def test_several_loggers_by_class_and_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*QUICK, "--run_dir", "run", "--logger", f"wandb,{OF_LIGHTNING}.CSVLogger,TensorBoardLogger"]) == 0
    here = rows_of("run/logs/lightning_logs/version_0")
    ours = rows_of("run")
    assert [int(row["step"]) for row in here] == [1, 2, 3]
    assert [float(row["distance"]) for row in here] == [float(row["distance"]) for row in ours]
    config = yaml.safe_load(Path("run/logs/lightning_logs/version_0/hparams.yaml").read_text())
    assert config["loop"]["rounds"] == 3
    assert list(Path("run/logs").rglob("events.out*"))
    assert list(Path("run/wandb").glob("offline-run-*"))
    assert [folder.name for folder in reading._find([Path("run")])[0]] == ["run"]
    assert main(["train", "--config", "run/config.yaml", "--run_dir", "again"]) == 0
    assert len(rows_of("again/logs")) == 3


def test_arguments_of_a_logger_follow_its_class(tmp_path):
    named = ["--logger", f"{OF_LIGHTNING}.CSVLogger", "--logger.save_dir", "csv", "--logger.init_args.version", "one"]
    assert main([*QUICK, "--run_dir", str(tmp_path / "run"), *named]) == 0
    assert len(rows_of(tmp_path / "run/logs/csv/lightning_logs/one")) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["paper"], "logger='paper' is unknown: use wandb, tensorboard, none, or the class path"),
        (["os.system"], "os.system is not of a package that configs may name"),
        (["mine.Logger"], "add --trust mine"),
        ([f"{OF_LIGHTNING}.WandbLogger"], "is not on the list of what a config may name"),
        (["CSVLogger", "--logger.save_dir", "/tmp/elsewhere"], "save_dir='/tmp/elsewhere' leads out of it"),
        (["CSVLogger", "--logger.save_dir", "../elsewhere"], "save_dir='../elsewhere' leads out of it"),
        (["CSVLogger", "--logger.name", "../../elsewhere"], "leads out of it"),
        (["TensorBoardLogger", "--logger.sub_dir", "a/../../b"], "leads out of it"),
        (["MLFlowLogger", "--logger.tracking_uri", "http://stranger"], "a config may not set tracking_uri"),
        (["CometLogger", "--logger.api_key", "x"], "a config may not set api_key"),
        (["TensorBoardLogger", "--logger.filename_suffix", "/x"], "a config may not set filename_suffix"),
        (["CSVLogger", "--logger.nome", "x"], "Option 'nome' is not accepted"),
        (["lightning.pytorch.callbacks.EarlyStopping"], "does not correspond to a subclass of Logger"),
    ],
)
def test_what_a_config_may_not_ask_of_a_logger(tmp_path, capsys, given, said):
    assert main([*QUICK, "--run_dir", str(tmp_path / "run"), "--logger", *given]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("*elsewhere*"))


def test_a_logger_of_a_trusted_package_gets_the_rounds(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import json\nfrom lightning.pytorch.loggers.logger import DummyLogger\n\n"
        "class Lines(DummyLogger):\n"
        "    def __init__(self, file: str):\n        super().__init__()\n        self.file = file\n"
        "    def log_hyperparams(self, params, *more):\n        pass\n"
        "    def log_metrics(self, metrics, step=None):\n"
        "        open(self.file, 'a').write(json.dumps([step, metrics['distance']]) + '\\n')\n"
    )
    monkeypatch.chdir(tmp_path)
    given = json.dumps([{"class_path": "mine.Lines", "init_args": {"file": "lines.txt"}}])
    assert main([*QUICK, "--run_dir", "run", "--trust", "mine", "--logger", given]) == 0
    lines = [json.loads(line) for line in Path("lines.txt").read_text().splitlines()]
    assert lines == [[index, float(row["distance"])] for index, row in enumerate(rows_of("run"), start=1)]


def test_a_report_leaves_the_files_of_loggers_alone(tmp_path):
    assert main([*QUICK, "--run_dir", str(tmp_path / "run"), "--logger", "CSVLogger"]) == 0
    assert report.main([str(tmp_path), "--no-figures", "--logger", "none"]) == 0


def resumed(loop_of):
    """Pause a run after two of four rounds, and resume it in a loop of its own."""
    first = loop_of()
    for result in first.iterate(linear_module(), gaussian_federation()):
        if result.plan.index == 2:
            break
    loop_of().run(linear_module(), gaussian_federation(), first.state_dict())


def test_csv_logger_has_all_rounds_after_a_resume_into_the_same_folder(tmp_path):
    from lightning.fabric import Fabric
    from lightning.pytorch.loggers import CSVLogger

    def loop_of():
        logger = CSVLogger(str(tmp_path), name="", version="one")
        return made_loop(rounds=4, lr=0.05, fabric=Fabric(accelerator="cpu", devices=1, loggers=[logger]))

    resumed(loop_of)
    assert [int(row["step"]) for row in rows_of(tmp_path)] == [1, 2, 3, 4]


def test_mlflow_gets_every_round_and_a_resumed_run_continues(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    from lightning.fabric import Fabric
    from lightning.pytorch.loggers import MLFlowLogger

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = tmp_path / "run"
    assert main([*QUICK, "--run_dir", str(run_dir), "--logger", f"{OF_LIGHTNING}.MLFlowLogger"]) == 0

    def stored(folder):
        client = tracking.MlflowClient(f"sqlite:///{folder}/mlflow.db")
        runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
        return [
            (run.info.status, run.data.params.get("loop/rounds"), [
                (each.step, each.value) for each in client.get_metric_history(run.info.run_id, "train_loss")
            ])
            for run in runs
        ]  # fmt: skip

    wanted = [(index, float(row["train_loss"])) for index, row in enumerate(rows_of(run_dir), start=1)]
    assert stored(run_dir / "logs") == [("FINISHED", "3", wanted)]
    assert not (Path.cwd() / "mlruns").exists()

    def loop_of():
        logger = MLFlowLogger(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
        return made_loop(rounds=4, lr=0.05, fabric=Fabric(accelerator="cpu", devices=1, loggers=[logger]))

    resumed(loop_of)
    [(status, _, rounds)] = stored(tmp_path)
    assert status == "FINISHED"
    assert [step for step, _ in rounds] == [1, 2, 3, 4]


@pytest.mark.slow
def test_csv_logger_has_all_rounds_after_a_kill(tmp_path):
    command = [sys.executable, "-m", "fl_lightning", *QUICK[:3], "--loop.rounds", "40", "--checkpoint.min_seconds", "0"]
    command += ["--run_dir", str(tmp_path / "run"), "--logger", "CSVLogger", "--logger.version", "one"]
    process = subprocess.Popen(command)
    while not list(tmp_path.rglob("round_*.ckpt")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert subprocess.run(command).returncode == 0
    assert [int(row["step"]) for row in rows_of(tmp_path / "run/logs")] == list(range(1, 41))
