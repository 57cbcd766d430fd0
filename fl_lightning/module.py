"""A LightningModule around a network, for those who bring none of their own."""

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

Batch = tuple[torch.Tensor, torch.Tensor]


class FederatedModule(LightningModule):
    """A classifier: network, cross-entropy, accuracy overall and per class.

    It knows nothing about federated learning and trains in a plain ``lightning.Trainer`` as well.

    Args:
        network: Maps a batch of inputs to logits.
        num_classes: Number of classes.
        learning_rate: Used by a plain Trainer alone; in a federation the loop sets the rate.
    """

    def __init__(self, network: nn.Module, num_classes: int = 10, learning_rate: float = 0.02) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"num_classes={num_classes} must be at least 2")
        self.network = network
        self.learning_rate = learning_rate
        self.accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.class_accuracy = MulticlassAccuracy(num_classes, average="none")

    @override
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.network(inputs)

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Return the cross-entropy, which equals the negative log-likelihood of the log-softmax."""
        inputs, targets = batch
        return functional.cross_entropy(self(inputs), targets)

    @override
    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log loss and accuracy, and count the accuracy per class."""
        inputs, targets = batch
        logits = self(inputs)
        self.accuracy.update(logits, targets)
        self.class_accuracy.update(logits, targets)
        self.log("test_loss", functional.cross_entropy(logits, targets), batch_size=len(targets))
        self.log("test_accuracy", self.accuracy)

    @override
    def on_test_epoch_end(self) -> None:
        """Start the count per class again (a Trainer resets only what was logged)."""
        self.class_accuracy.reset()

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD, for a plain Trainer."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


class QuadraticModule(LightningModule):
    r"""The paper's toy: one point that is drawn to the clients' points.

    .. math:: F_m(x) = \frac12 \lVert x - E_m \rVert^2

    Args:
        dimension: d.
        start: Value of each coordinate at the beginning; the paper does not give one.
    """

    def __init__(self, dimension: int = 10, start: float = 0.0) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.full((dimension,), start))

    @override
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return half the squared distance to the batch's points, averaged over them."""
        return 0.5 * (self.point - batch).square().sum(dim=-1).mean()

    @override
    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        """Log the loss at the true optimum, which is the batch."""
        self.log("test_loss", 0.5 * (self.point - batch).square().sum(dim=-1).mean())

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD, for a plain Trainer."""
        return torch.optim.SGD(self.parameters(), lr=0.001)
