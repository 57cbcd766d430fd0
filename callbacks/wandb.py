"""WandbMetrics: rounds, cost and bias of a run in Weights & Biases."""

import configparser
import logging
import netrc
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from fl_lightning.callbacks.monitors import reaches
from fl_lightning.callbacks.wandb_media import log_files, media, newest_checkpoint, written_models
from fl_lightning.loop import FederatedLoop
from fl_lightning.loop.results import MONITOR, Mode
from fl_lightning.output import read_plain
from fl_lightning.parts.memory import Remembers
from fl_lightning.theory.checks import one_of
from fl_lightning.types import RoundResult

if TYPE_CHECKING:
    from wandb import Run

_LOG = logging.getLogger("fl_lightning")
_SECONDS_TO_CONNECT, _SECONDS_TO_FINISH = 30.0, 120.0
_AXES = ("round", "local_steps", "computation_time", "synchronous_time", "uplink_bytes")
_COSTS = {f"{'rounds' if axis == 'round' else axis}_to_target": axis for axis in _AXES}
_NOISE = 1e-12  # of a chi-square that is 0 but for rounding
_ADDRESS = "https://api.wandb.ai"
_HARMLESS = ("project", "entity", "mode", "disabled")  # settings of a folder
_LARGEST_SETTINGS = 100_000
Connection = Literal["auto", "online", "offline"]
Files = Literal["none", "end", "checkpoint"]


