"""What a node decides itself: its data, whom it trusts, and how much it works. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from fl_lightning.config import compose as configs
from fl_lightning.config.compose import ConfigError
from fl_lightning.theory.checks import one_of

Accelerator = Literal["auto", "cpu", "cuda", "mps"]


UNASSIGNED = -1  # a client whose number the server decides


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node's own settings.

    They come from the command that starts the node and from a file there; a server can change none of them.
    """

    config: str  # the file, or a shipped one by name
    client: int = UNASSIGNED  # this node's number in the federation
    steps: int | None = None  # T that it does whatever it is asked for, if the server allows; None: what it is asked
    max_steps: int = 100_000  # no task of more is accepted
    threads: int | None = None
    accelerator: Accelerator = "auto"
    only_sums: bool = False  # answer with what goes into a secure sum, and with no update of its own
    min_threshold: int | None = None  # of a secure sum that it takes part in; None: above half of the members
    identity: str | None = None  # file of the node's own key, which signs what it sends in a sum; made at first use
    # Public keys in base 16, by client, of those with whom it makes sums; None: whom the server names.
    members: dict[int, str] | None = field(default=None, hash=False)
    state: str | None = None  # folder in which it remembers what it answered; None: one of this user
    trust: tuple[str, ...] = ()  # packages whose classes a server may name

    def __post_init__(self) -> None:
        if self.client < UNASSIGNED:
            raise ConfigError(f"client={self.client} must be the number of a client, counted from 0")
        numbers = ("steps", "max_steps", "threads", "min_threshold")
        for name, value in ((name, vars(self)[name]) for name in numbers):
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{name}={value!r} of the node must be a whole number of at least 1")
        if type(self.only_sums) is not bool:
            raise ConfigError(f"only_sums={self.only_sums!r} of the node must be true or false")
        for name in ("identity", "state"):
            if vars(self)[name] is not None and not isinstance(vars(self)[name], str):
                raise ConfigError(f"{name}={vars(self)[name]!r} of the node must be a path")
        if self.members is not None and self.identity is None:
            raise ConfigError("members of the node needs its own key, too: set node.identity to a file")
        one_of("accelerator", self.accelerator, Accelerator)


_KEYS = tuple(each.name for each in fields(Node) if each.name not in ("config", "client"))


def merged_config(config: str) -> dict[str, Any]:
    """Return a node's config file, merged with those that it is based on."""
    merged: dict[str, Any] = {}
    for path in configs.resolve(config):
        merged = configs.merge(merged, configs.read(path))
    return merged


def read_node(node_config: Mapping[str, object]) -> Node:
    """Return the settings of a node from what its SuperNode was started with.

    There, ``config`` names the file; ``client`` is the number, unless the file gives it or the server decides;
    ``trust`` are packages, separated by commas.
    """
    config = node_config.get("config")
    if not isinstance(config, str) or not config:
        raise ConfigError("the node has no config: start it by fl-lightning node --data FILE, which gives it one")
    own = merged_config(config).get("node", {})
    if not isinstance(own, dict) or not own.keys() <= {*_KEYS, "client"}:
        raise ConfigError(f"node={own!r} in {config} must be a table of: client, {', '.join(_KEYS)}")
    client = node_config.get("client", UNASSIGNED)
    client = own.get("client", UNASSIGNED) if client == UNASSIGNED else client
    if type(client) is not int:
        raise ConfigError(
            f"client={client!r} must be the number of this client: give --client or node.client, or neither"
        )
    trust = own.get("trust", [])
    if not isinstance(trust, list) or not all(isinstance(each, str) for each in trust):
        raise ConfigError(f"node.trust={trust!r} in {config} must be a list of packages")
    given = [package for package in str(node_config.get("trust", "")).split(",") if package]
    settings = {key: own[key] for key in _KEYS if key in own and key != "trust"}
    members = own.get("members")
    if members is not None and not (
        isinstance(members, dict) and all(type(k) is int and isinstance(v, str) for k, v in members.items())
    ):
        raise ConfigError("members of the node must be a table: the number of each client, and its public key as text")
    return Node(config=str(Path(config)), client=client, trust=(*trust, *given), **settings)
