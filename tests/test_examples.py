"""Each example is run, as its user would run it."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from offline import summary_and_rows

from fl_lightning.data import TensorFederation
from fl_lightning.data.shakespeare import CHARACTERS

FOLDER = Path(__file__).resolve().parent.parent / "examples"
SHORT = (
    *("own_module_and_data", "hugging_face", "early_stopping", "csv_logger", "monitor_a_loss", "clients_by_user"),
    *("second_run", "adam_module", "resnet_fedbn", "low_rank"),
)


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


def test_own_fabric_loop(tmp_path):
    accuracy, rounds, steps = load("own_fabric_loop").main(rounds=60, folder=str(tmp_path), target=0.4)
    assert accuracy >= 0.4
    assert rounds < 60  # the target ends it
    summary, history = summary_and_rows(tmp_path)
    assert len(history) == rounds
    assert history[-1]["test_accuracy"] == pytest.approx(accuracy)
    assert history[-1]["local_steps"] == steps == summary["local_steps_to_target"]
    assert history[-1]["computation_time"] == pytest.approx(0.01 * steps)
    assert summary["reached"] is True


def test_plain_trainer(tmp_path):
    accuracy, lost, steps = load("plain_trainer").main(epochs=20, folder=str(tmp_path))
    assert accuracy >= 0.8
    summary, history = summary_and_rows(tmp_path)
    assert len(history) < 20  # the target ends it
    assert 0 < lost < len(history)
    assert history[-1]["local_steps"] == steps >= 20 * len(history)  # of the fast half, as client 2 of 3 is
    assert summary["reached"] is True
    assert summary["rounds_to_target"] == len(history)


def test_from_bias_to_fedacs(tmp_path):
    found = load("from_bias_to_fedacs").main(rounds=8, folder=str(tmp_path))
    assert found["FedAvg"][0] < 0.2
    assert found["FedACS"][0] == pytest.approx(0.5)
    assert (tmp_path / "from_bias_to_fedacs.png").stat().st_size > 20_000


def test_tune_with_optuna(monkeypatch):
    pytest.importorskip("optuna")
    example = load("tune_with_optuna")
    monkeypatch.setattr(example, "ROUNDS", 4)
    study = example.main(trials=3)
    assert len(study.trials) == 3
    assert study.best_value == max(trial.value for trial in study.trials)


def test_own_module_and_data():
    result = load("own_module_and_data").result
    assert result.best.value > 0.7
    assert len(result.history) == 20


def test_hugging_face():
    pytest.importorskip("datasets")
    assert load("hugging_face").result.summary["best"] > 0.9


def test_early_stopping(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = load("early_stopping")
    assert len(example.result.history) < 100
    assert Path(example.saving.best_model_path).is_file()
    assert float(example.saving.best_model_score) == pytest.approx(example.result.best.value)


def test_csv_logger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load("csv_logger")
    (table,) = tmp_path.glob("logs/digits/*/metrics.csv")
    assert len(table.read_text().splitlines()) == 6


def test_monitor_a_loss():
    result = load("monitor_a_loss").result
    assert result.summary["monitor"] == "test_loss"
    assert result.best.value == min(result.history.column("test_loss")) < 0.7
    assert result.history[-1]["learning_rate"] < result.history[0]["learning_rate"]


def test_clients_by_user():
    example = load("clients_by_user")
    assert example.loop.federation.num_clients == 7
    assert example.result.best.value > 0.8


def test_second_run():
    example = load("second_run")
    for column in ("test_accuracy", "train_loss"):
        assert example.first.column(column) == example.second.column(column) != example.third.column(column)


def test_adam_module():
    result = load("adam_module").result
    assert result.best.value > 0.8
    rates = result.history.column("learning_rate")
    assert rates[0] == pytest.approx(0.01)
    assert rates[-1] < 0.6 * rates[0]  # the module's own schedule, stepped once per round


def test_resnet_fedbn():
    example = load("resnet_fedbn")
    differs = torch.stack([state.weights != example.result.state.weights for state in example.models]).any(dim=0)
    with_norm = [("bn" in name or "downsample.1" in name) for name, _ in example.result.module.named_parameters()]
    sizes = [parameter.numel() for parameter in example.result.module.parameters()]
    assert 0 < int(differs.sum()) <= sum(size for size, norm in zip(sizes, with_norm, strict=True) if norm)
    assert len({tuple(state.buffers[:8].tolist()) for state in example.models}) >= 2


def test_low_rank():
    example = load("low_rank")
    assert len(example.result.weights) == 4 * 64 + 10 * 4
    assert example.result.best.value > 0.5


@pytest.mark.parametrize("name", SHORT)
def test_short_scripts_are_short_and_use_public_names_alone(name):
    lines = [line for line in (FOLDER / f"{name}.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 25
    ours = [line for line in lines if "fl_lightning" in line and "import" in line]
    assert ours
    assert all(line.startswith("from fl_lightning import ") for line in ours)


def test_every_example_is_listed_and_tested():
    listed = (FOLDER / "README.md").read_text()
    tested = Path(__file__).read_text()
    for path in FOLDER.glob("*.py"):
        assert f"`{path.name}`" in listed
        assert f'load("{path.stem}")' in tested


class _FewRoles:
    """Stands for the plays: four clients that say one of two words."""

    def load(self, seed):
        words = [torch.tensor([[first, first + 1] * 5]).repeat(12, 1) for first in (3, 3, 40, 40)]
        rows = torch.cat(words)
        return TensorFederation(
            (rows[:, :-1], rows[:, 1:]), (rows[::6, :-1], rows[::6, 1:]), list(np.arange(48).reshape(4, 12))
        )


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_lora_text_sends_adapters_alone(kind, capsys, tmp_path):
    pytest.importorskip("peft")
    example = load("lora_text")
    result, module = example.main(kind, rounds=2, pretraining=2, clients=_FewRoles(), folder=tmp_path)
    trained = [name for name, each in module.named_parameters() if each.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    assert result.weights.numel() == sum(each.numel() for each in module.parameters() if each.requires_grad)
    assert any(each.abs().max() > 0 for name, each in module.named_parameters() if "lora_B" in name)  # zero before
    assert "MB of adapters" in capsys.readouterr().out
    assert (tmp_path / "base" / "model.safetensors").is_file()
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_lora_text_takes_a_model_of_a_folder_with_its_tokenizer(capsys, tmp_path):
    pytest.importorskip("peft")
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    example = load("lora_text")
    example.from_config("llama", transformers).save_pretrained(tmp_path / "own")
    codes = tokenizers.Tokenizer(tokenizers.models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token=" "))
    codes.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=codes, unk_token=" ", eos_token=" ")
    made.save_pretrained(tmp_path / "own")
    example.main(str(tmp_path / "own"), rounds=1, clients=_FewRoles(), folder=tmp_path)
    assert "4 roles" in capsys.readouterr().out
    assert not (tmp_path / "base").exists()  # it is the user's own


@pytest.mark.slow
@pytest.mark.realdata
def test_lora_text_learns_more_than_the_base_knew(capsys, tmp_path):
    pytest.importorskip("peft")
    load("lora_text").main(folder=tmp_path)
    found = re.findall(r"(0\.\d+) (?:with the commonest|\(loss)", capsys.readouterr().out)
    commonest, before, after = (float(each) for each in found)
    assert commonest + 0.15 < before
    assert before + 0.02 < after


def test_a_logger_of_ones_own(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    logger = load("trackio_logger").TrackioLogger(run="one")
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert list(tmp_path.rglob("*.db"))


def test_lora_text_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(SystemExit, match=r"pip install -e '\.\[text\]'"):
        load("lora_text").main()
