"""Each example is run, as its user would run it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_federate_a_module():
    assert load("federate_a_module").main(rounds=30) > 0.7


def test_new_sampler():
    p, omega = load("new_sampler").main()
    assert p.sum() == pytest.approx(1)
    np.testing.assert_allclose(omega, 0.25)


def test_regression():
    example = load("regression")
    assert example.main(example.HeterogeneityAware(), rounds=60) < 0.9


def test_own_fabric_loop():
    assert load("own_fabric_loop").main(rounds=30) > 0.2


def test_plain_trainer(tmp_path):
    accuracy, lost, steps = load("plain_trainer").main(epochs=8, folder=str(tmp_path))
    assert accuracy > 0.5
    assert 0 <= lost < 8
    assert 80 <= steps <= 240


def test_from_bias_to_fedacs(tmp_path):
    found = load("from_bias_to_fedacs").main(rounds=8, folder=str(tmp_path))
    assert found["FedAvg"][0] < 0.2
    assert found["FedACS"][0] == pytest.approx(0.5)
    assert (tmp_path / "from_bias_to_fedacs.png").stat().st_size > 20_000


def test_every_example_is_listed_and_tested():
    listed = (FOLDER / "README.md").read_text()
    tested = Path(__file__).read_text()
    for path in FOLDER.glob("*.py"):
        assert f"`{path.name}`" in listed
        assert f'load("{path.stem}")' in tested
