"""Tune a learning rate with Optuna on a tenth of the training data, held out; the test data is not looked at."""

import optuna
from fl_lightning import Digits, FederatedLoop, FederatedModule, OneClassPerClient, ValidationSplit, algorithm
from fl_lightning.networks import DigitsNet

DATA = Digits(OneClassPerClient(20))
SEEDS = (1000, 1001)  # not those of the final runs
ROUNDS = 60


def train(lr, seed, data):
    """Return the accuracy of the averaged model at the end of a run."""
    loop = FederatedLoop(algorithm("fedacs"), rounds=ROUNDS, lr=lr, batch_size=32, seed=seed)
    return loop.run(FederatedModule(DigitsNet()), data).history[-1]["averaged_accuracy"]


def objective(trial):
    lr = trial.suggest_float("lr", 1e-3, 0.1, log=True)
    return sum(train(lr, seed, ValidationSplit(DATA, share=0.1)) for seed in SEEDS) / len(SEEDS)


def main(trials=20):
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    lr = study.best_params["lr"]
    print(f"lr {lr:.4f}: validation {study.best_value:.3f}, test {train(lr, seed=0, data=DATA):.3f} with all the data")
    return study


if __name__ == "__main__":
    main()
