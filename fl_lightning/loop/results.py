"""What a run returns, and what it resumes from: rows of numbers, the best round, models, and the memory of parts."""

import io
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import nn
from typing_extensions import override

from fl_lightning.engine.hooks import overrides
from fl_lightning.parts.memory import Remembers
from fl_lightning.theory.checks import one_of
from fl_lightning.types import ModelState, RoundResult

_LOG = logging.getLogger("fl_lightning")
Mode = Literal["max", "min"]
MONITOR = "test_accuracy"  # the headline metric where none is set


class History(list[dict[str, float]]):
    """The metrics of each round, one dict per round.

    >>> History([{"round": 1, "test_loss": 2.0}, {"round": 2}]).column("test_loss")
    [2.0, nan]
    """

    def column(self, name: str) -> list[float]:
        """Return one metric of all rounds; NaN where a round has none."""
        return [row.get(name, math.nan) for row in self]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row per round."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas, or use the rows as they are") from None
        return pandas.DataFrame(list(self))


@dataclass(frozen=True, kw_only=True)
class Best:
    """The round whose monitored metric was best."""

    round_index: int
    value: float
    metrics: dict[str, float]
    state: ModelState


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run returns."""

    history: History
    state: ModelState  # the model of the last round, which the module holds as well
    averaged: ModelState | None  # the model averaged over the rounds, where the loop averages
    best: Best | None  # None where the monitored metric was never measured
    summary: dict[str, Any]  # rounds, monitor, mode, final and best value, best round, seconds
    module: LightningModule

    @property
    def weights(self) -> torch.Tensor:
        """The weights of the last round, (d,)."""
        return self.state.weights

    @property
    def buffers(self) -> torch.Tensor:
        """The float buffers of the last round, (b,)."""
        return self.state.buffers


class RunRecord(Remembers):
    """Keeps the rows of a run and its best model, by the headline metric that is monitored."""

    memory = ("best_round", "best_weights", "best_buffers")

    def __init__(self, monitor: str = MONITOR, mode: Mode = "max") -> None:
        one_of("mode", mode, Mode)
        self.monitor, self.mode = monitor, mode
        self._warned = False
        self.start_anew()

    @override
    def start_anew(self) -> None:
        self.history = History()
        self.best_round = 0  # 0: none yet
        self.best_weights, self.best_buffers = torch.empty(0), torch.empty(0)
        self._began = time.perf_counter()

    def add(self, row: dict[str, float], state: ModelState, evaluated: bool) -> None:
        """Take in a round, which lacks the monitored metric only if it was not evaluated."""
        if evaluated and self.monitor not in row:
            self._refuse_monitor(row)
        self.history.append(row)
        value = row.get(self.monitor, math.nan)
        if math.isnan(value):
            return
        best = self.best_value
        if best is None or self.is_better(value, best):
            self.best_round = int(row["round"])
            self.best_weights, self.best_buffers = state.weights, state.buffers

    def is_better(self, value: float, other: float) -> bool:
        """Whether a value of the monitored metric is better than another."""
        return value > other if self.mode == "max" else value < other

    def _refuse_monitor(self, row: dict[str, float]) -> None:
        """Refuse a metric that was asked for and is not measured; of the default one, say so once."""
        if self._warned:
            return
        text = f"monitor={self.monitor!r} is not among the metrics of a round: use one of {', '.join(row)}"
        if self.monitor != MONITOR:
            raise ValueError(text)
        self._warned = True
        _LOG.warning("%s; until then there is no best round", text)

    @property
    def best_value(self) -> float | None:
        """The best value so far."""
        return self.history[self.best_round - 1][self.monitor] if self.best_round else None

    def result(self, state: ModelState, averaged: ModelState | None, module: LightningModule) -> RunResult:
        """Return what the run has come to."""
        best = None
        if self.best_round:
            row = self.history[self.best_round - 1]
            best = Best(
                round_index=self.best_round,
                value=row[self.monitor],
                metrics=row,
                state=ModelState(self.best_weights, self.best_buffers),
            )
        known = [row[self.monitor] for row in self.history if self.monitor in row]
        summary = {
            "rounds": int(self.history[-1]["round"]) if self.history else 0,
            "monitor": self.monitor,
            "mode": self.mode,
            "final": known[-1] if known else None,
            "best": None if best is None else best.value,
            "best_round": None if best is None else best.round_index,
            "seconds": round(time.perf_counter() - self._began, 3),
        }
        return RunResult(
            history=self.history, state=state, averaged=averaged, best=best, summary=summary, module=module
        )

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the best model, and the rows as two tensors, which are small and quick to write."""
        names = list(dict.fromkeys(name for row in self.history for name in row))
        cells = [[row.get(name, math.nan) for name in names] for row in self.history]
        present = [[name in row for name in names] for row in self.history]
        return super().state_dict() | {
            "names": names,
            "whole": [all(isinstance(row.get(name, 0), int) for row in self.history) for name in names],
            "cells": torch.tensor(cells, dtype=torch.float64),
            "present": torch.tensor(present, dtype=torch.bool),
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = ("names", "whole", "cells", "present")
        super().load_state_dict({name: value for name, value in state.items() if name not in own})
        names, whole = state["names"], state["whole"]
        self.history = History(
            {
                name: int(value) if is_whole else value
                for name, is_whole, value, is_there in zip(names, whole, cells, present, strict=True)
                if is_there
            }
            for cells, present in zip(state["cells"].tolist(), state["present"].tolist(), strict=True)
        )


def with_all_metrics(result: RoundResult, columns: Iterable[Callable[..., dict[str, float]]]) -> RoundResult:
    """Complete the metrics of a round with what the plan knows and with the columns that callbacks add."""
    plan = result.plan
    metrics: dict[str, float] = {
        "round": plan.index,
        **result.metrics,
        "train_loss": result.updates.mean_loss,
        "num_sampled": int(plan.cohort.counts.sum()),
        "num_delivered": int(result.delivered.sum()),
        "num_rejected": len(result.faults),
        "learning_rate": plan.learning_rate,
        "step_length": plan.step_length,
        "chi2": plan.chi_square,
    }
    for configure_metrics in columns:
        metrics |= configure_metrics(result=result)
    return replace(result, metrics=metrics)


def averaged_name(name: str) -> str:
    """Return what a metric of the averaged model is called.

    >>> averaged_name("test_accuracy"), averaged_name("distance")
    ('averaged_accuracy', 'averaged_distance')
    """
    return f"averaged_{name.removeprefix('test_')}"


def saved(state: ModelState, module: LightningModule, round_index: int, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a run needs to resume: the model, and what parts remember that have a ``state_dict``."""
    own = module_state(module, round_index)
    return {
        "weights": state.weights,
        "buffers": state.buffers,
        "counters": _counters(module),
        "random": torch.get_rng_state(),
        "parts": {name: part.state_dict() for name, part in parts.items() if hasattr(part, "state_dict")},
        **({} if own is None else {"module": own}),
    }


def restored(
    saved: Mapping[str, Any], present: ModelState, module: LightningModule, parts: Mapping[str, Any]
) -> tuple[int, ModelState]:
    """Give module and parts back what was saved, and return how many rounds are finished and the global model.

    Raises:
        ValueError: If it is of another kind of run.
    """
    try:
        weights, buffers = saved["weights"], saved["buffers"]
        if weights.shape != present.weights.shape or buffers.shape != present.buffers.shape:
            raise ValueError(
                f"the checkpoint has {weights.numel()} weights and {buffers.numel()} buffer values, "
                f"but the module has {present.weights.numel()} and {present.buffers.numel()}"
            )
        for name, counter in _counters(module).items():
            counter.copy_(saved["counters"][name])
        torch.set_rng_state(saved["random"])
        for name, part in parts.items():
            if name in saved["parts"]:
                part.load_state_dict(saved["parts"][name])
        return int(saved["round"]), ModelState(weights.to(present.weights), buffers.to(present.buffers))
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the checkpoint does not fit this run: {type(error).__name__}: {error}") from None


def _counters(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that are not part of the flat state: integers, such as a count of batches."""
    return {name: buffer for name, buffer in module.named_buffers() if not buffer.is_floating_point()}


def module_state(module: LightningModule, round_index: int) -> dict[str, Any] | None:
    """Return what ``on_save_checkpoint`` adds to a checkpoint, or nothing if the module has no such hook.

    What could not be read back without running code is refused.
    """
    if not overrides(module, "on_save_checkpoint"):
        return None
    given = _given(module, round_index)
    checkpoint = dict(given)
    module.on_save_checkpoint(checkpoint)
    added = {name: value for name, value in checkpoint.items() if name not in given}
    for name, value in added.items():
        if not readable(value):
            raise ValueError(
                f"{type(module).__name__}.on_save_checkpoint stores {name!r} as {type(value).__name__}, which a "
                "checkpoint cannot hold: store tensors, numbers, strings, and lists, tuples and dicts of them "
                "(of a generator its state)"
            )
    return added


def readable(value: Any) -> bool:
    """Whether ``torch.load`` reads a value back without running code."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # pickling and unpickling have many
        return False
    return True


def load_module_state(module: LightningModule, round_index: int, added: dict[str, Any] | None) -> None:
    """Give the module back what it has saved."""
    if added is not None:
        module.on_load_checkpoint({**_given(module, round_index), **added})


def _given(module: LightningModule, round_index: int) -> dict[str, Any]:
    """Return what Lightning's checkpoints hold as well; a round counts as an epoch and as a step."""
    return {"state_dict": module.state_dict(), "epoch": round_index, "global_step": round_index}
