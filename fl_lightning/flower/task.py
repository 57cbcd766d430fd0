"""What can be deployed, what a node must know to train, and what it lets a server decide. Needs no Flower."""

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import LightningModule

from fl_lightning.aggregators.secure import sum_of
from fl_lightning.config.compose import ConfigError
from fl_lightning.config.parsing import add_loop_arguments, parse_config
from fl_lightning.loop import FederatedLoop

_LOOP = ("solver", "batch_size", "lr")
_CLIPPING = ("gradient_clip_val", "gradient_clip_algorithm")
_ENGINE = ("mode", "cpu_tuning")
Precision = Literal["32-true", "64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"]
_LONGEST = 100_000  # characters of a task
_PLAIN = re.compile(r"[\w .,+-]{0,200}")  # a text that names no path


@dataclass(frozen=True)
class Task:
    """The part of a complete configuration that nodes get to know: model, solver, batch size, seed and engine."""

    config: dict[str, Any]
    held_out: float = 0.0  # share of a client's data that it does not train on, for its own evaluation

    def text(self, num_draws: int | None) -> str:
        """Return it as text, with K, on which the way of training may depend."""
        loop = self.config["loop"]
        engine = (loop.get("engine") or {}).get("init_args") or {}
        return json.dumps(
            {
                "seed": self.config["seed"],
                "model": self.config["model"],
                "loop": {key: loop.get(key) for key in _LOOP} | {key: loop[key] for key in _CLIPPING if key in loop},
                "engine": {key: engine[key] for key in _ENGINE if key in engine},
                "precision": str((self.config.get("fabric") or {}).get("precision") or "32-true"),
                "num_draws": num_draws,
                "held_out": self.held_out,
            },
            sort_keys=True,
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task as a node understands it."""

    settings: Namespace  # seed, model, and of the loop the solver, its clipping, batch_size and lr
    engine: dict[str, Any]
    precision: Precision
    num_draws: int | None
    held_out: float


@cache
def parser() -> ArgumentParser:
    """Return the parser of what a server may decide."""
    made = ArgumentParser(prog="fl-lightning node", exit_on_error=False, add_help=False)
    made.add_argument("--config", action="config")
    made.add_argument("--seed", type=int, default=0)
    made.add_subclass_arguments(LightningModule, "model", required=True)
    add_loop_arguments(made, (*_LOOP, *_CLIPPING))
    return made


@lru_cache(maxsize=16)
def read_task(text: str, trusted: tuple[str, ...]) -> Work:
    """Return a task that a server sent.

    It may name what a configuration from a stranger may name, and what the node trusts besides, but no path.
    """
    config = _loaded(text)
    _refuse_paths(config)
    engine, precision, num_draws, held_out = map(config.pop, ("engine", "precision", "num_draws", "held_out"))
    if not isinstance(engine, dict) or not engine.keys() <= set(_ENGINE):
        raise ConfigError(f"the server sets engine={engine!r}: only {' and '.join(_ENGINE)} are its to decide")
    if precision not in get_args(Precision):
        raise ConfigError(f"the server sets precision={precision!r}: use one of {', '.join(get_args(Precision))}")
    if num_draws is not None and (type(num_draws) is not int or num_draws < 1):
        raise ConfigError(f"the server sets num_draws={num_draws!r}: it must be a number of clients")
    if type(held_out) is not float or not 0 <= held_out < 1:
        raise ConfigError(f"the server sets held_out={held_out!r}: it must be a share in [0, 1)")
    settings = parse_config(parser(), config, [], trusted)
    return Work(settings=settings, engine=engine, precision=precision, num_draws=num_draws, held_out=held_out)


def _loaded(text: str) -> dict[str, Any]:
    if len(text) > _LONGEST:
        raise ConfigError(f"the server sends a task of {len(text):,} characters: at most {_LONGEST:,} are read")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("the server sends a task that is no JSON") from None
    wanted = {"seed", "model", "loop", "engine", "precision", "num_draws", "held_out"}
    if not isinstance(config, dict) or config.keys() != wanted:
        got = ", ".join(sorted(map(str, config))) if isinstance(config, dict) else type(config).__name__
        raise ConfigError(f"the server sends a task of {got[:200]}: wanted are {', '.join(sorted(wanted))}")
    if not isinstance(config["model"], dict) or not isinstance(config["loop"], dict):
        raise ConfigError("the server sends a task whose model or loop is no table of keys")
    return config


def _refuse_paths(tree: object) -> None:
    """Refuse a text that could be the path of a file here, which a parser might read."""
    if isinstance(tree, (dict, list)):
        for entry in tree.values() if isinstance(tree, dict) else tree:
            _refuse_paths(entry)
    elif isinstance(tree, str) and (not _PLAIN.fullmatch(tree) or Path(tree).is_file()):
        raise ConfigError(f"the server names {tree[:80]!r}, which could be a path: a task may name none")


def check_deployable(loop: FederatedLoop, max_steps: int | None) -> None:
    """Refuse what a deployment would not do as the configuration says.

    Up to ``max_steps`` clients decide about T themselves; None: they do what they are asked.
    """
    algorithm = loop.algorithm
    hidden = sum_of(algorithm.aggregator)
    if algorithm.local_parameters:
        raise ConfigError(
            "loop.local_parameters stay at simulated clients, but nodes would send them: leave them out to deploy"
        )
    if algorithm.personal is not None:
        raise ConfigError(
            f"loop.personal={type(algorithm.personal).__name__} is kept for simulated clients, and nodes would not "
            "train it: leave it out to deploy"
        )
    own = next((step for step in algorithm.uploads.steps if not step.traits.at_server), None)
    if own is not None:
        raise ConfigError(
            f"loop.uploads has {type(own).__name__}, a step of simulated clients, which nodes would not make: leave it "
            "out to deploy"
        )
    if algorithm.uploads and hidden is not None:
        raise ConfigError("loop.uploads change single updates, which SecureSum hides from the server: leave them out")
    if loop.fabric.world_size > 1:
        raise ConfigError("fabric.devices must be 1 on a server: the clients train on their nodes")
    if max_steps is not None and algorithm.max_local_steps is not None:
        raise ConfigError(
            f"max-steps={max_steps} lets clients decide about their local steps, and loop.max_local_steps="
            f"{algorithm.max_local_steps} would not reach them: leave --max_steps out, and nodes do what they are "
            "asked for"
        )
    if max_steps is not None and hidden is not None:
        raise ConfigError(
            f"max-steps={max_steps} lets clients decide about their local steps, but with SecureSum the factor c is on "
            "their updates before the server knows the steps: leave --max_steps out to deploy"
        )
