"""Configuration files that try to run code, read files or never end: each is refused in one line and does nothing."""

import base64
import inspect
import pickle
import pkgutil
import sys
from importlib import import_module

import pytest
import yaml

from fl_lightning.cli.main import main
from fl_lightning.config import allow_list
from fl_lightning.runs import safe_yaml

QUICK = ["--logger", "none", "--loop.rounds", "1"]


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def refused(command, capsys):
    assert main(command) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1, error
    return error


def spec(path, **arguments):
    return {"class_path": path, "init_args": arguments}


ALLOCATOR = spec(
    "torch.cuda.memory.CUDAPluggableAllocator", path_to_so_file="x.so", alloc_fn_name="a", free_fn_name="f"
)
MAPPER = "torch.utils.data.datapipes.iter.callable.MapperIterDataPipe"
WRAPPER = "torch.utils.data.datapipes.iter.utils.IterableWrapperIterDataPipe"


def configs_that_make_things(inner):
    network = spec("torch.nn.ParameterDict", parameters=inner)
    return {
        "network": {"model": {"init_args": {"network": network}}},
        "callback": {"loop": {"callbacks": [spec("fl_lightning.callbacks.WandbMetrics", config={"a": inner})]}},
        "optimizer": {"loop": {"solver": spec("fl_lightning.solvers.TorchOptimizer", optimizer=inner)}},
    }


@pytest.mark.parametrize("place", ["network", "callback", "optimizer"])
@pytest.mark.parametrize("command", ["train", "diagnose"])
def test_a_shared_library_is_not_loaded(place, command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(configs_that_make_things(ALLOCATOR)[place]))
    loaded = []
    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **_: loaded.append(arguments))
    files = (
        ["--config", "digits_fedavg.yaml", "--config", "mine.yaml"] if command == "train" else ["--config", "mine.yaml"]
    )
    code = main([command, *files, *(QUICK if command == "train" else [])])
    error = capsys.readouterr().err
    assert code in (0, 2)
    assert code == 2 or place in ("callback", "network")  # where a table is only a table, it is data
    assert "Traceback" not in error
    assert not [each for each in loaded if "x.so" in str(each)]


def test_bytes_in_a_config_are_not_unpickled(tmp_path, capsys):
    bomb, ran = pickle.dumps(Bomb(tmp_path / "ran")), tmp_path / "ran"
    text = f"""
model:
  class_path: fl_lightning.module.FederatedModule
  init_args:
    network:
      class_path: torch.nn.ParameterDict
      init_args:
        parameters:
          class_path: {MAPPER}
          init_args:
            fn: torch.storage._load_from_bytes
            datapipe:
              class_path: {WRAPPER}
              init_args: {{iterable: [!!binary {base64.b64encode(bomb).decode()}]}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    error = refused(
        ["train", "--config", "digits_fedavg.yaml", "--config", str(tmp_path / "mine.yaml"), *QUICK], capsys
    )
    assert "!!binary is not supported" in error
    (tmp_path / "mine.yaml").write_text(text.replace("!!binary ", ""))
    main(["train", "--config", "digits_fedavg.yaml", "--config", str(tmp_path / "mine.yaml"), *QUICK])
    assert not ran.exists()


@pytest.mark.parametrize(
    "name",
    [
        "torch.storage._load_from_bytes", "torch.load", "fl_lightning.module.FederatedModule.load_from_checkpoint",
        "fl_lightning.callbacks.RunRecorder.on_federation_end", "torch.nn.Module.load_state_dict",
    ],
)  # fmt: skip
def test_functions_by_name_are_refused(name, capsys):
    solver = ["--loop.solver=fl_lightning.solvers.TorchOptimizer", f"--loop.solver.optimizer={name}"]
    refused(["train", "--config", "toy_fedavg.yaml", *QUICK, *solver], capsys)


def test_an_escaped_name_is_seen(capsys):
    hidden = '--loop.solver.optimizer="torch.\\x6coad"'
    refused(
        ["train", "--config", "toy_fedavg.yaml", "--loop.solver=fl_lightning.solvers.TorchOptimizer", hidden], capsys
    )


def test_a_config_inside_a_config_is_refused_and_shows_nothing_of_the_file(tmp_path, capsys):
    (tmp_path / "secret.txt").write_text("password: hunter2")
    (tmp_path / "mine.yaml").write_text(f"config: {tmp_path / 'secret.txt'}\n")
    error = refused(["train", "--config", str(tmp_path / "mine.yaml")], capsys)
    assert "hunter2" not in error
    assert "--config A --config B" in error


MERGE_BOMB = "a: &a {k: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [*{a}, *{a}]}}\n" for a, b in zip("abcdefghijklmno", "bcdefghijklmnop", strict=True)
)


@pytest.mark.parametrize("text", [MERGE_BOMB, "a: {<<: {b: 1}}"])
def test_merge_keys_are_refused_with_a_word_what_to_do(text):
    with pytest.raises(safe_yaml.UnsafeYamlError, match=r"merge keys \(<<\) are not supported: write the keys out"):
        safe_yaml.load(text, "it")


def test_a_bomb_in_a_stored_config_hangs_neither_report_nor_train(tmp_path, capsys):
    run = tmp_path / "fedavg" / "seed_0"
    run.mkdir(parents=True)
    doubling = "a: &a [1, 1]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghijklmnopqrstuvw", "bcdefghijklmnopqrstuvwx", strict=True)
    )
    for name, content in (("config.yaml", doubling), ("metrics.csv", "round\n1\n"), ("summary.json", "{}")):
        (run / name).write_text(content)
    assert main(["report", str(tmp_path)]) == 2
    assert main(["train", "--config", "toy_fedavg.yaml", *QUICK, "--run_dir", str(run)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def reachable(package):
    """Yield all public classes and functions of a package with every name under which they can be had."""
    root = import_module(package)
    modules = [root]
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        modules += [sys.modules[info.name]] if info.name in sys.modules else []
    for module in modules:
        for name, part in vars(module).items():
            if inspect.isclass(part) or inspect.isroutine(part):
                yield f"{module.__name__}.{name}", part


@pytest.mark.parametrize("package", ["torch", "lightning", "torchmetrics", "torchvision"])
def test_nothing_that_takes_a_path_bytes_a_callable_or_a_command_can_be_named(package):
    """Every class and function of the four packages is looked at, under each name that reaches it."""
    allowed, seen, named = allow_list.listed_names(), 0, 0
    for path, part in reachable(package):
        seen += 1
        if path not in allowed:
            continue
        named += 1
        assert inspect.isclass(part) or path.startswith("torchvision.models."), f"{path} is a function"
        if not path.startswith("lightning.pytorch.loggers."):  # their folders: tests/config/test_loggers.py
            assert not allow_list.takes_something_risky(part), path
        assert not any(
            word in path for word in ("load", "hub", "jit", "distributed", "subprocess", "cpp", "datapipes")
        ), path
    assert seen > 500
    assert named >= {"lightning": 1}.get(package, 20)
