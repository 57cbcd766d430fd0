"""FedBN: a ResNet-18 whose batch normalisation stays at the clients."""

import torch
from fl_lightning import IID, Algorithm, FederatedLoop
from lightning.pytorch import LightningModule
from torchvision.models import resnet18


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = resnet18(num_classes=10)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])


torch.manual_seed(0)
images = torch.utils.data.TensorDataset(torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,)))
loop = FederatedLoop(Algorithm(local_parameters=["*bn*", "*downsample.1*"]), rounds=2, lr=0.01, batch_size=4)
result = loop.run(Classifier(), images, partition=IID(4))
models = [loop.load_client(client) for client in range(4)]  # each has the common filters and its own normalisation
