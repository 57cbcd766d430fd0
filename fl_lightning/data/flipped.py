"""FlippedLabels: clients whose labels are wrong."""

import numpy as np
import torch

from fl_lightning.data.federation import TensorFederation
from fl_lightning.parts.bases import DataSource
from fl_lightning.uploads.attacks import attackers


class FlippedLabels(DataSource):
    """Gives a share of the clients wrong labels, class y becomes C - 1 - y; the test data stays as it is.

    The clients are those that :class:`fl_lightning.uploads.Attack` would choose under the same seed.

    Args:
        data: Data set of inputs and labels.
        share: Of the clients.
        num_classes: C; the highest label of the data plus 1 by default.
    """

    def __init__(self, data: DataSource, share: float = 0.1, num_classes: int | None = None) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share={share} must be in [0, 1): a share of the clients")
        if num_classes is not None and num_classes < 2:
            raise ValueError(f"num_classes={num_classes} must be at least 2")
        self.data = data
        self.share = share
        self.num_classes = num_classes

    def load(self, seed: int) -> TensorFederation:
        """Load the data and flip the labels of the attackers."""
        federation = self.data.load(seed)
        train = federation.train if isinstance(federation, TensorFederation) else None
        if not isinstance(train, tuple | list) or len(train) != 2:
            raise ValueError(
                f"FlippedLabels needs inputs and labels in tensors, and {type(self.data).__name__} has something else"
            )
        inputs, labels = train
        highest = int(labels.max()) if self.num_classes is None else self.num_classes - 1
        flipped = labels.clone()
        clients = np.split(federation.order, federation.offsets[1:-1])
        for client in attackers(len(clients), self.share, seed).tolist():
            own = torch.from_numpy(clients[client])
            flipped[own] = highest - labels[own]
        return TensorFederation((inputs, flipped), federation.test, clients)
