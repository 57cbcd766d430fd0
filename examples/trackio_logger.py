"""A logger that Lightning does not have, for trackio, in twenty lines; in a config: --trust trackio_logger."""

from typing import Any

import trackio
from fl_lightning import IID, Digits, FederatedLoop, FederatedModule
from lightning.fabric import Fabric
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import Logger
from torch import nn


class TrackioLogger(Logger):
    """Logs each round to a local trackio project; `trackio show` opens it."""

    def __init__(self, project: str = "fl-lightning", run: str | None = None) -> None:
        super().__init__()
        self._project, self._run, self._config = project, run, {}
        self._opened: Any = None

    name = property(lambda self: self._project)
    version = property(lambda self: self._run)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any], *more: Any) -> None:
        self._config = params

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self._opened is None:
            self._opened = trackio.init(project=self._project, name=self._run, config=self._config, resume="allow")
        self._opened.log(metrics, step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._opened is not None:
            self._opened.finish()
            self._opened = None


if __name__ == "__main__":
    fabric = Fabric(accelerator="auto", devices=1, loggers=[TrackioLogger(run="digits")])
    loop = FederatedLoop(rounds=5, lr=0.1, fabric=fabric)
    result = loop.run(FederatedModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), Digits(IID(num_clients=10)))
    print(f"trackio has {len(result.history)} rounds")
