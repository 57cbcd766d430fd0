"""From a configuration to the parts of an algorithm and its environment, without data, model or device."""

import contextlib
import copy
import io
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning.pytorch import LightningModule
from torch.nn.parameter import is_lazy

from fl_lightning.algorithms import Algorithm, System
from fl_lightning.config import compose as configs
from fl_lightning.config.compose import label
from fl_lightning.config.parsing import add_loop_arguments, keys_of, parse_config
from fl_lightning.parts.bases import DataSource

ALGORITHM = keys_of(Algorithm)
_BESIDE = ("channel", "clock", "lr")
AVERAGING = ("averaging", "rounds")
_ENVIRONMENT = (*keys_of(System), "lr", "batch_size")


@cache
def _parser(keys: tuple[str, ...], with_data: bool) -> ArgumentParser:
    """Return a parser for some arguments of the loop; a small one answers ten times faster than the whole."""
    parser = ArgumentParser(prog="fl-lightning", exit_on_error=False, add_help=False)
    parser.add_argument("--config", action="config")
    if with_data:
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--data", type=DataSource, required=True)
    add_loop_arguments(parser, keys)
    return parser


def loop_parser(keys: tuple[str, ...]) -> ArgumentParser:
    """Return a parser for some arguments of the loop that knows no command line."""
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    add_loop_arguments(parser, keys)
    return parser


def _instantiate(
    merged: dict[str, Any], keys: tuple[str, ...], overrides: Sequence[str], trusted: Sequence[str], with_data: bool
) -> Namespace:
    wanted = {"loop": {key: value for key, value in merged.get("loop", {}).items() if key in keys}}
    wanted |= {key: merged[key] for key in ("seed", "data") if with_data and key in merged}
    parser = _parser(keys, with_data)
    settings = parse_config(parser, wanted, overrides, trusted)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            made: Namespace = parser.instantiate(settings)
            return made
    except (ArgumentError, TypeError, KeyError, AttributeError) as error:
        raise configs.ConfigError(" ".join(str(error).split())[:600]) from None


def environment(merged: dict[str, Any], overrides: Sequence[str], trusted: Sequence[str] = ()) -> Namespace:
    """Return the data source, the seed, and what surrounds an algorithm: ``loop.schedule``, ``loop.lr`` and so on."""
    return _instantiate(merged, _ENVIRONMENT, overrides, trusted, with_data=True)


def beside_clients(merged: dict[str, Any], overrides: list[str], trusted: Sequence[str] = ()) -> Namespace:
    """Return what a table of clients leaves open: ``channel``, ``clock`` (None unless given) and ``lr`` of the loop."""
    refused, _ = split_overrides(overrides, _BESIDE)
    if refused:
        raise configs.ConfigError(
            f"{refused[0]} does not go with --clients, whose table gives T, q and w: use --config for it, or one of "
            + ", ".join(f"--loop.{key}" for key in _BESIDE)
        )
    loop = {"lr": merged["loop"].get("lr", 0.02), "channel": merged["loop"]["channel"]}
    made: Namespace = _instantiate({"loop": loop}, _BESIDE, overrides, trusted, with_data=False).loop
    return made


def model_bytes(merged: dict[str, Any], trusted: Sequence[str] = ()) -> float:
    """Return the bytes of the configured model that travel, trainable parameters and float buffers; NaN without one."""
    if "model" not in merged:
        return math.nan
    parser = ArgumentParser(prog="fl-lightning", exit_on_error=False, add_help=False)
    parser.add_argument("--config", action="config")
    parser.add_subclass_arguments(LightningModule, "model", required=True)
    with contextlib.redirect_stderr(io.StringIO()):
        module = parser.instantiate(parse_config(parser, {"model": merged["model"]}, [], trusted)).model
    sent = [each for each in module.parameters() if each.requires_grad]
    sent += [each for each in module.buffers() if each.is_floating_point()]
    if any(is_lazy(each) for each in sent):
        return math.nan
    return float(sum(each.numel() * each.element_size() for each in sent))


