"""Lightning's EarlyStopping and ModelCheckpoint, with rounds for epochs."""

from fl_lightning import Digits, Dirichlet, FederatedLoop, FederatedModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

stopping = EarlyStopping("test_loss", mode="min", patience=3)
saving = ModelCheckpoint("checkpoints", "{round:.0f}-{test_accuracy:.3f}", monitor="test_accuracy", mode="max")
loop = FederatedLoop(rounds=100, lr=0.5, callbacks=[stopping, saving])
module = FederatedModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
result = loop.run(module, Digits(Dirichlet(num_clients=20, alpha=0.3)))
print(f"stopped after {len(result.history)} rounds, best {result.best.value:.3f}: {saving.best_model_path}")
