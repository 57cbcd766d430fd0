"""What the model does for each client: its own accuracy and loss, and how far clients are apart."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_lightning.data.held_out import HeldOut
from fl_lightning.types import BoolVector, IntVector, Vector

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

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


class ClientEvaluator:
    """Holds the clients' evaluation data and evaluates on it.

    Args:
        settings: What was asked for; a number stands for each n-th round, 0 for never.
    """

    def __init__(self, settings: ClientEvaluation | int) -> None:
        if isinstance(settings, int) and settings < 0:
            raise ValueError(f"evaluate_clients={settings} must be a number of rounds, or 0 for never")
        self.settings = ClientEvaluation(settings) if isinstance(settings, int) and settings else settings or None
        self._data: HeldOut | None = None
        self._slow: IntVector = np.empty(0, dtype=np.int64)
        self._heard: BoolVector = np.empty(0, dtype=bool)  # whose evaluation is known

    def prepared(self, federation: Any, seed: int) -> Any:
        """Return the federation to train on."""
        if not isinstance(self.settings, ClientEvaluation):
            return federation
        self._data = HeldOut(federation, self.settings.held_out, seed)
        return self._data.training()

    def due(self, index: int, last: bool) -> bool:
        """Whether clients are evaluated after a round."""
        return isinstance(self.settings, ClientEvaluation) and (index % self.settings.every_n_rounds == 0 or last)

    def __call__(self, loop: "FederatedLoop") -> dict[str, Vector]:
        """Return each metric of all clients, (M,), and how many held-out examples it is measured on.

        A client that keeps parameters of its own is evaluated with them.
        """
        data, settings = self._data, self.settings
        if data is None or not isinstance(settings, ClientEvaluation):
            return {}
        elsewhere = getattr(loop.engine, "evaluate_clients", None)  # where clients have their data to themselves
        if elsewhere is None:
            rows = [self._evaluated(loop, client, data, settings) for client in range(len(loop.client_weights))]
        else:
            rows = elsewhere(loop.state, loop.round_index, settings.max_examples)
        self._heard = np.array([bool(row) for row in rows])
        names = dict.fromkeys(name for row in rows for name in row)
        found = {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
        return found | {"held_out": data.num_held_out.astype(np.float64)}

    def _evaluated(
        self, loop: "FederatedLoop", client: int, data: HeldOut, settings: ClientEvaluation
    ) -> dict[str, float]:
        evaluate = getattr(loop.engine, "evaluate_batch", None)
        if evaluate is None:
            kind = type(loop.engine).__name__
            raise ValueError(f"evaluate_clients needs an engine with the method evaluate_batch, but {kind} has none")
        state = loop.local_parts.personalised(client, loop.state) if loop.local_parts else loop.state
        found: dict[str, float] = evaluate(state, data.own_batch(client, settings.max_examples))
        return found

    def columns(self, loop: "FederatedLoop", found: dict[str, Vector]) -> dict[str, float]:
        """Return how the headline metric is spread over the clients; those that did not answer are left out."""
        values = found.get(loop.monitor)
        if values is None:
            return {}
        if not len(self._slow):
            self._slow = slow_half(loop)
        slow = np.flatnonzero(np.isin(np.flatnonzero(self._heard), self._slow))
        return fairness(loop.monitor.removeprefix("test_"), values[self._heard], loop.mode == "max", slow)


def slow_half(loop: "FederatedLoop") -> IntVector:
    """Return the slower half of the clients: most seconds per step, or where all have the same, the fewest steps."""
    seconds = loop.clock.pace(1).seconds_per_step
    steps = np.mean([profiles.num_steps for profiles in loop.planner.raw_profiles()], axis=0)
    return np.lexsort((steps, -seconds))[: len(seconds) // 2]


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