def algorithm(merged: dict[str, Any], overrides: list[str], trusted: Sequence[str] = ()) -> Algorithm:
    """Return the parts of the algorithm that a complete configuration describes; equal parts may be the same object."""
    groups = _groups(overrides)
    parts = {
        key: _part(
            key,
            yaml.safe_dump(merged["loop"].get(key)),
            tuple(word for group in groups if _is_of(group, key) for word in group),
            tuple(trusted),
        )
        for key in ALGORITHM
    }
    return Algorithm(**parts)


@cache
def _part(key: str, settings: str, overrides: tuple[str, ...], trusted: tuple[str, ...]) -> Any:
    """Return one part; most algorithms differ in one, so that the others need not be parsed again."""
    given = yaml.safe_load(settings)
    loop = {} if given is None else {key: given}
    return getattr(_instantiate({"loop": loop}, (key,), overrides, trusted, with_data=False).loop, key)


def averaging(merged: dict[str, Any], overrides: Sequence[str], trusted: Sequence[str] = ()) -> Namespace:
    """Return what is averaged over rounds, and over how many: ``averaging`` and ``rounds``."""
    loop = {"rounds": 100} | merged.get("loop", {})  # a table of clients says nothing about rounds
    made: Namespace = _instantiate({"loop": loop}, AVERAGING, overrides, trusted, with_data=False).loop
    if made.rounds < 1:
        raise configs.ConfigError(f"loop.rounds={made.rounds} must be at least 1")
    return made


def split_overrides(overrides: list[str], keys: Sequence[str] = ALGORITHM) -> tuple[list[str], list[str]]:
    """Separate what overrides the environment from what overrides the algorithm, or some other keys of the loop.

    >>> split_overrides(["--loop.lr", "0.1", "--loop.sampling.clients_per_round=4", "--seed", "1"])
    (['--loop.lr', '0.1', '--seed', '1'], ['--loop.sampling.clients_per_round=4'])
    """
    sides: tuple[list[str], list[str]] = ([], [])
    for group in _groups(overrides):
        sides[any(_is_of(group, key) for key in keys)].extend(group)
    return sides


def _groups(overrides: list[str]) -> list[list[str]]:
    """Return each option together with its values."""
    groups: list[list[str]] = []
    for word in overrides:
        if word.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(word)
    return groups


def _is_of(group: list[str], key: str) -> bool:
    return group[0].split("=")[0].startswith(f"--loop.{key}")


def without_algorithm(merged: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the base's algorithm; draws, solver and the place of calibration stay."""
    base = configs.read(configs.FOLDER / "base.yaml")["loop"]
    neutral = copy.deepcopy(merged)
    loop = neutral.setdefault("loop", {})
    draws = loop.get("sampling", {}).get("init_args", {}).get("clients_per_round")
    loop["sampling"] = copy.deepcopy(base["sampling"])
    if draws is not None:
        loop["sampling"]["init_args"]["clients_per_round"] = draws
    loop["aggregator"] = base["aggregator"]
    loop.pop("uploads", None)
    return neutral


def algorithms(
    merged: dict[str, Any], names: list[str], overrides: list[str], trusted: Sequence[str] = ()
) -> Iterator[tuple[str, Algorithm]]:
    """Yield each algorithm by its label, on a configuration's clients.

    Args:
        merged: The configuration.
        names: Of shipped algorithms (``fedavg``), and files of the user's own (``mine.yaml``, labelled ``mine``).
        overrides: Arguments of the command line.
        trusted: Packages whose classes may be named besides the known ones.
    """
    neutral = without_algorithm(merged)
    for name in names:
        over = _algorithm_file(name)
        yield label(name), algorithm(configs.merge(neutral, over), overrides, trusted)


def _algorithm_file(name: str) -> dict[str, Any]:
    """Return what a file says about an algorithm; it may not change the clients, which all algorithms share."""
    path = configs.FOLDER / "algorithms" / f"{name}.yaml" if name in configs.names("algorithms") else Path(name)
    over = configs.read(path)
    loop = over.get("loop", {})
    if not isinstance(loop, dict):
        raise configs.ConfigError(f"{path}: loop={loop!r} must be a table of keys")
    foreign = [key for key in ("seed", "data") if key in over] + [f"loop.{key}" for key in _ENVIRONMENT if key in loop]
    if foreign:
        raise configs.ConfigError(
            f"{path} sets {', '.join(foreign)}, which all algorithms share: leave it out, or set it in --config"
        )
    return over
