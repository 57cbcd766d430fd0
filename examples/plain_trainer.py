"""Our callbacks in a plain Trainer: one device that computes a varying number of steps and loses some epochs."""

import torch
from fl_lightning import FederatedModule
from fl_lightning.callbacks import ChannelFailures, ComputationTime, Group, HeterogeneitySchedule
from fl_lightning.data import IID, Digits
from fl_lightning.networks import DigitsNet
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


def main(epochs=20, folder="runs/plain_trainer"):
    seed_everything(0)
    federation = Digits(IID(num_clients=1)).load(0)
    train, test = (DataLoader(TensorDataset(*data), batch_size=32) for data in (federation.train, federation.test))
    channel, times = ChannelFailures(), ComputationTime(seconds_per_step=0.01)
    device = Group(share=1.0, num_steps=(10, 30), failure_rates=(0.2, 0.4))
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        callbacks=[HeterogeneitySchedule(groups=[device]), channel, times],
    )
    torch.manual_seed(0)
    module = FederatedModule(DigitsNet(), learning_rate=0.1)
    trainer.fit(module, train)
    (metrics,) = trainer.test(module, test, verbose=False)
    return metrics["test_accuracy"], channel.num_lost, times.local_steps


if __name__ == "__main__":
    accuracy, lost, steps = main()
    print(f"accuracy {accuracy:.3f} after {steps} steps; {lost} of 20 epochs were lost")
