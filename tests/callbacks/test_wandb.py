"""WandbMetrics with the real library, offline, read back from its file."""

import json
import subprocess
import sys

import pytest

from fl_lightning.callbacks import ComputationTime, WandbMetrics
from systems import gaussian_federation, linear_module, small_loop


def read_back(folder):
    """Return the records of the one offline run below a folder."""
    (file,) = folder.rglob("run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this wandb cannot read its files back: {done.stderr[-200:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def test_an_offline_run_has_every_round(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    metrics = WandbMetrics(
        project="demo", group="fedacs", tags=["made", "fedacs"], save_dir=str(tmp_path), config={"lr": 0.05},
        target_accuracy=0.1,
    )  # fmt: skip
    loop = small_loop(rounds=3, callbacks=[ComputationTime(), metrics])
    loop.run(linear_module(), gaussian_federation())
    records = read_back(tmp_path)
    text = json.dumps(records)
    history = [record for record in records if record.get("type") == "history"]
    assert len(history) == 3
    for name in (
        "test_accuracy",
        "computation_time",
        "num_sampled",
        "num_delivered",
        "learning_rate",
        "step_length",
        "chi2",
    ):
        assert name in json.dumps(history[-1])
    for word in ("demo", "fedacs", "rounds_to_target", "local_steps_to_target"):
        assert word in text


def test_a_wrong_mode_is_refused():
    with pytest.raises(ValueError, match="mode='loud'"):
        WandbMetrics(mode="loud")


@pytest.mark.parametrize(("name", "value"), [("WANDB_MODE", "disabled"), ("WANDB_DISABLED", "true")])
@pytest.mark.parametrize("mode", ["auto", "offline"])
def test_switched_off_it_leaves_no_files(name, value, mode, tmp_path, monkeypatch):
    monkeypatch.setenv(name, value)
    loop = small_loop(rounds=1, callbacks=[WandbMetrics(save_dir=str(tmp_path), mode=mode)])
    loop.run(linear_module(), gaussian_federation())
    assert list(tmp_path.iterdir()) == []
