"""What the model does for each client: its own accuracy and loss, and how far clients are apart."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fl_lightning.data.derived import HeldOut
from fl_lightning.parts.protocols import EvaluatesClients, Federation
from fl_lightning.types import BoolVector, IntVector, ModelState, Vector

_WORST = 0.1  # share of the clients that the worst ones are


@dataclass(frozen=True)
class ClientEvaluation:
    """Evaluates the model on each client's own data.

    Args:
        every_n_rounds: Evaluate each n-th round, and the last one.
        held_out: Share of each client's data that is held out from training for it. A client with too little is
            evaluated on its training data; ``clients.csv`` says which. With 0 all are.
        max_examples: Of a client that are looked at, at most.
    """

    every_n_rounds: int = 10
    held_out: float = 0.2
    max_examples: int = 256

    def __post_init__(self) -> None:
        if self.every_n_rounds < 1 or self.max_examples < 1:
            raise ValueError(
                f"evaluate_clients: every_n_rounds={self.every_n_rounds} and max_examples={self.max_examples} must be "
                "at least 1"
            )
        if not 0 <= self.held_out < 1:
            raise ValueError(f"evaluate_clients: held_out={self.held_out} must be at least 0 and below 1")


def as_evaluation(settings: ClientEvaluation | int) -> ClientEvaluation | None:
    """Return what was asked for; a number stands for each n-th round, 0 for never."""
    if isinstance(settings, ClientEvaluation):
        return settings
    if settings < 0:
        raise ValueError(f"evaluate_clients={settings} must be a number of rounds, or 0 for never")
    return ClientEvaluation(settings) if settings else None


class ClientEvaluator:
    """Holds the clients' evaluation data and evaluates on it.

    Args:
        settings: What was asked for.
        federation: The clients' data.
        seed: Decides what is held out.
    """

    def __init__(self, settings: ClientEvaluation, federation: Federation, seed: int) -> None:
        self.settings = settings
        self._data = HeldOut(federation, settings.held_out, seed)
        self._answered: BoolVector = np.empty(0, dtype=bool)  # whose evaluation is known

    def training(self) -> Federation:
        """Return the federation to train on."""
        return self._data.training()

    def due(self, index: int, last: bool) -> bool:
        """Whether clients are evaluated after a round."""
        return index % self.settings.every_n_rounds == 0 or last

    def __call__(
        self, engine: EvaluatesClients, state: ModelState, index: int, personalised: Callable[[int], ModelState] | None
    ) -> dict[str, Vector]:
        """Return each metric of all clients, (M,), and how many held-out examples it is measured on.

        Args:
            engine: Evaluates.
            state: The global model.
            index: Of the round.
            personalised: Returns the model of a client, where clients keep parameters of their own.
        """
        most = self.settings.max_examples
        num_clients = len(self._data.num_held_out)
        rows = engine.evaluate_clients(state, index, most)  # where clients have their data to themselves
        if rows is None:
            states = (state if personalised is None else personalised(client) for client in range(num_clients))
            rows = [engine.evaluate_batch(each, self._data.own_batch(m, most)) for m, each in enumerate(states)]
        self._answered = np.array([bool(row) for row in rows])
        names = dict.fromkeys(name for row in rows for name in row)
        found = {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
        return found | {"held_out": self._data.num_held_out.astype(np.float64)}

    def columns(self, found: dict[str, Vector], monitor: str, maximised: bool, slow: IntVector) -> dict[str, float]:
        """Return how the headline metric is spread over the clients; those that did not answer are left out."""
        values = found.get(monitor)
        if values is None:
            return {}
        places = np.flatnonzero(np.isin(np.flatnonzero(self._answered), slow))
        return fairness(monitor.removeprefix("test_"), values[self._answered], maximised, places)


def slow_half(seconds_per_step: Vector, num_steps: Vector) -> IntVector:
    """Return the slower half of the clients: most seconds per step, or where all have the same, the fewest steps.

    >>> slow_half(np.array([1.0, 1.0, 1.0, 5.0]), np.array([3.0, 1.0, 2.0, 9.0])).tolist()
    [3, 1]
    """
    return np.lexsort((num_steps, -seconds_per_step))[: len(seconds_per_step) // 2]


def fairness(name: str, values: Vector, maximised: bool, slow: IntVector) -> dict[str, float]:
    """Return mean, worst tenth, standard deviation, and the means of the slow and of the fast half.

    >>> columns = fairness("accuracy", np.array([0.2, 0.4, 0.8, 1.0]), True, np.array([0, 1]))
    >>> {name: round(value, 3) for name, value in columns.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'client_accuracy_mean': 0.6, 'client_accuracy_worst': 0.2, 'client_accuracy_deviation': 0.316,
     'client_accuracy_slow': 0.3, 'client_accuracy_fast': 0.9}
    """
    worst = np.sort(values if maximised else -values)[: max(1, round(_WORST * len(values)))]
    is_slow = np.isin(np.arange(len(values)), slow)
    return {
        f"client_{name}_mean": float(values.mean()),
        f"client_{name}_worst": float(worst.mean() if maximised else -worst.mean()),
        f"client_{name}_deviation": float(values.std()),
        f"client_{name}_slow": float(values[is_slow].mean()) if is_slow.any() else float(values.mean()),
        f"client_{name}_fast": float(values[~is_slow].mean()),
    }
