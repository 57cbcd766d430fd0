"""A sampler in a user's own file, used as a user would: by its dotted path, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fl_lightning import samplers
from fl_lightning.callbacks import ChannelFailures, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data import Digits
from fl_lightning.data.partitions import IID
from fl_lightning.module import FederatedModule
from fl_lightning.networks import DigitsNet
from made import made_loop

ROOT = Path(__file__).resolve().parents[2]
SAMPLER = '''\
import numpy as np

from fl_lightning.samplers import Sampler, SamplerTraits


class Forgotten(Sampler):
    """Draws clients in proportion to how long nothing arrived from them."""

    traits = SamplerTraits(learns=True)
    silence = np.empty(0)

    def probabilities(self, profiles, num_draws):
        silence = self.silence if len(self.silence) else np.ones(profiles.num_clients)
        return silence / silence.sum()

    def observe(self, result):
        self.silence = np.where(result.delivered > 0, 1.0, 1 + (self.silence if len(self.silence) else 1.0))
'''
CONFIG = "loop: {sampling: {init_args: {sampler: {class_path: my_parts.Forgotten}}}}\n"


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "train.py"), "--config", "digits_fedavg.yaml", "--config", "mine.yaml"]
    command += ["--logger", "none", "--loop.rounds", "3", "--run_dir", "run", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_sampler_takes_less_than_twenty_lines_in_a_file_of_ones_own(tmp_path: Path) -> None:
    assert len(SAMPLER.splitlines()) <= 20
    (tmp_path / "my_parts.py").write_text(SAMPLER)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    done = _run(tmp_path, "--trust", "my_parts")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()
    assert "my_parts.Forgotten" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    "path",
    ["Uniform", "ClusteredBySimilarity", "SubmodularSelection", "EntropyClusters", "PowerOfChoice", "WorkAware"],
)
def test_shipped_samplers_learn_on_digits(path: str) -> None:
    """With clients alike every way of drawing must do; ten classes start at an accuracy of a tenth."""
    torch.manual_seed(0)
    loop = made_loop(
        rounds=12,
        lr=0.1,
        schedule=HeterogeneitySchedule(num_steps=8, failure_rates=0.2),
        sampling=SamplerSelection(getattr(samplers, path)(), 4),
        channel=ChannelFailures(),
        batch_size=16,
        evaluate_every=12,
    )
    loop.run(FederatedModule(DigitsNet()), Digits(IID(num_clients=10)).load(0))
    metrics, _ = loop.engine.evaluate(loop.state)
    assert metrics["test_accuracy"] > 0.5
