import pytest
import torch
from torch import nn

from fl_lightning.networks import (
    CharGRU,
    CharLSTM,
    CifarCNN,
    CinicCNN,
    DigitsNet,
    MnistCNN,
    SoftmaxRegression,
    count_parameters,
)

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
SHAPES = [
    (DigitsNet(), (1, 8, 8)),
    (MnistCNN(), MNIST),
    (SoftmaxRegression(), MNIST),
    (MnistCNN(literal=True), MNIST),
    (CifarCNN(), CIFAR),
    (CinicCNN(), CIFAR),
]


@pytest.mark.parametrize(("network", "shape"), SHAPES, ids=lambda value: type(value).__name__)
def test_output_is_one_row_of_ten_logits_an_image(network: nn.Module, shape: tuple[int, ...]) -> None:
    logits = network(torch.rand(3, *shape))
    assert logits.shape == (3, 10)
    # Logits, not log-probabilities: a row of log-probabilities has logsumexp 0.
    assert (logits.logsumexp(dim=1).abs() > 1e-3).all()


def test_parameter_counts_of_the_paper() -> None:
    assert count_parameters(MnistCNN()) == 51_480
    assert count_parameters(MnistCNN(literal=True)) == 786_480
    assert count_parameters(CifarCNN()) == 551_786
    assert count_parameters(CinicCNN()) == 1_193_130
    assert 1_000 < count_parameters(DigitsNet()) < 10_000


def _affine_residual(network: nn.Module) -> float:
    """How far f((x + y) / 2) is from (f(x) + f(y)) / 2, relative to f(x) - f(y)."""
    network = network.double().eval()
    first, second = torch.rand(2, 4, *MNIST, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        middle, ends = network((first + second) / 2), (network(first), network(second))
    return float((middle - (ends[0] + ends[1]) / 2).norm() / (ends[0] - ends[1]).norm())


def test_literal_mnist_network_is_affine_and_the_practical_one_is_not() -> None:
    assert _affine_residual(MnistCNN(literal=True)) < 1e-12
    assert _affine_residual(MnistCNN()) > 1e-3


def test_literal_mnist_network_still_drops_out_in_training() -> None:
    network, image = MnistCNN(literal=True), torch.rand(1, *MNIST)
    assert not torch.equal(network(image), network(image))
    network.eval()
    assert torch.equal(network(image), network(image))


@pytest.mark.parametrize("network", [CifarCNN(), CinicCNN()], ids=["cifar", "cinic"])
def test_initial_weights(network: nn.Sequential) -> None:
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        fan_in = layer.weight[0].numel()
        assert float(layer.weight.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)
        assert (layer.bias == 0).all()
    last = layers[-1]
    # PyTorch's default draws both uniformly within 1 / sqrt(fan_in).
    limit = last.in_features**-0.5
    assert 0 < float(last.bias.detach().abs().max()) <= limit
    assert 0.9 * limit < float(last.weight.detach().abs().max()) <= limit


def test_the_digits_network_learns_quickly() -> None:
    torch.manual_seed(0)
    network = DigitsNet()
    images = torch.rand(100, 1, 8, 8)
    labels = (images.flatten(1)[:, :10]).argmax(dim=1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("network", [CharGRU(), CharLSTM()])
def test_no_character_is_seen_before_it_is_predicted(network):
    codes = torch.randint(0, 80, (2, 9), generator=torch.Generator().manual_seed(0))
    changed = codes.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 80
    before, after = network(codes), network(changed)
    assert before.shape == (2, 80, 9)
    assert torch.equal(before[..., :6], after[..., :6])
    assert not torch.equal(before[..., 6:], after[..., 6:])
