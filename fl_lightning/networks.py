"""The networks of the paper's experiments and small ones for the other data sets. All return logits.

A negative log-likelihood of log-softmax, which the paper names for MNIST and CIFAR-10, is the cross-entropy of logits;
so one loss serves all of them.
"""

import torch
from torch import nn
from typing_extensions import override

_DROPOUT = 0.2


def _convolution(channels_in: int, channels_out: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1)


def _hidden_kaiming(network: nn.Sequential) -> None:
    """Draw Kaiming-normal weights and zero biases for all layers but the last, which keeps PyTorch's default."""
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class DigitsNet(nn.Sequential):
    """One hidden layer for the 8x8 digits: a local step takes a fraction of a millisecond.

    >>> count_parameters(DigitsNet())
    4810
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_classes))


class SoftmaxRegression(nn.Sequential):
    """One linear layer on the flattened input: few parameters, for private training, where noise grows with them.

    Args:
        num_features: Numbers of one input; 784 for MNIST.
        num_classes: Number of logits.

    >>> count_parameters(SoftmaxRegression())
    7850
    """

    def __init__(self, num_features: int = 784, num_classes: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(num_features, num_classes))


class MnistCNN(nn.Sequential):
    """The MNIST network C(1,10)-C(10,20)-D-L(50)-L(10).

    The paper's table lists neither pooling nor activation. Read to the letter the network is an affine map of its input
    apart from dropout; the default puts ReLU and pooling where the well-known network of this shape has them.

    Args:
        literal: Build exactly the listed layers (786,480 parameters) and nothing between them.
        num_classes: Number of logits.

    >>> count_parameters(MnistCNN())
    51480
    >>> count_parameters(MnistCNN(literal=True))
    786480
    """

    def __init__(self, literal: bool = False, num_classes: int = 10) -> None:
        first, second = _convolution(1, 10), _convolution(10, 20)
        dropout = nn.Dropout(_DROPOUT)
        if literal:
            layers = [first, second, dropout, nn.Flatten(), nn.Linear(20 * 28 * 28, 50), nn.Linear(50, num_classes)]
        else:
            layers = [first, nn.ReLU(), nn.MaxPool2d(2), second, dropout, nn.ReLU(), nn.MaxPool2d(2)]
            layers += [nn.Flatten(), nn.Linear(20 * 7 * 7, 50), nn.ReLU(), nn.Linear(50, num_classes)]
        super().__init__(*layers)


class CifarCNN(nn.Sequential):
    """The CIFAR-10 network C(3,32)-R-M-C(32,32)-R-M-L(256)-R-L(64)-R-L(10).

    >>> count_parameters(CifarCNN())
    551786
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            *(_convolution(3, 32), nn.ReLU(), nn.MaxPool2d(2)),
            *(_convolution(32, 32), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(32 * 8 * 8, 256), nn.ReLU()),
            *(nn.Linear(256, 64), nn.ReLU()),
            nn.Linear(64, num_classes),
        )
        _hidden_kaiming(self)


class CinicCNN(nn.Sequential):
    """The CINIC-10 network C(3,32)-R-M-C(32,32)-R-M-D-L(512)-R-D-L(256)-R-D-L(10).

    >>> count_parameters(CinicCNN())
    1193130
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            *(_convolution(3, 32), nn.ReLU(), nn.MaxPool2d(2)),
            *(_convolution(32, 32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(_DROPOUT), nn.Flatten()),
            *(nn.Linear(32 * 8 * 8, 512), nn.ReLU(), nn.Dropout(_DROPOUT)),
            *(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(_DROPOUT)),
            nn.Linear(256, num_classes),
        )
        _hidden_kaiming(self)


class TableMLP(nn.Sequential):
    """One hidden layer for the rows of a table.

    Args:
        num_features: Numbers of a row.
        hidden_size: Of the hidden layer.
        num_classes: Number of logits.

    >>> count_parameters(TableMLP(27))
    1922
    """

    def __init__(self, num_features: int, hidden_size: int = 64, num_classes: int = 2) -> None:
        super().__init__(nn.Linear(num_features, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_classes))


class WatchCNN(nn.Sequential):
    """Two convolutions along the time of six sensors, (N, 6, length), averaged over it.

    >>> count_parameters(WatchCNN())
    6375
    """

    def __init__(self, num_channels: int = 6, num_classes: int = 7) -> None:
        super().__init__(
            *(nn.Conv1d(num_channels, 32, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool1d(2)),
            *(nn.Conv1d(32, 32, kernel_size=5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1)),
            *(nn.Flatten(), nn.Linear(32, num_classes)),
        )


class _NextCharacter(nn.Module):
    """Codes of characters, (N, length), to logits of the character behind each of them, (N, num_classes, length)."""

    def __init__(self, recurrent: nn.GRU | nn.LSTM, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, recurrent.input_size)
        self.recurrent = recurrent
        self.output = nn.Linear(recurrent.hidden_size, num_classes)

    @override
    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        states, _ = self.recurrent(self.embedding(codes))
        return self.output(states).transpose(1, 2)


class CharGRU(_NextCharacter):
    """One layer of gated units over embedded characters, small enough for a processor.

    >>> count_parameters(CharGRU())
    67664
    """

    def __init__(self, hidden_size: int = 128, num_classes: int = 80) -> None:
        super().__init__(nn.GRU(16, hidden_size, batch_first=True), num_classes)


class CharLSTM(_NextCharacter):
    """The network of LEAF's Shakespeare: 8 numbers for each character, two layers of 256 long short-term memories.

    >>> count_parameters(CharLSTM())
    819920
    """

    def __init__(self, num_classes: int = 80) -> None:
        super().__init__(nn.LSTM(8, 256, num_layers=2, batch_first=True), num_classes)


def count_parameters(network: nn.Module) -> int:
    """Return the number of trainable numbers of a network.

    >>> count_parameters(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
