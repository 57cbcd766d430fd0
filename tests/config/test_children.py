"""No process that a command starts runs code that lies in the working folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
MODULES = ("json", "random", "contextlib", "subprocess", "multiprocessing", "typing", "queue", "torch", "yaml", "ast")


@pytest.fixture
def folder(tmp_path):
    """Modules of a stranger beside the configs, each of which leaves a file when it is run."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'a').write('{name} ')\n")
    return folder


def command(tmp_path, folder, *arguments):
    script = tmp_path / "bin" / "fl-lightning"
    script.parent.mkdir()
    script.write_text("import sys\nfrom fl_lightning.cli.main import main\nsys.exit(main())\n")
    done = subprocess.run(
        [sys.executable, str(script), *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    return done, (tmp_path / "RAN").read_text() if (tmp_path / "RAN").exists() else ""


def test_workers_of_a_comparison_run_nothing_of_the_folder(tmp_path, folder):
    options = ("--algorithms=fedavg", "--seeds=0:1", "--loop.rounds=1", "--logger=none", "--no-report")
    done, ran = command(tmp_path, folder, "compare", "--config=toy.yaml", *options)
    assert ran == ""
    assert done.returncode == 0, done.stderr


def test_the_parser_starts_no_python_in_the_folder(tmp_path, folder):
    options = ("--config=toy_fedavg.yaml", "--model=fl_lightning.FederatedModule")
    network = ("--model.network=torch.nn.Conv2d", "--model.network.in_channels=1", "--print_config")
    _, ran = command(tmp_path, folder, "train", *options, *network)
    assert ran == ""


@pytest.mark.parametrize("safe", ["", "1"])
def test_a_module_is_started_without_the_folder_on_any_python(tmp_path, folder, safe):
    from fl_lightning.config.processes import python_command

    start = python_command("fl_lightning.jobs.worker")
    done = subprocess.run(
        [*start, "none.jsonl", "0"],
        cwd=folder,
        env=ENVIRONMENT | {"PYTHONSAFEPATH": safe},
        capture_output=True,
        text=True,
    )
    assert "none.jsonl has 0 jobs" in done.stderr
    assert not (tmp_path / "RAN").exists()


def test_children_of_children_are_kept_from_the_folder_too(tmp_path, folder, monkeypatch):
    from fl_lightning.config.processes import safe_children

    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with safe_children():
        subprocess.run([sys.executable, "-c", "import json"], cwd=folder, check=True)
        assert (tmp_path / "RAN").exists() == (sys.version_info < (3, 11))
    assert "PYTHONSAFEPATH" not in os.environ
