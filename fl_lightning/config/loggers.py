"""Loggers of a configuration: short names of ours, and loggers of Lightning by their class paths."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning.pytorch.loggers import Logger, MLFlowLogger

from fl_lightning.config.allow_list import LOGGERS
from fl_lightning.config.compose import ConfigError, Settings
from fl_lightning.runs.records import LIGHTNING_LOGS

Name = Literal["wandb", "tensorboard", "none"]
Given: TypeAlias = list[Logger | Name] | Logger | Name
_IN_A_FOLDER = tuple(name for name, arguments in LOGGERS.items() if "save_dir" in arguments)
_PARTS_OF_PATHS = ("name", "version", "sub_dir")  # which a logger appends to its save_dir


def complete(merged: Settings, overrides: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return a config and overrides in which each logger is a name, or a table with its class and a folder.

    >>> complete({"logger": "wandb,lightning.pytorch.loggers.CSVLogger"}, [])[0]["logger"]
    ['wandb', {'class_path': 'lightning.pytorch.loggers.CSVLogger', 'init_args': {'save_dir': '.'}}]
    >>> complete({}, ["--seed", "1", "--logger=wandb,tensorboard"])[1]
    ['--seed', '1', '--logger=["wandb", "tensorboard"]']
    """
    done: list[str] = []
    for text in overrides:
        if done and done[-1] in ("--logger", "--logger+"):
            done.append(_as_text(text))
        elif text.startswith(("--logger=", "--logger+=")):
            key, _, value = text.partition("=")
            done.append(f"{key}={_as_text(value)}")
        else:
            done.append(text)
    if "logger" not in merged:
        return merged, done
    given = merged["logger"]
    items = [_complete(each) for each in (given if isinstance(given, list) else _split(given))]
    return merged | {"logger": items}, done


def _split(given: object) -> list[Any]:
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else [given]


def _as_text(given: str) -> str:
    """Return what follows ``--logger``; a single class stays a table, whose arguments may follow."""
    if given.lstrip().startswith(("[", "{")):
        return given
    items = [_complete(each) for each in _split(given)]
    return items[0] if items == [given] else json.dumps(items[0] if len(items) == 1 else items)


def _complete(item: Any) -> Any:
    if isinstance(item, str) and (item in LOGGERS or "." in item):
        item = {"class_path": f"lightning.pytorch.loggers.{item}" if item in LOGGERS else item}
    elif isinstance(item, str) and item not in get_args(Name):
        raise ConfigError(
            f"logger={item!r} is unknown: use {', '.join(get_args(Name))}, or the class path of a logger of Lightning, "
            f"such as lightning.pytorch.loggers.CSVLogger; several separated by commas"
        )
    if isinstance(item, dict) and str(item.get("class_path")).rpartition(".")[2] in _IN_A_FOLDER:
        return item | {"init_args": {"save_dir": "."} | (item.get("init_args") or {})}
    return item


def names(given: object) -> list[str]:
    """Return the short names among the loggers of a configuration, each once.

    >>> names(["wandb", "tensorboard", "wandb"]), names("none")
    (['wandb', 'tensorboard'], [])
    """
    known = [each for each in _items(given) if isinstance(each, str) and each in get_args(Name) and each != "none"]
    return list(dict.fromkeys(known))


def _items(given: object) -> list[Any]:
    return given if isinstance(given, list) else [given]


def placed(given: object, run_dir: Path) -> list[Namespace]:
    """Return the loggers that are named by a class, those of the allow-list with a folder inside that of the run."""
    folder = (run_dir / LIGHTNING_LOGS).absolute()
    found = [each.clone() for each in _items(given) if isinstance(each, Namespace)]
    for spec in found:
        name, arguments = spec.class_path.rpartition(".")[2], spec.init_args
        if name not in _IN_A_FOLDER:
            continue
        for problem in _leaving(spec, folder.resolve()):
            raise ConfigError(
                f"--logger {spec.class_path}: {problem}, but a config may write into {run_dir / LIGHTNING_LOGS} "
                "alone: give a relative path, which is taken from there"
            )
        arguments.save_dir = str(folder / arguments.save_dir)
        if name == "MLFlowLogger" and not arguments.tracking_uri:  # it refuses a folder of plain files
            arguments.tracking_uri = f"sqlite:///{arguments.save_dir}/mlflow.db"
            arguments.artifact_location = arguments.artifact_location or f"{arguments.save_dir}/mlartifacts"
    return found


def made(specs: Sequence[Namespace], config: Settings, resumed: bool) -> list[Logger]:
    """Make the loggers, some of which write at once, and give them the configuration."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--logger", type=Logger)
    found: list[Logger] = []
    for spec in specs:
        if spec.class_path.rpartition(".")[2] in _IN_A_FOLDER:
            Path(spec.init_args.save_dir).mkdir(parents=True, exist_ok=True)
        try:
            logger = parser.instantiate(Namespace(logger=spec)).logger
        except ModuleNotFoundError as error:
            raise ConfigError(f"--logger {spec.class_path} needs a package that is not installed: {error}") from None
        except (ArgumentError, ValueError, TypeError, OSError) as error:
            raise ConfigError(f"--logger {spec.class_path}: {' '.join(str(error).split())[:500]}") from None
        if not (resumed and isinstance(logger, MLFlowLogger)):  # which keeps what it has
            logger.log_hyperparams(config)
        found.append(logger)
    return found


def _leaving(spec: Namespace, top: Path) -> Iterator[str]:
    """Yield which argument of a listed logger leads out of the folder for such logs."""
    for name in ("save_dir", *_PARTS_OF_PATHS):
        value = vars(spec.init_args).get(name)
        is_out = isinstance(value, str) and not (top / value).resolve().is_relative_to(top)
        if is_out or (name in _PARTS_OF_PATHS and ".." in Path(str(value)).parts):
            yield f"{name}={value!r} leads out of it"
