"""Listing parts, completing in a shell, help that fits the terminal."""

import io
import logging
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from fl_lightning.cli import completion, data
from fl_lightning.cli.main import COMMANDS, main
from fl_lightning.config import catalogue
from fl_lightning.output import loading, only_planning


def test_bare_prints_help(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("kind", sorted(catalogue.stored().kinds))
def test_the_parts_of_a_kind_are_listed_with_their_arguments(kind, capsys):
    assert main(["show", kind]) == 0
    out = capsys.readouterr().out
    for path in catalogue.stored().kinds[kind]:
        assert path in out
        assert all(f"{argument.name}:" in out for argument in catalogue.stored().parts[path].arguments)


def test_one_class_is_shown(capsys):
    assert main(["show", "HeterogeneityAware"]) == 0
    assert "knowledge: instant | mean | estimated" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", [["train", "--help"], ["show"], ["show", "aggregator"], ["--help"]])
def test_help_and_lists_fit_the_terminal(command, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(command) == 0
    longest = max(capsys.readouterr().out.splitlines(), key=len)
    assert len(longest) <= max(columns, 118 if command == ["--help"] else 0), longest


def test_every_key_is_in_the_help(capsys):
    main(["train", "--help"])
    out = capsys.readouterr().out
    missing = [key.name for key in catalogue.stored().keys if key.name.removeprefix("fabric.") not in out]
    assert missing == []


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_of_a_shell_knows_commands_keys_and_configs(shell, capsys, tmp_path):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (
        "compare",
        "--loop.sampling",
        "digits_fedacs.yaml",
        "--grid",
        "fl_lightning.aggregators.AnonymousMean",
    ):
        assert word in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(capsys, tmp_path):
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    for words, wanted in (
        (["comp"], "compare"),
        (["train", "--loop.ro"], "--loop.rounds"),
        (["show", "sam"], "sampler"),
    ):
        code = (
            f"source {tmp_path / 'script'}; COMP_WORDS=(fl-lightning {' '.join(words)}); COMP_CWORD={len(words)}; "
            "$(complete -p fl-lightning | sed 's/.*-F //; s/ .*//'); echo \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert wanted in done.stdout, (words, done.stdout, done.stderr)


def test_completion_knows_every_command():
    assert completion.whole_parser()


@pytest.mark.parametrize(("num_classes", "columns"), [(10, 12), (100, 3)])
def test_a_table_of_clients_fits_80_columns(num_classes, columns):
    counts = [[(client * label) % 700 for label in range(num_classes)] for client in range(20)]
    rows = [(row, sum(row), "") for row in counts]
    table = data._table(rows, [str(label) for label in range(num_classes)], "mnist.yaml, seed 0", 80)
    shown = io.StringIO()
    Console(file=shown, width=80).print(table)
    assert len(table.columns) == columns
    assert max(map(len, shown.getvalue().splitlines())) <= 80
    assert "…" not in shown.getvalue()  # nothing is cut


def test_something_is_shown_while_torch_is_imported(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with loading():
        assert capsys.readouterr().err == "loading PyTorch and Lightning ...\n"
    monkeypatch.setenv("LOCAL_RANK", "1")
    with loading():
        assert capsys.readouterr().err == ""


def test_warnings_about_training_are_kept_back_while_rounds_are_only_planned(caplog):
    logger = logging.getLogger("fl_lightning")
    with only_planning():
        logger.warning("hidden")
    logger.warning("shown")
    assert [record.message for record in caplog.records] == ["shown"]
