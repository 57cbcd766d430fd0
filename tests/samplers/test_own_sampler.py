"""A sampler in a user's own file, used as a user would: by its dotted path."""

import sys

import pytest
import torch

from fl_lightning import samplers
from fl_lightning.callbacks import ChannelFailures, HeterogeneitySchedule, SamplerSelection
from fl_lightning.cli.main import main
from fl_lightning.data import Digits
from fl_lightning.data.partitions import IID
from fl_lightning.module import FederatedModule
from fl_lightning.networks import DigitsNet
from made import made_loop

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


def test_a_sampler_takes_less_than_twenty_lines_in_a_file_of_ones_own(tmp_path, monkeypatch, capsys) -> None:
    """That the command is a process, and its own files are found there, is shown by ``test_extend.py``."""
    assert len(SAMPLER.splitlines()) <= 20
    (tmp_path / "my_parts.py").write_text(SAMPLER)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    quick = ["--logger", "none", "--loop.rounds", "3", "--run_dir", "run"]
    command = ["train", "--config", "digits_fedavg.yaml", "--config", "mine.yaml", *quick]
    assert main([*command, "--trust", "my_parts"]) == 0, capsys.readouterr().err
    del sys.modules["my_parts"]
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
