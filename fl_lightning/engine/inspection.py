"""What modules and data do besides computing: random numbers, state of their own, buffers. Found out once, at setup."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fl_lightning.engine.batches import ClientBatches
from fl_lightning.engine.client import ClientTrainer
from fl_lightning.engine.errors import StepError, naming_client
from fl_lightning.engine.evaluation import batch_length
from fl_lightning.engine.fingerprint import fingerprint, metric_counts, remembered
from fl_lightning.engine.streams import kept_streams, positions, seed_streams

_STEPS = 3  # some state shows from the second step on
_CLIENTS, _EXAMPLES = 8, 2  # whose data is looked at, and how much of it
_NAMES = 5  # attributes that are named in a warning


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a few local steps do besides computing a loss."""

    operations: int  # floating-point operations of one local step
    module_draws: bool  # from torch's, numpy's or Python's stream
    data_draws: bool
    module_state: str  # what the module remembers outside parameters and buffers, in words; empty if nothing
    data_state: str  # the same of the data
    counts_metrics: bool  # updates torchmetrics while training
    changes_buffers: bool

    @property
    def random(self) -> bool:
        """Whether anybody draws random numbers."""
        return self.module_draws or self.data_draws


def inspect_training(trainer: ClientTrainer) -> Inspection:
    """Try a few steps, which leave their traces in the trainer's module: hand over one with a copy."""
    model, module, device = trainer.model, trainer.model.module, trainer.model.weights.device
    with kept_streams(device), naming_client(module, trainer.batches.sample_client, 0):
        data_draws, data_state = _inspect_data(trainer.batches, device)
        start, before, metrics = model.state(), remembered(module), metric_counts(module)
        with FlopCounterMode(display=False) as counter:
            first, drew = _gradient(trainer, 0)
        for index in range(1, _STEPS):
            drew |= _gradient(trainer, index)[1]
        changed = _changed(before, remembered(module))
        buffers_changed = not torch.equal(start.buffers, model.gather())
        moved = model.moved_parameters()
        if moved:
            raise StepError(
                f"{type(module).__name__}.training_step replaces the data of parameter {moved[0]!r}, so that steps no "
                "longer reach it: change it in place, for example by copy_() or clamp_() under torch.no_grad()"
            )
        model.load(start.weights, start.buffers)
        again, _ = _gradient(trainer, 0)
        sample_length = max(1, batch_length(trainer.batches.sample()))
    state = ", ".join(changed[:_NAMES]) + (", ..." if len(changed) > _NAMES else "")
    if not state and not data_state and not _close(first, again):
        state = "something that no attribute shows; the same step gave another gradient under the same seed"
    lengths = trainer.batches.lengths
    return Inspection(
        operations=counter.get_total_flops() * int(np.median(lengths)) // sample_length,
        module_draws=drew,
        data_draws=data_draws,
        module_state=state,
        data_state=data_state,
        counts_metrics=metrics != metric_counts(module),
        changes_buffers=buffers_changed,
    )


def _gradient(trainer: ClientTrainer, index: int) -> tuple[torch.Tensor, bool]:
    """Return the gradient of a step under a fixed seed, and whether the step drew random numbers."""
    device = trainer.model.weights.device
    seed_streams(0, device)
    batch = trainer.batches.sample()
    seed_streams(index, device)
    before = positions(device)
    trainer.backward(batch, index)
    return trainer.model.gradient.clone(), before != positions(device)


def _inspect_data(batches: ClientBatches, device: torch.device) -> tuple[bool, str]:
    """Return whether the data draws random numbers, and which client's data remembers something."""
    draws = False
    for client in np.unique(np.linspace(0, len(batches.sizes) - 1, _CLIENTS).astype(np.int64)).tolist():
        indices = np.arange(min(_EXAMPLES, int(batches.sizes[client])))
        found = []
        for _ in range(2):
            seed_streams(0, device)
            before = positions(device)
            found.append(fingerprint(batches.fetch(client, 0, indices)))
            draws |= before != positions(device)
        if found[0] != found[1]:
            return draws, f"the data of client {client}"
    return draws, ""


def _changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Return the names of attributes that are new, gone or different, each once and without what it holds."""
    different = [path for path in {**before, **after} if before.get(path, _GONE) != after.get(path, _GONE)]
    return list(dict.fromkeys(path.partition("[")[0] for path in different))


_GONE = object()


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    tolerance = 1e-2 if first.element_size() < 4 else 1e-5
    scale = float(first.nan_to_num().abs().max())
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
