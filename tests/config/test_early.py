"""A typo is answered before torch is imported, with the name that was meant."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fl_lightning.cli.main import main
from fl_lightning.config import catalogue, early
from fl_lightning.config import compose as configs
from fl_lightning.config.compose import ConfigError

ROOT = Path(__file__).resolve().parents[2]
TYPOS = [
    (["train", "--config", "digits_fedacz.yaml"], "did you mean digits_fedacs.yaml?"),
    (["train", "--config", "digit.yaml"], "did you mean digits.yaml?"),
    (["train", "--loop.round", "3"], "unknown key --loop.round (did you mean --loop.rounds?)"),
    (["train", "--lr", "0.1"], "did you mean --loop.lr?"),
    (["train", "--resum", "auto"], "did you mean --resume?"),
    (["train", "--loop.sampling.sampler", "fl_lightning.samplers.Importanc"], "did you mean fl_lightning.samplers.Imp"),
    (["train", "--loop.sampling.sampler", "Uniformm"], "did you mean fl_lightning.samplers.Uniform?"),
    (["train", "--loop.sampling.sampler.knowlege", "mean"], "did you mean knowledge?"),
    (["train", "--loop.sampling.sampler", "Uniform", "--loop.sampling.sampler.prior", "1"], "it takes none"),
    (["train", "--loop.aggregator={class_path: AnonymusMean}"], "did you mean fl_lightning.aggregators.AnonymousMean?"),
    (["train", "--loop.callbacks+=fl_lightning.callbacks.StopAtTarge"], "did you mean fl_lightning.callbacks.StopAt"),
    (["train", "--loop.mode", "mx"], "did you mean max?"),
    (["train", "--loop.rounds", "three"], "loop.rounds='three' must be a number (int)"),
    (["train", "--loop.rounds"], "--loop.rounds needs a value"),
    (["compare", "--algorithms", "fedac"], "did you mean fedacs?"),
    (["compare", "--algorithms", "fedacs", "--seds", "0:2"], "did you mean --seeds?"),
    (["compare", "--algorithms", "fedacs", "--loop.round", "2"], "did you mean --loop.rounds?"),
    (["compare", "--algorithms", "fedacs", "--grid", "loop.lrr=1,2"], "did you mean --loop.lr?"),
    (["diagnose", "--algorithms", "fedavgg"], "did you mean fedavg?"),
    (["diagnose", "--loop.channnel", "x"], "did you mean --loop.channel?"),
    (["report", "runs", "--target", "0.5"], "did you mean --targets?"),
    (["data", "show", "--config", "mnits.yaml"], "did you mean mnist.yaml?"),
    (["demo", "--round", "3"], "did you mean --rounds?"),
    (["show", "Importanse"], "did you mean Importance?"),
    (["trian"], "did you mean train?"),
]


@pytest.mark.parametrize(("command", "answer"), TYPOS, ids=[" ".join(command) for command, _ in TYPOS])
def test_the_answer_to_a_typo_is_one_line_with_what_was_meant(command, answer, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert answer in line
    assert "Union" not in line
    assert not list(tmp_path.iterdir())


def test_all_of_them_are_answered_without_torch_within_a_second_each(tmp_path, tmp_path_factory, monkeypatch):
    code = (
        "import json, sys, time; from fl_lightning.cli.main import main\n"
        "began = time.process_time()\n"
        "codes = [main(command) for command in json.loads(sys.argv[1])]\n"
        "seconds = time.process_time() - began\n"
        "print(json.dumps([codes, seconds, 'torch' in sys.modules or 'lightning' in sys.modules]))"
    )
    import json

    commands = json.dumps([command for command, _ in TYPOS])
    cache_with_catalogue = str(tmp_path_factory.mktemp("cache"))
    made = catalogue.stored()
    monkeypatch.setenv("XDG_CACHE_HOME", cache_with_catalogue)
    monkeypatch.setattr(catalogue, "make_catalogue", lambda: made)
    catalogue.stored.__wrapped__()
    began = time.perf_counter()
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "XDG_CACHE_HOME": cache_with_catalogue}
    run = [sys.executable, "-c", code, commands]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    codes, seconds, heavy = json.loads(done.stdout)
    assert set(codes) == {2}
    assert not heavy
    assert seconds < len(TYPOS)  # of the processor, each; the machine may be busy
    assert time.perf_counter() - began < 60


@pytest.mark.parametrize(
    "name", [f"{data}_{name}" for data in ("digits", "toy", "cifar") for name in ("fedacs", "fedavgm")]
)
def test_what_is_right_passes(name):
    merged = configs.compose([f"{name}.yaml"])
    early.check(merged, [])
    settings = ["--loop.lr=1e-2", "--loop.weights", "uniform", "--loop.weights=[1, 2]", "--loop.solver", "Adam"]
    settings += [
        "--loop.sampling.init_args.sampler",
        "Importance",
        "--loop.callbacks+=EarlyStopping",
        "--logger",
        "none",
    ]
    settings += ["--loop.lr_schedule", "CosineRate", "--loop.lr_schedule.warm_up", "2", "--loop.solver", "mine.Solver"]
    settings += [
        "--loop.solver.anything",
        "1",
        "--loop.schedule.num_steps",
        "{first: 1, last: 3}",
        "--fabric.devices=2",
    ]
    early.check(merged, settings)


def test_a_complete_config_of_a_run_passes():
    """What the parser writes is what it knows; a key or an argument that the catalogue lacks would be refused here."""
    from fl_lightning.config import building

    for name in ("digits_fedadam.yaml", "toy_hics.yaml", "mnist_fedprox.yaml"):
        early.check(yaml.safe_load(building.dump(building.parse(configs.compose([name]), []))), [])


def test_own_classes_are_left_to_the_parser():
    early.check({"loop": {"aggregator": {"class_path": "mine.Sum", "init_args": {"anything": 1}}}}, [], ["mine"])
    early.check({}, ["--loop.aggregator", "Sums", "--loop.aggregator.x", "1"], ["mine"])


@pytest.mark.parametrize(
    "tree",
    [{"lop": {}}, {"loop": {"lrr": 1}}, {"loop": {"solver": {"class_path": "SGD", "init_args": {"momntum": 1}}}}],
)
def test_files_are_checked_too(tree):
    with pytest.raises(ConfigError, match="did you mean"):
        early.check(tree, [])


def test_kinds_and_parts():
    known = catalogue.stored()
    assert {"sampler", "aggregator", "solver", "channel", "schedule", "data", "partition"} <= set(known.kinds)
    assert known.where("sampler") == ["loop.sampling.sampler"]
    names = {known.parts[path].name for path in known.kinds["drawing"]}
    assert "Systematic" in names
    assert "Importance" not in names
    assert known.part("fl_lightning.Importance") is known.part("fl_lightning.samplers.sampler.Importance")
