"""What a private run writes: nothing that its epsilon does not cover, unless it is asked for, in files of their own."""

import csv
import json
import stat
from pathlib import Path

import pytest
import torch

from fl_lightning.callbacks import RunRecorder, SamplerSelection, WandbMetrics
from fl_lightning.callbacks.wandb_media import media
from fl_lightning.cli.main import main
from fl_lightning.data.derived import ValidationSplit
from fl_lightning.samplers import HeterogeneityAware, Independent, Systematic
from fl_lightning.uploads import Clip, GaussianMechanism
from systems import gaussian_federation, linear_module, small_loop

NOT_COVERED = {"train_loss", "clip_factor", "clipped_share", "num_rejected"}
OF_DRAWS = {"num_sampled", "num_delivered", "local_steps", "computation_time", "uplink_bytes"}


def play(folder, drawing=None, callbacks=(), **settings):
    step = GaussianMechanism(Clip(1.0), noise_multiplier=1.0, **settings)
    chosen = SamplerSelection(HeterogeneityAware(), 3, drawing or Independent())
    recorder = RunRecorder(str(folder))
    loop = small_loop(sampling=chosen, uploads=[step], rounds=3, callbacks=[recorder, *callbacks])
    return loop, list(loop.iterate(linear_module(), gaussian_federation()))


def columns(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name for name in rows[0] if any(row[name] for row in rows)}


def test_a_private_run_writes_what_is_covered_or_public(tmp_path):
    _, results = play(tmp_path)
    shown = columns(tmp_path / "metrics.csv")
    assert {"round", "test_accuracy", "epsilon", "delta", "learning_rate", "clip_norm"} <= shown
    assert not shown & (NOT_COVERED | OF_DRAWS)
    assert not results[-1].metrics.keys() & (NOT_COVERED | OF_DRAWS)
    assert results[-1].uncovered.keys() >= NOT_COVERED
    of_clients = columns(tmp_path / "clients.csv")
    assert not of_clients & {"draws", "deliveries", "rejected"}
    assert {"weight", "effective_weight", "expected_draws"} <= of_clients
    assert not (tmp_path / "not_covered.csv").exists()
    assert not json.loads((tmp_path / "summary.json").read_text()).keys() & {"rejected_updates", "total_local_steps"}


def test_the_objective_of_a_private_run_is_the_expected_one(tmp_path):
    """Measured clip factors of single clients are in chi2 and in Omega of other runs."""
    written = []
    for norm in (1e-3, 1e3):
        step = GaussianMechanism(Clip(norm), noise_multiplier=1.0)
        chosen = SamplerSelection(HeterogeneityAware(), 3, Independent())
        loop = small_loop(sampling=chosen, uploads=[step], rounds=3, callbacks=[RunRecorder(str(tmp_path))])
        loop.run(linear_module(), gaussian_federation())
        written.append((tmp_path / "clients.csv").read_text())
    assert written[0] == written[1]


def test_counts_are_public_where_the_accountant_lets_everybody_know_the_draws(tmp_path):
    play(tmp_path, Systematic())
    assert columns(tmp_path / "metrics.csv") >= {"num_sampled", "num_delivered"}
    assert columns(tmp_path / "clients.csv") >= {"draws", "deliveries"}


def test_what_is_not_covered_is_kept_on_demand_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # for nobody else at any moment
    with pytest.warns(UserWarning, match="says more about a client than epsilon"):
        play(tmp_path, keep_uncovered=True)
    assert not columns(tmp_path / "metrics.csv") & NOT_COVERED
    for name, wanted in (("not_covered.csv", NOT_COVERED - {"num_rejected"}), ("not_covered_clients.csv", {"draws"})):
        assert columns(tmp_path / name) >= wanted
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_study_with_a_fixed_key_writes_everything_as_other_runs_do(tmp_path):
    play(tmp_path, key=0)
    assert columns(tmp_path / "metrics.csv") >= NOT_COVERED | {"num_delivered"}
    assert json.loads((tmp_path / "summary.json").read_text())["noise_key"] == "fixed: can be recomputed"


def test_nothing_that_is_not_covered_is_sent_away(tmp_path):
    loop, _ = play(tmp_path)
    assert not media(loop, pictures=False).keys() & {"clients", "partition"}
    with pytest.raises(ValueError, match="log_model='checkpoint'"):
        play(tmp_path, callbacks=[WandbMetrics(mode="offline", save_dir=str(tmp_path), log_model="checkpoint")])


def test_evaluations_on_data_of_clients_are_refused(tmp_path):
    step = GaussianMechanism(Clip(1.0), noise_multiplier=1.0)
    chosen = SamplerSelection(HeterogeneityAware(), 3, Independent())
    with pytest.raises(ValueError, match="evaluate_clients measures the model on examples of the clients"):
        small_loop(sampling=chosen, uploads=[step], evaluate_clients=1).run(linear_module(), gaussian_federation())
    with pytest.raises(ValueError, match="validation measures the model on examples of the clients"):
        small_loop(sampling=chosen, uploads=[step]).run(linear_module(), ValidationSplit(None, 0.2))


def test_a_private_run_can_be_reported_and_resumed(tmp_path):
    options = ["train", "--config", "toy_dpfedacs.yaml", "--logger", "none", "--run_dir", str(tmp_path / "run")]
    assert main([*options, "--loop.rounds", "4", "--checkpoint.min_seconds", "0"]) == 0
    weights = torch.load(tmp_path / "run" / "model_last.ckpt", weights_only=True)["state_dict"]
    for name in ("summary.json", "clients.csv", "model.ckpt", "model_last.ckpt"):
        (tmp_path / "run" / name).unlink()
    max((tmp_path / "run" / "checkpoints").iterdir()).unlink()
    assert main([*options, "--loop.rounds", "4", "--checkpoint.min_seconds", "0"]) == 0
    again = torch.load(tmp_path / "run" / "model_last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert main(["report", str(tmp_path / "run")]) == 0
