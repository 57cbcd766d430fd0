"""Settings are tuned on examples that nobody trains on and that are not the test data."""

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import ConcatDataset, Subset

from fl_lightning.data.federation import DatasetFederation, TensorFederation
from fl_lightning.parts.bases import DataSource
from fl_lightning.seeding import Purpose, client_keys
from fl_lightning.types import IntVector


class ValidationSplit(DataSource):
    """Holds a share of each client's training examples out and evaluates on them; the test data is not looked at.

    Args:
        source: The data.
        share: How much of each client's examples is held out; each client keeps at least one.

    >>> from fl_lightning.data import IID, Digits
    >>> part, whole = ValidationSplit(Digits(IID(4)), 0.25).load(0), Digits(IID(4)).load(0)
    >>> int(whole.sizes.sum()), int(part.sizes.sum()), len(part.test[1])
    (1438, 1078, 360)
    """

    def __init__(self, source: DataSource, share: float = 0.1) -> None:
        if not 0 < share < 1:
            raise ValueError(f"validation={share} must be a share between 0 and 1: 0.1 holds out a tenth")
        self.source, self.share = source, share

    @property
    def num_classes(self) -> int | None:
        """As the source has it."""
        return getattr(self.source, "num_classes", None)

    def load(self, seed: int) -> TensorFederation | DatasetFederation:
        """Return the federation without what is held out, which takes the place of its test data."""
        federation = self.source.load(seed)
        if type(federation) not in (TensorFederation, DatasetFederation):  # what others measure might be lost
            raise ValueError(
                f"validation={self.share}: nothing can be held out of {type(self.source).__name__}, whose federation "
                f"is a {type(federation).__name__}: leave it out"
            )
        kept, held = zip(
            *(self._split(client, int(size), seed) for client, size in enumerate(federation.sizes)), strict=True
        )
        if not sum(map(len, held)):
            raise ValueError(
                f"validation={self.share} holds nothing out of clients with at most {federation.sizes.max()} examples: "
                "use a larger share"
            )
        part = _of_tensors if isinstance(federation, TensorFederation) else _of_datasets
        return part(federation, kept, held)

    def _split(self, client: int, size: int, seed: int) -> tuple[IntVector, IntVector]:
        """Return which of a client's examples are kept and which are held out, each in their order."""
        number = min(round(self.share * size), size - 1)
        order = np.argsort(client_keys(seed, Purpose.VALIDATION, 0, [client], size)[0], kind="stable")
        return np.sort(order[number:]), np.sort(order[:number])


def _of_tensors(federation: TensorFederation, kept: tuple[IntVector, ...], held: tuple[IntVector, ...]) -> Any:
    own = [federation.order[start:] for start in federation.offsets[:-1]]
    rows = torch.from_numpy(np.concatenate([places[part] for places, part in zip(own, held, strict=True)]))
    test = tree_map(lambda tensor: tensor.index_select(0, rows), federation.train)
    return TensorFederation(federation.train, test, [places[part] for places, part in zip(own, kept, strict=True)])


def _of_datasets(federation: DatasetFederation, kept: tuple[IntVector, ...], held: tuple[IntVector, ...]) -> Any:
    pairs = list(zip(federation.datasets, kept, held, strict=True))
    test: ConcatDataset[Any] = ConcatDataset([Subset(data, part.tolist()) for data, _, part in pairs if len(part)])
    made = DatasetFederation([Subset(data, part.tolist()) for data, part, _ in pairs], test, federation.collate)
    made.datamodule = federation.datamodule
    return made