class WandbMetrics(Remembers, Callback):
    """Logs each round to W&B with ``step=round``; without an account it logs offline into the run's folder.

    Charts can use the round, the local steps, the computation time or the synchronous time as their x-axis. At the end
    of a run with a :class:`RunRecorder` it logs tables of the clients, the partition and the accuracy of each class,
    and pictures of partition and objective. ``WANDB_MODE=disabled`` switches it off: nothing is logged or written then.

    Args:
        project: W&B project; ``WANDB_PROJECT`` or ``fl-lightning`` by default.
        name: Name of the run.
        group: Runs of one group are averaged; the algorithm on the command line.
        job_type: What kind of run it is; ``train`` on the command line.
        tags: Tags of the run.
        save_dir: Where offline files go.
        mode: ``online``, ``offline``, or ``auto``: online when a key is configured.
        config: The run's configuration.
        target_accuracy: A value of the headline metric; whether it was reached, and the rounds, steps and time that it
            took (null: never), are part of the summary.
        pictures: Whether to log pictures at the end; they cost about a second.
        log_model: Which files become artifacts: ``none``, ``end`` (the weights at the end) or ``checkpoint`` (each
            checkpoint as well); ``WANDB_LOG_MODEL`` by default, else none.
        monitor: The headline metric; the loop's by default, ``test_accuracy`` in a Trainer and in a loop of your own.
        monitor_mode: Whether more of it is better (``max``) or less (``min``); the loop's by default, else ``max``.
    """

    memory = ("run_id", "_best", "_reached")  # a resumed run logs to the same W&B run

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: list[str] | None = None,
        save_dir: str = "runs",
        mode: Connection = "auto",
        config: dict[str, Any] | None = None,
        target_accuracy: float | None = None,
        pictures: bool = True,
        log_model: Files | None = None,
        monitor: str | None = None,
        monitor_mode: Mode | None = None,
    ) -> None:
        one_of("mode", mode, Connection)
        if monitor_mode is not None:
            one_of("monitor_mode", monitor_mode, Mode)
        self.log_model = _files_to_log(log_model)
        self.pictures = pictures
        self.project = project or os.environ.get("WANDB_PROJECT") or "fl-lightning"
        self.name, self.group = name, group
        self.job_type, self.tags = job_type, tags or []
        self.save_dir, self.mode = save_dir, mode
        self.config, self.target_accuracy = config or {}, target_accuracy
        self.run_id: str | None = None
        self._logger: WandbLogger | None = None
        self.monitor, self.monitor_mode = monitor, monitor_mode
        self._monitor: tuple[str, Mode] = (monitor or MONITOR, monitor_mode or "max")
        self._best: float | None = None
        self._reached: dict[str, float] = {}

    def on_federation_start(self, loop: FederatedLoop) -> None:
        """Open the run."""
        if self.log_model == "checkpoint" and loop.algorithm.uploads.secret is not None:
            raise ValueError(
                "log_model='checkpoint' would send what the epsilon of a private run does not cover: use 'end', which "
                "sends the final model alone"
            )
        self._monitor = (self.monitor or loop.monitor, self.monitor_mode or loop.mode)
        if not loop.fabric.global_rank:
            self.start()

    def start(self) -> None:
        """Open the run; in a loop of your own: this, :meth:`log_round` after each round, and :meth:`finish`."""
        if is_disabled():
            rank_zero_info("W&B: switched off by the environment; nothing is logged to it.")
            return
        refuse_workspace_settings()
        offline = self.mode == "offline" or (self.mode == "auto" and not has_key())
        if offline and self.mode == "auto":
            rank_zero_info(
                "W&B: no API key is configured, so this run is logged offline; `wandb sync` uploads it later."
            )
        if not self._attempt("W&B cannot be reached", lambda: self._open(offline)) and not offline:
            self._attempt("W&B does not work offline either", lambda: self._open(offline=True))

    def _attempt(self, trouble: str, action: Callable[[], object]) -> bool:
        """Do something with W&B; whatever happens there, training continues."""
        try:
            action()
        except Exception as error:
            self._logger = None
            _LOG.warning("%s, training continues without it: %s", trouble, " ".join(str(error).split())[:300])
            return False
        return True

    def _use(self, action: Callable[["Run"], object]) -> None:
        logger = self._logger
        if logger is not None:
            self._attempt("W&B fails", lambda: action(logger.experiment))

    def _open(self, offline: bool) -> None:
        import wandb

        Path(self.save_dir).mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True, console="off", init_timeout=_SECONDS_TO_CONNECT)
        settings.mode = "offline" if offline else "online"  # the logger's own way acts only before the first attempt
        self._logger = WandbLogger(
            name=self.name,
            project=self.project,
            save_dir=self.save_dir,
            offline=offline,
            id=self.run_id,
            group=self.group,
            job_type=self.job_type,
            tags=self.tags,
            config=self.config,
            resume="allow" if self.run_id else None,
            settings=settings,
        )
        # Lightning passes it on although nobody set it, and W&B warns that it has no effect.
        vars(self._logger).get("_wandb_init", {}).pop("anonymous", None)
        run = self._logger.experiment
        self.run_id = run.id
        for axis in _AXES:
            run.define_metric(axis)
        run.define_metric("*", step_metric="round")

    def on_round_end(self, loop: FederatedLoop, result: RoundResult) -> None:
        """Log the round."""
        self.log_round(loop.round_index, result.metrics)

    def log_round(self, round_index: int, row: Mapping[str, float]) -> None:
        """Log what was measured in a round, counted from 1."""
        row = {"round": round_index, **row}
        monitor, mode = self._monitor
        value = row.get(monitor)
        if value is not None:
            best_of = min if mode == "min" else max
            self._best = value if self._best is None else best_of(self._best, value)
            if not self._reached and reaches(value, self.target_accuracy, mode):
                self._reached = {name: row[axis] for name, axis in _COSTS.items() if axis in row}
        shown = {**row, "chi2": 0.0} if abs(row.get("chi2", 1.0)) < _NOISE else row
        self._use(lambda run: run.log(shown, step=round_index))

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.start()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """In a plain Trainer: log what was measured in this epoch under the same keys."""
        measured = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.log_round(trainer.current_epoch + 1, measured)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.finish()

    def finish(self) -> None:
        """Write the summary and close the run."""
        if self.target_accuracy is not None and self._best is None:
            _LOG.warning("W&B: no %s was logged, so that nothing is known of the target: set monitor", self._monitor[0])
        self._close(self._summary())

    def _summary(self) -> dict[str, Any]:
        name = self._monitor[0].removeprefix("test_")
        found: dict[str, Any] = {f"best_{name}": self._best, f"target_{name}": self.target_accuracy}
        if self.target_accuracy is not None:
            found |= {
                "reached": None if self._best is None else bool(self._reached),
                **dict.fromkeys(_COSTS),
                **self._reached,
            }
        return found

    def on_federation_saved(self, loop: FederatedLoop) -> None:
        """Log the checkpoint, if asked for; the last one comes after the run is closed, and the model holds as much."""
        if self.log_model == "checkpoint":
            self._use(lambda run: log_files(run, "checkpoint", newest_checkpoint(loop)))

    def on_federation_pause(self, loop: FederatedLoop) -> None:
        """Close the run for now; it is opened again by its id."""
        self._close({})

    def on_federation_end(self, loop: FederatedLoop) -> None:
        """Log tables, pictures and files, write the summary and close the run."""
        self._use(lambda run: run.log(media(loop, self.pictures), step=loop.round_index))
        if self.log_model != "none":
            self._use(lambda run: log_files(run, "model", written_models(loop)))
        self.finish()

    def _close(self, summary: dict[str, Any]) -> None:
        logger, self._logger = self._logger, None
        if logger is None:
            return

        def finish() -> None:
            logger.experiment.summary.update(summary)
            logger.experiment.finish()

        closing = threading.Thread(target=lambda: self._attempt("W&B fails", finish), daemon=True)
        closing.start()
        closing.join(_SECONDS_TO_FINISH)
        if closing.is_alive():
            _LOG.warning("W&B does not answer; `wandb sync %s/wandb/*run-*` uploads the run later", self.save_dir)


