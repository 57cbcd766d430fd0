import pytest
import torch
from torch import nn

from fl_lightning.engine.machine import pool_before_relu
from fl_lightning.networks import CifarCNN, MnistCNN


def gradients(network, inputs):
    torch.manual_seed(1)
    network.zero_grad()
    output = network(inputs)
    output.square().sum().backward()
    return output.detach(), [parameter.grad.clone() for parameter in network.parameters()]


@pytest.mark.parametrize(("network", "shape"), [(CifarCNN, (4, 3, 32, 32)), (MnistCNN, (4, 1, 28, 28))])
def test_values_and_gradients_keep_every_bit(network, shape):
    torch.manual_seed(0)
    network, inputs = network(), torch.randn(shape).round()  # rounded: many ties
    names = [type(layer).__name__ for layer in network]
    plain, plain_gradients = gradients(network, inputs)
    with pool_before_relu(network):
        assert [type(layer).__name__ for layer in network] != names
        output, found = gradients(network, inputs)
    assert torch.equal(output, plain)
    assert all(torch.equal(one, other) for one, other in zip(found, plain_gradients, strict=True))
    assert [type(layer).__name__ for layer in network] == names


def test_layers_that_somebody_watches_or_calls_otherwise_stay():
    watched = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    watched[0].register_forward_hook(lambda *_: None)

    class Own(nn.Sequential):
        def forward(self, inputs):
            return self[1](self[0](inputs))

    for network in (watched, Own(nn.ReLU(), nn.MaxPool2d(2)), nn.Sequential(nn.MaxPool2d(2), nn.ReLU())):
        names = [type(layer).__name__ for layer in network]
        with pool_before_relu(network):
            assert [type(layer).__name__ for layer in network] == names
