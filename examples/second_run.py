"""As in a notebook: the same loop runs again, starts anew, and its rounds are a table."""

# %% Set up once
import torch
from fl_lightning import Digits, FederatedLoop, FederatedModule, OneClassPerClient, algorithm
from torch import nn

loop = FederatedLoop(algorithm("scaffold", clients_per_round=6), rounds=10, lr=0.1)
data = Digits(OneClassPerClient(num_clients=20))


# %% Run it, look at it, and run it again
def accuracies(seed):
    torch.manual_seed(seed)
    return loop.run(FederatedModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), data).history


first, second, third = accuracies(0), accuracies(0), accuracies(1)
print(first.column("test_accuracy") == second.column("test_accuracy"), third.column("test_accuracy")[-1])
