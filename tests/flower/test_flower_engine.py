"""The same config on nodes and in the simulator: the same weights, bit for bit."""

import pytest

pytest.importorskip("flwr")

import torch

from deployed import OBSERVED, config, deployed, made_grid, simulated, weights
from fl_lightning.cli import configs

IN_CI = ("fedacs", "scaffold", "fedstale", "powerofchoice", "os")


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=() if name in IN_CI else pytest.mark.slow) for name in configs.names("algorithms")],
)
def test_simulated_links(algorithm, tmp_path):
    merged = config(algorithm, tmp_path / "simulated")
    expected = simulated(merged)
    run = deployed(made_grid(merged, tmp_path), merged | {"run_dir": str(tmp_path / "deployed")})
    run.execute()
    assert torch.equal(weights(run), weights(expected))
    assert (tmp_path / "deployed" / "metrics.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in configs.names("algorithms") if name not in ("os", "fedpbc")])
def test_observed_links(algorithm, tmp_path):
    merged = config(algorithm, tmp_path / "simulated", **OBSERVED)
    run = deployed(made_grid(merged, tmp_path), merged | {"run_dir": str(tmp_path / "deployed")})
    run.execute()
    assert torch.equal(weights(run), weights(simulated(merged)))
