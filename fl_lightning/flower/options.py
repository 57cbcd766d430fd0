"""What an app of ours says besides its configuration, and what an earlier start of it has left."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.config.compose import ConfigError
from fl_lightning.runs.records import CHECKPOINTS
from fl_lightning.runs.storage import load_latest


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``[tool.flwr.app.config]`` of an app says."""

    name: str  # of the run
    num_clients: int
    timeout: float = 60.0  # seconds of a round; what comes later is lost
    max_steps: int = 0  # clients decide about T themselves, up to this; 0: they do what they are asked
    start_timeout: float = 600.0
    min_clients: float = 0  # with which a run starts when the time is up, a number or a share; 0: all of them
    trust: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise ConfigError(f"num-clients={self.num_clients} must be at least 1")
        if not 0 <= self.min_clients <= self.num_clients or (
            self.min_clients > 1 and self.min_clients != int(self.min_clients)
        ):
            raise ConfigError(
                f"min-clients={self.min_clients} must be a number from 0 to num-clients={self.num_clients}, or a share "
                "such as 0.8"
            )
        if self.max_steps < 0:
            raise ConfigError(f"max-steps={self.max_steps} must be at least 1, or 0 where clients do what is asked")
        for name, seconds in (("timeout", self.timeout), ("start-timeout", self.start_timeout)):
            if not 0 < seconds < float("inf"):
                raise ConfigError(f"{name}={seconds} must be a positive number of seconds")

    def needed(self, resumed: bool) -> int:
        """Return how many clients are enough when the time is up; to resume, more than half of them by default.

        >>> [Options(name="a", num_clients=10, min_clients=each).needed(False) for each in (0, 0.75, 1.0, 1, 7)]
        [10, 8, 10, 1, 7]
        """
        if not self.min_clients:
            return self.num_clients // 2 + 1 if resumed else self.num_clients
        is_share = isinstance(self.min_clients, float) and self.min_clients <= 1
        return math.ceil(self.min_clients * self.num_clients - 1e-9) if is_share else int(self.min_clients)


def read_options(run_config: Mapping[str, bool | bytes | float | int | str]) -> Options:
    """Return the options of an app.

    >>> read_options({"name": "digits", "num-clients": 4, "timeout": 30}).timeout
    30.0
    """
    try:
        return Options(
            name=str(run_config["name"]),
            num_clients=int(run_config["num-clients"]),
            timeout=float(run_config.get("timeout", 60.0)),
            max_steps=int(run_config.get("max-steps", 0)),
            start_timeout=float(run_config.get("start-timeout", 600.0)),
            min_clients=_number(run_config.get("min-clients", 0)),
            trust=tuple(filter(None, str(run_config.get("trust", "")).split(","))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the app's config is not one of fl-lightning deploy: {error}") from None


def stored_sizes(run_dir: Path) -> tuple[list[int], list[int]]:
    """Return how many examples each client had in the run that a folder holds, and of whom that was only assumed."""
    try:
        checkpoint, _ = load_latest(run_dir / CHECKPOINTS)
        engine = {} if checkpoint is None else checkpoint["loop"]["parts"]["engine"]
        sizes = engine.get("sizes", {})
    except (OSError, ValueError, KeyError, TypeError):
        return [], []  # what is wrong with it is shown when the run begins
    found = next(iter(sizes.values()), []) if isinstance(sizes, dict) else sizes
    return [int(size) for size in found], [int(client) for client in engine.get("assumed", [])]


def _number(given: bool | bytes | float | int | str) -> float:
    """Return a number, whole where it is written so: 1 is one client, 1.0 all of them."""
    return given if isinstance(given, int | float) else float(given) if "." in str(given) else int(given)
