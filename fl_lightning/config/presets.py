"""The shipped algorithms as Python objects, from the same files as on the command line."""

from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentError

from fl_lightning.algorithms import Algorithm
from fl_lightning.config import compose as configs
from fl_lightning.config.algorithms import ALGORITHM, loop_parser


def algorithm(
    name: str, clients_per_round: int | float | None = None, settings: Mapping[str, Any] | None = None
) -> Algorithm:
    """Return a shipped algorithm with parts of its own: ``FederatedLoop(algorithm("fedacs"), rounds=20, lr=0.1)``.

    Args:
        name: Of a file in ``configs/algorithms``, such as ``fedavg``, ``fedacs`` or ``scaffold``.
        clients_per_round: K, as a number of draws (6) or as a share of the clients (0.3, the default).
        settings: What else to change, by the keys of a config below ``loop``: ``{"solver.proximal": 0.01}``.

    Raises:
        ValueError: If there is no such algorithm or setting.
    """
    if name not in configs.names("algorithms"):
        raise ValueError(f"algorithm {name!r} is unknown: use one of {', '.join(configs.names('algorithms'))}")
    merged = configs.merge(configs.read(configs.FOLDER / "base.yaml"), _of(name))
    changes = dict(settings or {})
    if clients_per_round is not None:
        changes["sampling.clients_per_round"] = clients_per_round
    unknown = [key for key in changes if key.split(".")[0] not in ALGORITHM]
    if unknown:
        raise ValueError(f"setting {unknown[0]!r} is no part of an algorithm: begin with {', '.join(ALGORITHM)}")
    loop = {key: merged["loop"][key] for key in ALGORITHM if key in merged["loop"]}
    parser = loop_parser(ALGORITHM)
    try:
        parsed = parser.parse_object({"loop": _changed(loop, changes)})
    except (ArgumentError, TypeError, KeyError) as error:
        raise ValueError(f"algorithm {name!r} does not take {changes}: {' '.join(str(error).split())[:400]}") from None
    return Algorithm(**vars(parser.instantiate(parsed).loop))


def _of(name: str) -> dict[str, Any]:
    return configs.read(configs.FOLDER / "algorithms" / f"{name}.yaml")


def _changed(loop: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts with some values replaced; a key goes through the arguments of the classes on its way."""
    for key, value in changes.items():
        table, words = loop, key.split(".")
        for word in words[:-1]:
            table = table.setdefault(word, {}).setdefault("init_args", {})
        table[words[-1]] = value
    return loop