def _files_to_log(given: Files | None) -> Files:
    if given is not None:
        one_of("log_model", given, Files)
        return given
    said = os.environ.get("WANDB_LOG_MODEL", "false").lower()
    choices: dict[str, Files] = {"false": "none", "true": "end", "end": "end", "checkpoint": "checkpoint"}
    if said not in choices:
        raise ValueError(f"WANDB_LOG_MODEL={said!r} must be one of {', '.join(choices)}")
    return choices[said]


def is_disabled() -> bool:
    """Whether W&B is switched off by its own ``WANDB_MODE=disabled`` or ``WANDB_DISABLED``: it leaves no files."""
    return os.environ.get("WANDB_MODE") == "disabled" or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1")


def refuse_workspace_settings() -> None:
    """Refuse settings in the present folder by which W&B would send the user's key to somebody else's server.

    W&B reads ``wandb/settings`` of whatever folder a command is started in. It may name the project and the user; an
    address counts only if it is the user's own, of ``WANDB_BASE_URL`` or ``wandb login``.
    """
    for file in (Path("wandb", "settings"), Path(".wandb", "settings")):
        for key, value in _settings(file).items():
            user = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings"
            known = (os.environ.get("WANDB_BASE_URL"), _settings(user).get("base_url"), _ADDRESS)
            if key not in _HARMLESS and not (key == "base_url" and value in known):
                raise ValueError(
                    f"{file} in this folder sets {key}={value[:100]!r}, by which W&B might send your key to a "
                    "stranger: remove the line; if the address is yours, set WANDB_BASE_URL"
                )


def _settings(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(read_plain(file, _LARGEST_SETTINGS).decode())
        return dict(parser["default"])
    except (OSError, ValueError, KeyError, configparser.Error) as error:
        return {"unreadable": str(error)}  # what W&B might still read


def has_key() -> bool:
    """Whether W&B could log in: a key in the environment or stored by ``wandb login``."""
    if os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        return False
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return any("wandb" in host for host in netrc.netrc().hosts)
    except (netrc.NetrcParseError, OSError):
        return False
