"""Every command in README, docs and help is run, made small; what cannot run here is read by its own parser.

A new command in a document fails until it runs, or until it stands in ``ELSEWHERE`` with the reason.
"""

import re
import shutil

import pytest
import yaml
from here_pool import HerePool

from documented import ROOT, Command, blocks, commands, options
from fl_lightning.cli import compare, data, train
from fl_lightning.cli import main as command_line
from fl_lightning.cli.main import main
from fl_lightning.config import building, catalogue
from fl_lightning.config import compose as configs
from made_runs import make_comparison, make_run

ELSEWHERE = {
    "pip install": "changes the environment; the CI runs it",
    "pytest": "these are the tests",
    "python tests/": "writes what the tests compare with",
    "torchrun": "tests/test_processes.py starts it",
    "pre-commit install": "changes the repository",
    "lint-imports": "the CI runs it",
    "python -m benchmarks": "takes minutes; tests/benchmarks runs its parts",
    "wandb login": "needs an account",
    "wandb sync": "needs an account",
    "tensorboard --logdir": "a server that runs until it is stopped",
    "fl-lightning train --config runs/deployed": "needs a deployment; tests/flower replays one",
    "fl-lightning node": "runs until it is stopped; tests/flower runs it",
    "flower-superlink": "a server that runs until it is stopped; tests/flower runs it",
    "flwr": "needs a server; tests/flower runs it",
    "ssh-keygen": "makes keys; tests/flower runs it",
    "fl-lightning diagnose runs/trial": "needs a checkpoint; tests/cli/test_diagnose_run.py makes one",
    "wandb sweep": "needs an account; tests/jobs/test_tuning.py fills its commands in and runs them",
    "fl-lightning suite": "hundreds of runs; tests/jobs/test_suites.py makes a small one",
    "python examples/lora_text.py": "needs the extra text; tests/test_examples.py runs it",
    "wandb agent": "needs an account; tests/jobs/test_tuning.py fills its commands in and runs them",
}
NOT_OURS = {"--dry-run": "wandb sync", "--index-url": "pip", "--quick": "benchmarks"}  # options of other programs
OF_DATA = {"--data.test_people": "watch.yaml", "--data.clients": "adult.yaml"}  # settings that others do not have
BUNDLED = ("fl_lightning.data.Digits", "fl_lightning.data.Quadratic")  # data that needs no download
SMALL = ["--loop.rounds", "1", "--logger", "none"]


def shown_in_help():
    text = command_line._help() + "\n" + compare._EPILOG
    return [Command("--help", found) for found in re.findall(r"fl-lightning [a-z]+ .*", text)]


# Those of extend.md need the files that the page shows; tests/test_extend.py writes them and runs all of it.
FOUND = [one for one in [*shown_in_help(), *commands()] if one.document != "extend.md"]
COMMANDS = list({" ".join(one.words): one for one in FOUND}.values())


def kind(command):
    """Return the entry of the table that a command falls under."""
    return next((name for name in ELSEWHERE if " ".join(command.words).startswith(name)), None)


