"""Flower's private side: the table is complete and true, and an unknown version is refused in one line."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fl_lightning.flower import supernode
from fl_lightning.flower.supernode import look_often, main

ROOT = Path(__file__).resolve().parent.parent.parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
USED = {  # of Flower, and not public
    "flwr.common.config.get_project_dir": "the folder of the app that a SuperLink runs",
    "flwr.supercore.constant.TaskType": "what an executor can be asked for",
    "flwr.supercore.superexec.executor.ExecutionSpec": "a message that is to be answered",
    "flwr.supercore.superexec.executor.LaunchResult": "what an executor returns",
    "flwr.supercore.superexec.run_superexec.run_superexec": "fetches messages from the SuperNode",
    "flwr.supernode.cli.flower_supernode": "the command that is a SuperNode",
    "flwr.supernode.runtime.run_clientapp.run_clientapp": "answers one message",
}
LOOKS = "flwr.supernode.start_client_internal.time"


@pytest.mark.parametrize("name", [*supernode.REPLACED, *USED])
def test_the_installed_version_has_every_name(name):
    home, _, attribute = name.rpartition(".")
    assert hasattr(import_module(home), attribute)


def test_the_table_names_all_that_is_used():
    used, replaced = set(), set()
    for path in (ROOT / "fl_lightning" / "flower").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
                used |= {f"{node.module}.{each.name}" for each in node.names} if node.module not in PUBLIC else set()
            assert not isinstance(node, ast.Import) or not any(each.name.startswith("flwr") for each in node.names)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "replace" and ast.unparse(node)[8] in "'\"":
                replaced.add(node.args[0].value)
    assert used == USED.keys()
    assert replaced == supernode.REPLACED.keys()


def test_the_extra_asks_for_the_known_versions():
    oldest, below = (".".join(map(str, numbers)) for numbers in (supernode.OLDEST, supernode.BELOW))
    assert f'flower = ["flwr>={oldest},<{below};' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("found", ["1.40.9", "1.43.0", "1.43.0rc1", "2.0", "unknown"])
def test_an_unknown_version_is_refused_and_nothing_is_replaced(found, monkeypatch):
    before = import_module("flwr.supernode.start_client_internal").time
    monkeypatch.setattr(supernode, "version", lambda name: found)
    with pytest.raises(ImportError, match=re.escape(f"flwr {found} is installed")) as refused:
        look_often(1.0)
    assert "pip install 'flwr>=1.41,<1.43'" in str(refused.value)
    assert "--stock" in str(refused.value)
    assert import_module("flwr.supernode.start_client_internal").time is before
    supernode.check_version(stock=True)


@pytest.mark.parametrize("found", ["1.41.0", "1.42.3"])
def test_a_known_version_is_taken(found, monkeypatch):
    monkeypatch.setattr(supernode, "version", lambda name: found)
    monkeypatch.setattr(LOOKS, import_module("flwr.supernode.start_client_internal").time)  # put back afterwards
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    look_often(0.5)
    waits = import_module("flwr.supernode.start_client_internal").time
    for seconds in (3, 0.1):
        waits.sleep(seconds)
    assert slept == [0.5, 0.1]


def test_a_name_that_is_gone_is_refused(monkeypatch):
    monkeypatch.setattr(supernode, "version", lambda name: "1.42.0")
    monkeypatch.delattr(LOOKS)
    with pytest.raises(ImportError, match=re.escape(f"flwr 1.42.0 has no {LOOKS}")):
        look_often(1.0)


@pytest.mark.parametrize("role", [["supernode", "1.0"], ["trainer", "127.0.0.1:1", "secret", "config", "0", ""]])
def test_a_process_of_a_node_ends_in_one_line(role, monkeypatch, capsys):
    monkeypatch.setattr(supernode, "version", lambda name: "1.50.0")
    monkeypatch.setattr("fl_lightning.flower.supernode.end_with", lambda parent: None)
    with pytest.raises(SystemExit) as ended:
        main(role)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "flwr 1.50.0 is installed" in error
