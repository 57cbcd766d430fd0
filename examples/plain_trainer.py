"""Our callbacks in a plain Trainer that is client 2 of 3: varying steps, lost epochs, time, a target, and W&B."""

import torch
from fl_lightning import FederatedModule
from fl_lightning.callbacks import (
    ChannelFailures,
    ComputationTime,
    Group,
    HeterogeneitySchedule,
    StopAtTarget,
    WandbMetrics,
)
from fl_lightning.data import IID, Digits
from fl_lightning.networks import DigitsNet
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Validated(FederatedModule):
    """Measures the accuracy after each epoch, under a name of its own."""

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.log("val_acc", (self(inputs).argmax(1) == targets).float().mean())


def main(epochs=20, folder="runs/plain_trainer"):
    seed_everything(0)
    federation = Digits(IID(num_clients=3)).load(0)
    mine = federation.order[federation.offsets[2] : federation.offsets[3]]
    train = DataLoader(TensorDataset(*(tensor[mine] for tensor in federation.train)), batch_size=16)
    test = DataLoader(TensorDataset(*federation.test), batch_size=512)
    slow, fast = Group(0.5, num_steps=(5, 10), failure_rates=(0.3, 0.5)), Group(0.5, (20, 30), (0.2, 0.4))
    channel = ChannelFailures().as_client(2, num_clients=3)
    times = ComputationTime(seconds_per_step=0.01)
    metrics = WandbMetrics(save_dir=folder, mode="offline", target_accuracy=0.8, monitor="val_acc")
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        callbacks=[
            HeterogeneitySchedule(groups=[slow, fast]).as_client(2, num_clients=3),
            channel,
            times,
            metrics,
            StopAtTarget(0.8, monitor="val_acc"),
        ],
    )
    torch.manual_seed(0)
    trainer.fit(Validated(DigitsNet(), learning_rate=0.05), train, test)
    return float(trainer.callback_metrics["val_acc"]), channel.num_lost, times.local_steps


if __name__ == "__main__":
    accuracy, lost, steps = main()
    print(f"accuracy {accuracy:.3f} after {steps} steps; {lost} epochs were lost")
