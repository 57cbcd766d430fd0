"""From a configuration, or the name of a shipped one, to the parts of an algorithm and its environment.

Neither data, model nor device is needed.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, Namespace
from torch.nn.parameter import is_lazy

from fl_lightning.algorithms import Algorithm, System
from fl_lightning.config import compose as configs
from fl_lightning.config.compose import ConfigError, Settings
from fl_lightning.config.parsing import instantiate, keys_of, make_parser
from fl_lightning.solvers import Solver

ALGORITHM = keys_of(Algorithm)
AVERAGING = ("averaging", "rounds")
_BESIDE = ("channel", "clock", "lr")
_ENVIRONMENT = (*keys_of(System), "lr", "batch_size")


def algorithm(
    name: str,
    clients_per_round: int | float | None = None,
    settings: Mapping[str, Any] | None = None,
    solver: Solver | str | None = None,
) -> Algorithm:
    """Return a shipped algorithm with parts of its own: ``FederatedLoop(algorithm("fedacs"), rounds=20, lr=0.1)``.

    Args:
        name: Of a file in ``configs/algorithms``, such as ``fedavg``, ``fedacs`` or ``scaffold``.
        clients_per_round: K, as a number of draws (6) or as a share of the clients (0.3, the default).
        settings: What else to change, by the keys of a config below ``loop``: ``{"solver.proximal": 0.01}``.
        solver: Makes the local steps, as in :class:`fl_lightning.Algorithm`: ``"module"`` for the module's own.

    Raises:
        ValueError: If there is no such algorithm or setting, or if it has a solver of its own.
    """
    if name not in configs.names("algorithms"):
        raise ValueError(f"algorithm {name!r} is unknown: use one of {', '.join(configs.names('algorithms'))}")
    merged = configs.merge(configs.read(configs.FOLDER / "base.yaml"), _algorithm_file(name))
    changes = dict(settings or {})
    of_solver = [key for key in changes if key.split(".")[0] == "solver"]
    if solver is not None and (of_solver or "solver" in _algorithm_file(name).get("loop", {})):
        raise ValueError(f"solver={solver!r} would replace that of {(*of_solver, name)[0]}: leave one of them out")
    if clients_per_round is not None:
        changes["sampling.clients_per_round"] = clients_per_round
    unknown = [key for key in changes if key.split(".")[0] not in ALGORITHM]
    if unknown:
        raise ValueError(f"setting {unknown[0]!r} is no part of an algorithm: begin with {', '.join(ALGORITHM)}")
    loop = {key: merged["loop"][key] for key in ALGORITHM if key in merged["loop"]}
    for key, value in changes.items():
        table, words = loop, key.split(".")
        for word in words[:-1]:  # through the arguments of the classes on its way
            table = table.setdefault(word, {}).setdefault("init_args", {})
        table[words[-1]] = value
    parser = make_parser(_below_loop(ALGORITHM))
    try:
        parsed = parser.parse_object({"loop": loop})
    except (ArgumentError, TypeError, KeyError) as error:
        raise ValueError(f"algorithm {name!r} does not take {changes}: {' '.join(str(error).split())[:400]}") from None
    parts = vars(parser.instantiate(parsed).loop)
    return Algorithm(**(parts if solver is None else parts | {"solver": solver}))


def _below_loop(keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"loop.{key}" for key in keys)


def environment(merged: Settings, overrides: Sequence[str], trusted: Sequence[str] = ()) -> Namespace:
    """Return the data source, the seed, and what surrounds an algorithm: ``loop.schedule``, ``loop.lr`` and so on."""
    return instantiate(merged, ("seed", "data", *_below_loop(_ENVIRONMENT)), overrides, trusted)


def beside_clients(merged: Settings, overrides: list[str], trusted: Sequence[str] = ()) -> Namespace:
    """Return what a table of clients leaves open: ``channel``, ``clock`` (None unless given) and ``lr`` of the loop."""
    refused, _ = split_overrides(overrides, _BESIDE)
    if refused:
        raise ConfigError(
            f"{refused[0]} does not go with --clients, whose table gives T, q and w: use --config for it, or one of "
            + ", ".join(f"--loop.{key}" for key in _BESIDE)
        )
    loop = {"lr": merged["loop"].get("lr", 0.02), "channel": merged["loop"]["channel"]}
    return instantiate({"loop": loop}, _below_loop(_BESIDE), overrides, trusted).loop


def averaging(merged: Settings, overrides: Sequence[str], trusted: Sequence[str] = ()) -> Namespace:
    """Return what is averaged over rounds, and over how many: ``averaging`` and ``rounds``."""
    loop = {"rounds": 100} | merged.get("loop", {})  # a table of clients says nothing about rounds
    made: Namespace = instantiate({"loop": loop}, _below_loop(AVERAGING), overrides, trusted).loop
    if made.rounds < 1:
        raise ConfigError(f"loop.rounds={made.rounds} must be at least 1")
    return made


def model_bytes(merged: Settings, trusted: Sequence[str] = ()) -> float:
    """Return the bytes of the configured model that travel, trainable parameters and float buffers; NaN without one."""
    if "model" not in merged:
        return math.nan
    module = instantiate(merged, ("model",), trusted=trusted).model
    sent = [each for each in module.parameters() if each.requires_grad]
    sent += [each for each in module.buffers() if each.is_floating_point()]
    if any(is_lazy(each) for each in sent):
        return math.nan
    return float(sum(each.numel() * each.element_size() for each in sent))


def configured_algorithm(merged: Settings, overrides: list[str], trusted: Sequence[str] = ()) -> Algorithm:
    """Return the parts of the algorithm that a complete configuration describes; equal parts may be the same object."""
    parts = {}
    for key in ALGORITHM:
        _, of_key = split_overrides(overrides, (key,))
        parts[key] = _part(key, yaml.safe_dump(merged["loop"].get(key)), tuple(of_key), tuple(trusted))
    return Algorithm(**parts)


@cache
def _part(key: str, settings: str, overrides: tuple[str, ...], trusted: tuple[str, ...]) -> Any:
    """Return one part; most algorithms differ in one, so that the others need not be parsed again."""
    given = yaml.safe_load(settings)
    loop = {} if given is None else {key: given}
    return vars(instantiate({"loop": loop}, (f"loop.{key}",), overrides, trusted).loop)[key]


def split_overrides(overrides: list[str], keys: Sequence[str] = ALGORITHM) -> tuple[list[str], list[str]]:
    """Separate what overrides the environment from what overrides the algorithm, or some other keys of the loop.

    >>> split_overrides(["--loop.lr", "0.1", "--loop.sampling.clients_per_round=4", "--seed", "1"])
    (['--loop.lr', '0.1', '--seed', '1'], ['--loop.sampling.clients_per_round=4'])
    """
    sides: tuple[list[str], list[str]] = ([], [])
    side = sides[0]
    for word in overrides:
        if word.startswith("--"):  # the values of an option go with it
            side = sides[word.split("=")[0].startswith(tuple(f"--loop.{key}" for key in keys))]
        side.append(word)
    return sides


def algorithms(
    merged: Settings, names: list[str], overrides: list[str], trusted: Sequence[str] = ()
) -> Iterator[tuple[str, Algorithm]]:
    """Yield each algorithm by its label, on a configuration's clients.

    The names are those of shipped algorithms (``fedavg``), or files of the user's own (``mine.yaml``, labelled
    ``mine``).
    """
    neutral = without_algorithm(merged)
    for name in names:
        over = _algorithm_file(name)
        yield configs.label(name), configured_algorithm(configs.merge(neutral, over), overrides, trusted)


def without_algorithm(merged: Settings) -> Settings:
    """Return a configuration with the base's algorithm; draws, solver and the place of calibration stay."""
    base = configs.read(configs.FOLDER / "base.yaml")["loop"]
    neutral = copy.deepcopy(merged)
    loop = neutral.setdefault("loop", {})
    draws = loop.get("sampling", {}).get("init_args", {}).get("clients_per_round")
    loop["sampling"] = base["sampling"]
    if draws is not None:
        loop["sampling"]["init_args"]["clients_per_round"] = draws
    loop["aggregator"] = base["aggregator"]
    for key in ("uploads", "personal"):
        loop.pop(key, None)
    return neutral


def _algorithm_file(name: str) -> Settings:
    """Return what a file says about an algorithm; it may not change the clients, which all algorithms share."""
    path = configs.FOLDER / "algorithms" / f"{name}.yaml" if name in configs.names("algorithms") else Path(name)
    over = configs.read(path)
    loop = over.get("loop", {})
    if not isinstance(loop, dict):
        raise ConfigError(f"{path}: loop={loop!r} must be a table of keys")
    foreign = [key for key in ("seed", "data", "system") if key in over] + [
        f"loop.{key}" for key in _ENVIRONMENT if key in loop
    ]
    if foreign:
        raise ConfigError(
            f"{path} sets {', '.join(foreign)}, which all algorithms share: leave it out, or set it in --config"
        )
    return over
