"""How runs of a study end: stored in one file, and the tables of it."""

import math

from benchmarks.reproduction import __main__ as program
from benchmarks.reproduction import ends
from benchmarks.reproduction.ends import End
from fl_lightning.cli.main import main


def made(setting: str, algorithm: str, seed: int, averaged: float, noise: float = 0.0) -> End:
    return End(
        system="few",
        setting=setting,
        algorithm=algorithm,
        seed=seed,
        rounds=20,
        accuracy=averaged - 0.1,
        averaged=averaged,
        epsilon=8.0 if noise else math.inf,
        delta=0.001 if noise else math.nan,
        noise_multiplier=noise,
        clip_factor=0.5,
    )


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_a_private_table_has_a_column_for_each_epsilon():
    study = [
        *(made("epsilon_8", "fedavg", seed, 0.4 + 0.02 * seed, 1.0) for seed in (0, 1)),
        *(made("epsilon_8", "dpfedacs", seed, 0.6 + 0.02 * seed, 1.5) for seed in (0, 1)),
        *(made("epsilon_none", "fedavg", seed, 0.7 + 0.02 * seed) for seed in (0, 1)),
    ]
    header, _, first, second = cells(ends.private_table(study, "few"))
    assert header[1:5] == [
        "averaged, no noise",
        "averaged, epsilon 8",
        "of the round, no noise",
        "of the round, epsilon 8",
    ]
    assert first == ["`dpfedacs`", "-", "**0.610 ± 0.014**", "-", "**0.510 ± 0.014**", "1.50", "0.50"]
    assert second[1:3] == ["**0.710 ± 0.014**", "0.410 ± 0.014"]
    assert ends.private_table(study, "other") == "*Not measured.*"


def test_an_attack_table_has_a_row_for_each_attack():
    study = [made("none_0", "krum", 0, 0.8), made("none_0", "fedacs", 0, 0.9), made("free_rider_20", "krum", 0, 0.75)]
    table = cells(ends.attack_table(study, "few"))
    assert table[0] == ["attack", "`fedacs`", "`krum`"]
    assert table[2:] == [["no attackers", "**0.900**", "0.800"], ["free rider, 20 %", "-", "**0.750**"]]


def test_runs_become_rows_that_can_be_read_back(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    where = ["--config", "digits_fedavg.yaml", "--loop.rounds", "2", "--logger", "none"]
    settings = "{noise_multiplier: 3, key: 0, clip: {class_path: fl_lightning.uploads.Clip}}"
    noise = f"{{class_path: fl_lightning.uploads.GaussianMechanism, init_args: {settings}}}"
    uploads = ["--loop.uploads", f"[{noise}]"]
    folder = tmp_path / "system"
    assert main(["train", *where, *uploads, "--run_dir", str(folder / "epsilon_9" / "fedavg" / "seed_0")]) == 0
    for _ in range(2):
        assert program.main(["ends", "private", str(folder)]) == 0
        assert "1 runs read, 1 stored" in capsys.readouterr().out
    (end,) = ends.read(tmp_path / "private.csv")
    assert (end.system, end.setting, end.algorithm, end.seed, end.rounds) == ("system", "epsilon_9", "fedavg", 0, 2)
    assert end.noise_multiplier == 3
    assert 0 < end.epsilon < math.inf
    assert 0 < end.clip_factor <= 1
    assert ends.merge(ends.read(tmp_path / "private.csv"), [end]) == [end]