OURS = [
    one
    for one in COMMANDS
    if (one.words[0] in ("fl-lightning", "train.py") or "train.py" in one.words) and kind(one) is None
]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with the files that the documents speak of."""
    folder = tmp_path_factory.mktemp("documented")
    make_comparison(folder / "runs" / "compare_digits", 3, 2)
    for name, algorithm in (("mnist_fedacs", "fedacs"), ("mnist_mine", "mine")):
        make_run(folder / "runs" / name, algorithm, 0, data="mnist")
    ((_, table),) = (block for block in blocks(ROOT / "docs" / "diagnose.md") if block[0] == "csv")
    header, *rows = table.splitlines()
    (folder / "clients.csv").write_text("\n".join([header, *rows * 10]))  # the document shows the first few
    log = next(body for language, body in blocks(ROOT / "docs" / "audit.md") if language == "csv")
    (folder / "participation.csv").write_text(log)
    code = "from fl_lightning import Importance\n\n\nclass Loyal(Importance):\n    pass\n"
    for name in ("mine.py", "their_package.py"):
        (folder / name).write_text(code)
    (folder / "mine.yaml").write_text(yaml.safe_dump(configs.compose(["mnist_fedacs.yaml"]) | {"target_accuracy": 0.8}))
    (folder / "workaware_fixed.yaml").write_text((configs.FOLDER / "algorithms" / "workaware.yaml").read_text())
    shutil.copytree(ROOT / "examples", folder / "examples")
    theirs = configs.compose(["digits_fedavg.yaml"])
    theirs["loop"]["sampling"]["init_args"]["sampler"] = {"class_path": "their_package.Loyal"}
    (folder / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    return folder


@pytest.fixture
def world(template, tmp_path, monkeypatch):
    folder = tmp_path / "world"
    shutil.copytree(template, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return folder


class FewPool(HerePool):
    """test_cli.py reads all configs."""

    most = 3


def check_settings(arguments, trusted=()):
    """Read a configuration and overrides without building anything."""
    given, rest = train.make_parser().parse_known_args(arguments)
    return building.parse(configs.compose(given.config or [configs.DEMO], given.system), rest, [*trusted, *given.trust])


def run_train(arguments, monkeypatch):
    if "--help" in arguments or "--print_config" in arguments:
        return main(["train", *arguments])
    settings = check_settings(arguments)
    if settings.data.class_path not in BUNDLED:
        return 0  # the data may be absent
    return main(["train", *arguments, *SMALL])


def run_compare(arguments, monkeypatch):
    monkeypatch.setattr("fl_lightning.jobs.pool.Pool", FewPool)
    shutil.rmtree("runs")
    parser_options, overrides = compare.make_parser().parse_known_args([*arguments, "--seeds", "0:1"])
    _, jobs = compare._plan(parser_options, overrides)
    if all(job.merged["data"]["class_path"] in BUNDLED for job in jobs):
        return main(["compare", *arguments, "--seeds", "0:1", "--no-report", *SMALL])
    for job in jobs[:3]:  # test_cli.py reads all configs
        building.parse(job.merged, overrides)
    return 0


def run_data(arguments, monkeypatch):
    """Read the arguments: the data may be absent, and is fetched by no test."""
    asked = []
    for name in ("_fetch", "_trace"):
        monkeypatch.setattr(data, name, lambda options, *_: asked.extend(options.names))
    monkeypatch.setattr(data, "_show", lambda options, *_: asked.append(configs.compose([options.config])))
    code = main(["data", *arguments])
    assert asked
    return code


RUNNERS = {"train": run_train, "compare": run_compare, "data": run_data}
MADE_SMALL = {
    "report": ["--no-figures", "--logger", "none"],
    "diagnose": ["--algorithms", "fedacs,fedavg,fedvarp,divfl"],
    "figure": ["--rounds", "10", "--seeds", "0:1"],
    "dashboard": [],
    "audit": [],
    "deploy": [],
    "demo": ["--rounds", "2", "--data.partition.num_clients", "10", "--loop.batch_size", "8"],
    "show": [],
    "completion": [],
}


def test_every_command_is_run_or_its_absence_explained():
    unexplained = [f"{one.document}: {one.text}" for one in COMMANDS if one not in OURS and kind(one) is None]
    assert unexplained == [], "let it run here, or put it into ELSEWHERE with the reason"
    assert {kind(one) for one in COMMANDS} - {None} == set(ELSEWHERE), "an entry of ELSEWHERE is in no document"
    assert len(OURS) > 25


@pytest.mark.parametrize("command", OURS, ids=[f"{one.document}: {' '.join(one.words)}"[:90] for one in OURS])
def test_a_documented_command_works(command, world, monkeypatch):
    words = command.words
    words = words[: words.index(">")] if ">" in words else words
    if words == ["fl-lightning"]:
        assert main([]) == 0
        return
    if words[1] == "completion":
        pytest.importorskip("shtab")
    if "train.py" in words:
        name, arguments = "train", words[words.index("train.py") + 1 :]
    else:
        name, arguments = words[1], words[2:]
    if name in RUNNERS:
        assert RUNNERS[name](arguments, monkeypatch) == 0
    else:
        assert main([name, *arguments, *MADE_SMALL[name]]) == 0


def test_documented_test_files_exist():
    named = [word for one in COMMANDS if one.words[0] == "pytest" for word in one.words if word.endswith(".py")]
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


OPTIONS = options()
SETTINGS = [one for one in OPTIONS if one.text.startswith(("--loop.", "--data.", "--model.", "--fabric."))]
VALUES = [one for one in SETTINGS if len(one.words) > 1]


@pytest.mark.parametrize("option", VALUES, ids=[one.text[:60] for one in VALUES])
def test_a_documented_setting_is_known(option):
    config = "mnist_fedacs.yaml" if "--model." in option.text else OF_DATA.get(option.words[0], configs.DEMO)
    check_settings(["--config", config, *option.words])


def test_other_documented_options_are_known(capsys):
    for name in ("train", "node", "suite", *RUNNERS, *MADE_SMALL):
        main([name, "--help"])
    for name in ("show", "fetch", "trace"):
        main(["data", name, "--help"])
    known = set(re.findall(r"--[\w-]+", capsys.readouterr().out)) | {f"--{key.name}" for key in catalogue.stored().keys}
    mentioned = {word for one in OPTIONS if one not in VALUES for word in one.words if word.startswith("--")}
    mentioned -= {"--logger.version"}  # an argument of a logger that is named by its class
    settings = {word for word in mentioned if word.startswith(("--loop.", "--data."))}
    assert mentioned - settings - known == set(NOT_OURS)
    complete = yaml.safe_load(building.dump(check_settings(["--config", "mnist_fedacs.yaml"])))
    for word in settings:
        parts = re.sub(r"\+?=.*", "", word.removeprefix("--")).split(".")  # `--KEY+=VALUE` adds to a list
        inner = complete
        for part in parts:
            inner = inner.get("init_args", inner)
            assert part in inner, word
            inner = inner[part]
