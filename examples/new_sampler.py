"""A sampler of your own: one method. From a config: ``--loop.sampling.sampler examples.new_sampler.SquareRoot``."""

import numpy as np
from fl_lightning.samplers import Sampler


class SquareRoot(Sampler):
    """Half way between FedAvg and FedACS, made consistent by the factor that a drawn client puts on its update."""

    def probabilities(self, profiles, num_draws):
        favour = profiles.weights / np.sqrt((1 - profiles.failure_rates) * profiles.accumulation)
        return favour / favour.sum()

    def coefficients(self, profiles, probabilities):
        return profiles.weights / (probabilities * (1 - profiles.failure_rates) * profiles.accumulation)


def main():
    from fl_lightning import theory
    from fl_lightning.types import Conditions, Profiles

    steps, failures = np.array([2, 5, 20, 30]), np.array([0.5, 0.4, 0.1, 0.0])
    conditions = Conditions(num_steps=steps, failure_rates=failures)
    profiles = Profiles(conditions=conditions, weights=np.full(4, 0.25), accumulation=steps.astype(float))
    sampler = SquareRoot()
    p = sampler.probabilities(profiles, num_draws=2)
    omega = theory.effective_weights(theory.contribution(p, failures, sampler.coefficients(profiles, p), steps))
    return p, omega


if __name__ == "__main__":
    p, omega = main()
    print(f"draws {p.round(3)}, optimises {omega.round(3)}")
