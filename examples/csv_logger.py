"""Any logger of Lightning, through Fabric: it gets every round."""

from fl_lightning import IID, Digits, FederatedLoop, FederatedModule
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from torch import nn

logger = CSVLogger("logs", name="digits")
loop = FederatedLoop(rounds=5, lr=0.1, fabric=Fabric(accelerator="auto", devices=1, loggers=[logger]))
result = loop.run(FederatedModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), Digits(IID(num_clients=10)))
print(f"{logger.log_dir}/metrics.csv has {len(result.history)} rounds")
