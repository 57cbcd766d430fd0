"""Systems are presets like data and algorithms: by name, by a file, or named by a config itself."""

import pytest
import yaml

from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.jobs import jobs

NAMES = ["paper", "phones", "toy", "uniform"]


def test_the_paper_is_the_default_and_others_take_its_place():
    assert configs.names("systems") == NAMES
    assert configs.compose(["digits_fedacs.yaml"]) == configs.compose(["digits_fedacs.yaml"], "paper")
    phones = configs.compose(["digits_fedacs.yaml"], "phones")["loop"]
    assert phones["clock"]["init_args"]["availability"]["class_path"].endswith("Phones")
    assert phones["sampling"] == configs.compose(["digits_fedacs.yaml"])["loop"]["sampling"]


def test_a_config_names_its_system_and_the_command_line_names_another(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("system: uniform\nloop: {schedule: {init_args: {num_steps: 3}}}\n")
    merged = configs.compose(["digits.yaml", str(mine)])
    assert "system" not in merged
    assert merged["loop"]["schedule"]["init_args"] == {"num_steps": 3, "failure_rates": 0.0}
    assert configs.system_of(["toy.yaml", str(mine)]) == "uniform"
    assert configs.system_of(["toy.yaml", str(mine)], "phones") == "phones"


def test_a_file_of_ones_own_is_a_system(tmp_path):
    own = tmp_path / "garage.yaml"
    own.write_text("loop: {clock: {class_path: fl_lightning.system.Clock, init_args: {latency: 2.0}}}\n")
    assert configs.compose(["digits.yaml"], str(own))["loop"]["clock"]["init_args"] == {"latency": 2.0}


@pytest.mark.parametrize(
    ("text", "system", "said"),
    [
        ("", "phons", "system 'phons' is unknown (did you mean phones?): use a file, or one of paper"),
        ("system: 3", None, "mine.yaml: system 3 is unknown: use a file"),
        ("system: [phones]", None, "system ['phones'] is unknown"),
        ("system:", None, "system None is unknown"),
        ("", "own.yaml", "sets loop.lr, but a system sets loop.schedule, loop.channel, loop.clock alone"),
        ("", "seeded.yaml", "sets seed, but a system sets"),
        ("", "list.yaml", "sets loop, but a system sets"),
    ],
)
def test_what_is_no_system_is_refused_in_one_line(text, system, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "own.yaml").write_text("loop: {lr: 3}")
    (tmp_path / "seeded.yaml").write_text("seed: 3")
    (tmp_path / "list.yaml").write_text("loop: [3]")
    given = [] if system is None else ["--system", system]
    assert main(["train", "--config", "mine.yaml", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_system_is_no_config_and_no_algorithm_has_one(tmp_path, capsys):
    assert main(["train", "--config", "phones.yaml"]) == 2
    assert "phones.yaml is a system: give it as --system phones" in capsys.readouterr().err
    (tmp_path / "mine.yaml").write_text("system: phones")
    assert main(["diagnose", "--algorithms", str(tmp_path / "mine.yaml")]) == 2
    assert "sets system, which all algorithms share" in capsys.readouterr().err


def test_runs_on_another_system_have_folders_of_their_own():
    folder, planned = jobs.plan(["digits.yaml"], ["fedavg.yaml"], [], [0], None, [], "phones")
    assert folder.as_posix() == "runs/compare_digits_system=phones"
    assert planned[0].system == "phones"
    assert "availability" in planned[0].merged["loop"]["clock"]["init_args"]
    same, _ = jobs.plan(["digits.yaml"], ["fedavg.yaml"], [], [0], None, [], "paper")
    assert same.as_posix() == "runs/compare_digits"


def test_what_is_compared_meets_one_system(tmp_path):
    for name, system in (("a", "paper"), ("b", "uniform")):
        config = configs.compose(["digits_fedavg.yaml"]) | {"system": system}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
    whole = [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    with pytest.raises(configs.ConfigError, match=r"must meet the same conditions: give --system"):
        jobs.plan([], [], whole, [0], None, [])
    assert len(jobs.plan([], [], whole, [0], None, [], "uniform")[1]) == 2


def test_a_run_is_resumed_on_its_own_system_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = ["train", "--config", "toy_fedavg.yaml", "--logger", "none", "--loop.rounds", "3"]
    assert main([*train, "--system", "phones"]) == 0
    (folder,) = (tmp_path / "runs").rglob("seed_0")
    assert folder.parent.name == "rounds=3,system=phones"
    capsys.readouterr()
    assert main([*train, "--run_dir", str(folder)]) == 2
    assert "loop.clock.availability" in capsys.readouterr().err
    assert main([*train, "--system", "phones"]) == 0
    assert "already finished" in capsys.readouterr().err


def test_systems_are_shown(capsys):
    assert main(["show", "systems"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name}:\n" in shown for name in NAMES)
    assert main(["show", "systems", "--json"]) == 0
    assert '"phones": {' in capsys.readouterr().out
