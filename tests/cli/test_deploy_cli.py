"""``fl-lightning deploy`` and ``fl-lightning node``: what they write, and what they refuse in one line."""

import re
import sys

import pytest
import yaml

from fl_lightning.cli.main import main
from fl_lightning.config import compose as configs
from fl_lightning.flower.supernode import commands, node_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


def refused(arguments, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


def test_an_app_names_installed_modules_and_holds_the_complete_config(tmp_path, capsys):
    out = tmp_path / "app"
    given = ["--config", "digits_fedacs.yaml", "--config", "observed.yaml", "--out", str(out), "--loop.rounds", "7"]
    assert main(["deploy", *given, "--timeout", "30", "--max_steps", "50"]) == 0
    assert "flwr run" in capsys.readouterr().out
    app = tomllib.loads((out / "pyproject.toml").read_text())
    assert app["project"]["dependencies"] == []  # otherwise the SuperLink installs them
    assert app["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "fl_lightning.flower.server_app:app",
        "clientapp": "fl_lightning.flower.client_app:app",
    }
    settings = app["tool"]["flwr"]["app"]["config"]
    assert settings["num-clients"] == 20
    assert (settings["timeout"], settings["max-steps"], settings["name"]) == (30.0, 50, "digits_fedacs_observed")
    config = configs.read(out / "config.yaml")
    assert config["loop"]["rounds"] == 7
    assert config["loop"]["channel"]["class_path"] == "fl_lightning.callbacks.Observed"
    assert main(["deploy", *given, "--clients", "3"]) == 0  # its own files may be replaced
    assert "num-clients = 3" in (out / "pyproject.toml").read_text()


def test_secure_sums_and_long_names_can_be_deployed(tmp_path):
    mine = tmp_path / "2_my_own_settings_of_this_one.yaml"
    mine.write_text("loop: {evaluate_clients: 5}")
    out = tmp_path / "app"
    given = ["--config", "digits_secaggfedacs.yaml", "--config", "observed.yaml", "--config", str(mine)]
    assert main(["deploy", *given, "--out", str(out)]) == 0
    name = tomllib.loads((out / "pyproject.toml").read_text())["project"]["name"]
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,31}", name)  # what flwr run takes


def test_files_of_others_are_not_replaced(tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert "not from fl-lightning deploy" in refused(["deploy", "--out", str(tmp_path)], capsys)
    assert (tmp_path / "pyproject.toml").read_text() == "[project]\n"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--clients", "0"], "--clients"),
        (["--timeout", "-1"], "--timeout"),
        (["--timeout", "soon"], "--timeout"),
        (["--config", "nothing.yaml"], "nothing.yaml"),
        (["--loop.sampling.sampler", "stranger.Mine"], "stranger"),
        (["--loop.uploads+=fl_lightning.uploads.TopK"], "loop.uploads"),
        (["--config", "digits_secaggfedacs.yaml", "--max_steps", "9"], "max-steps=9"),
    ],
)
def test_a_bad_app_is_refused(more, named, tmp_path, capsys):
    assert named in refused(["deploy", "--out", str(tmp_path / "app"), *more], capsys)
    assert not (tmp_path / "app").exists()


@pytest.fixture
def node(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump({"data": configs.compose(["digits.yaml"])["data"], "node": {"client": 2}}))
    return ["node", "--superlink", "127.0.0.1:1", "--data", str(path)]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--insecure", "--private_key", __file__], "--insecure is without TLS"),
        (["--root_certificates", "nowhere.crt"], "nowhere.crt is not a file"),
        (["--port", "70000"], "--port 70000"),
        (["--poll", "0"], "--poll 0"),
        (["--unknown"], "--unknown"),
    ],
)
def test_a_bad_node_is_refused(more, named, node, capsys):
    assert named in refused([*node, *more], capsys)


def test_a_node_without_flower_says_what_to_install(node, capsys, monkeypatch):
    from importlib.metadata import PackageNotFoundError

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fl_lightning.flower.supernode.version", missing)
    assert "'.[flower]' in your clone" in refused(node, capsys)


def test_a_version_of_flower_that_was_not_tried_is_refused(node, capsys, monkeypatch):
    monkeypatch.setattr("fl_lightning.flower.supernode.version", lambda name: "1.50.0")
    assert "flwr 1.50.0 is installed" in refused(node, capsys)


@pytest.mark.parametrize(("more", "processes"), [([], 2), (["--stock"], 1)])
def test_the_processes_of_a_node(more, processes, node, monkeypatch):
    started = []
    monkeypatch.setattr("fl_lightning.flower.supernode.version", lambda name: "1.41.0")
    monkeypatch.setattr(
        "fl_lightning.cli.node.serve",
        lambda options, config, client: started.extend(commands(options, config, client, "file")),
    )
    main([*node, "--insecure", *more])
    assert len(started) == processes
    supernode = started[0]
    assert supernode[supernode.index("--node-config") + 1] == node_config(node[-1], 2, [])
    assert supernode[supernode.index("--host") + 1] == "127.0.0.1"  # nobody else may talk to its processes
    assert supernode[supernode.index("--isolation") + 1] == ("subprocess" if more else "process")
    assert ("--superexec-auth-secret-file" in supernode) == (processes == 2)  # without it anybody here gets its tasks


def test_num_steps_of_a_config_pass_over_to_observed_conditions(tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    name = "fl_lightning.callbacks.HeterogeneitySchedule"
    for number, code in (("6", 0), ("[1, 6]", 2)):
        arguments = f"{{num_steps: {number}, failure_rates: 0.1}}"
        mine.write_text(f"loop:\n  schedule: {{class_path: {name}, init_args: {arguments}}}\n")
        given = ["--config", "digits_fedacs.yaml", "--config", str(mine), "--config", "observed.yaml"]
        assert main(["deploy", *given, "--out", str(tmp_path / "app")]) == code
    said = capsys.readouterr()
    assert "clients are asked for 6 local steps first" in said.out
    assert "num_steps=[1, 6] of the schedule is for simulations" in said.err
    made = yaml.safe_load((tmp_path / "app" / "config.yaml").read_text())
    assert made["loop"]["schedule"]["init_args"]["num_steps"] == 6


def test_a_flower_that_was_not_tried_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fl_lightning.flower.supernode.version", lambda name: "1.43.0")
    assert main(["deploy", "--config", "digits_fedacs.yaml", "--out", str(tmp_path / "app")]) == 0
    assert "flwr 1.43.0 is installed, but deployments were tried with flwr>=1.41,<1.43 alone" in capsys.readouterr().out
