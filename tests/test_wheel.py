"""The wheel in a new virtual environment outside the repository, beside a project with its own ``callbacks``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PROJECT = """
import callbacks
from fl_lightning.callbacks import ChannelFailures
import fl_lightning, torch, lightning.pytorch as pl
from fl_lightning import FederatedModule
from torch.utils.data import DataLoader, TensorDataset

assert callbacks.MINE == 42 and "project" in callbacks.__file__, callbacks.__file__
assert "site-packages" in fl_lightning.__file__, fl_lightning.__file__
data = DataLoader(TensorDataset(torch.randn(8, 5), torch.zeros(8, dtype=torch.long)), batch_size=4)
channel = ChannelFailures(failure_rate=0.999999999)
trainer = pl.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, accelerator="cpu", callbacks=[channel])
trainer.fit(FederatedModule(torch.nn.Linear(5, 3), 3), data)
print("lost", channel.num_lost)
"""


QUICK = ("--loop.rounds", "2", "--logger", "none")


def run(*command, cwd, **environment):
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=kept | environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_lives_beside_a_project_with_its_own_callbacks(tmp_path):
    source = tmp_path / "source"  # a folder of its own: an earlier build's files would find their way into the wheel
    source.mkdir()
    for name in ("fl_lightning", "callbacks", "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "PACKAGE.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    python = str(tmp_path / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "-q", "--no-deps", str(wheel), cwd=tmp_path)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    installed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(installed))  # torch and Lightning are not copied again
    project = tmp_path / "project"
    (project / "callbacks").mkdir(parents=True)
    (project / "callbacks" / "__init__.py").write_text("MINE = 42\n")
    (project / "main.py").write_text(PROJECT)
    assert "lost 2" in run(python, "main.py", cwd=project)
    _check_commands(str(tmp_path / "venv" / "bin" / "fl-lightning"), project)


def _check_commands(command, project):
    """Run every command, so that a file which the wheel lacks is missed."""
    assert "loop.sampling" in run(command, "train", "--help", cwd=project)
    run(command, "train", "--config", "toy_fedacs.yaml", *QUICK, cwd=project)
    assert (project / "runs" / "toy_fedacs" / "rounds=2" / "seed_0" / "summary.json").is_file()
    algorithms = ("--config", "digits.yaml", "--algorithms", "fedacs,fedavg", "--seeds", "0:2", "--no-report")
    run(command, "compare", *algorithms, *QUICK, cwd=project)
    run(command, "report", "runs/compare_digits_rounds=2", "--logger", "none", cwd=project)
    report = project / "runs" / "compare_digits_rounds=2" / "report"
    assert "<title>digits: 2 algorithms</title>" in (report / "index.html").read_text()
    assert len(list((report / "figures").glob("*.png"))) > 3
    run(command, "figure", "toy-homogeneous", "--rounds", "20", "--seeds", "0:2", cwd=project)
    assert (project / "figures" / "toy-homogeneous.png").is_file()
    run(command, "diagnose", "--config", "mnist.yaml", "--algorithms", "fedacs,fedavg", cwd=project)
    assert (project / "diagnosis.png").is_file()
    run(command, "data", "show", "--config", "digits_fedacs.yaml", cwd=project)
    assert (project / "partition.png").is_file()
