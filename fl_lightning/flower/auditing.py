"""For federations that run Flower's own strategies: a log of who took part, and a verdict.

The functions hook into the strategy that they are given and return it: its class, attributes and own ``start`` stay.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fl_lightning.audit.book import LOG, Book, check_epochs
from fl_lightning.audit.estimate import Wanted
from fl_lightning.audit.log import Row

S = TypeVar("S", bound=Strategy)
NO_MEANS = (
    strategies.Bulyan,
    strategies.FedMedian,
    strategies.FedTrimmedAvg,
    strategies.FedXgbBagging,
    strategies.FedXgbCyclic,
    strategies.MultiKrum,
    strategies.QFedAvg,
)
_RESCALED = (strategies.FedAdagrad, strategies.FedAdam, strategies.FedYogi)


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Where replies have what a log needs, and what stands in for steps that clients do not report."""

    steps_key: str = "num-steps"  # metric with the local steps of the reply
    examples_key: str = "num-examples"
    epochs: float | None = None  # local epochs, where clients do not report steps
    batch_size: int | None = None  # likewise

    def __post_init__(self) -> None:
        check_epochs(self.epochs, self.batch_size, "steps")

    def examples(self, reply: Message) -> float | None:
        """Return how many examples a client reports; None where it reports none."""
        return metric(reply, self.examples_key)

    def steps(self, reply: Message) -> float | None:
        """Return the local steps that a client reports, else those that follow; None where nobody knows."""
        reported, examples = metric(reply, self.steps_key), self.examples(reply)
        if reported is not None or self.epochs is None or self.batch_size is None or examples is None:
            return reported
        return self.epochs * math.ceil(examples / self.batch_size)


def metric(reply: Message, key: str) -> float | None:
    """Return a metric; None where it is not there, or no number that it could be."""
    for record in reply.content.metric_records.values():
        value = record.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0:
            return float(value)
    return None


class Watcher:
    """Writes the log of what passes between a strategy and its nodes, and leaves all messages as they are."""

    def __init__(self, path: str | Path, reported: Reported | None, weight_key: str | None = None) -> None:
        self.book, self.reported = Book(path), reported or Reported()
        self.weight_key = weight_key  # metric with which the strategy weighs replies

    def outgoing(self, messages: list[Message], arrays: ArrayRecord, grid: Grid) -> list[Message]:
        """Return what is sent to nodes."""
        asked = Counter(str(message.metadata.dst_node_id) for message in messages)
        self.book.ask(asked, map(str, grid.get_node_ids()))
        return messages

    def incoming(self, server_round: int, replies: list[Message]) -> list[Message]:
        """Return what the strategy aggregates."""
        self.book.receive(server_round, self.rows(server_round, replies))
        return replies

    def rows(self, index: int, replies: Iterable[Message], applied: float | None = None) -> dict[str, Row]:
        """Return the rows of a round; with ``applied``, one reply stands for all draws of its node."""
        good = [(str(reply.metadata.src_node_id), reply) for reply in replies if not reply.has_error()]
        asked, arrived = self.book.asked, Counter(node for node, _ in good)
        return {
            node: Row(
                round=index,
                client=node,
                asked=asked[node],
                arrived=min(asked[node], arrived[node]) if applied is None else asked[node],
                examples=self.reported.examples(reply),
                steps=self.reported.steps(reply),
                weight=None if self.weight_key is None else metric(reply, self.weight_key),
                applied=applied,
            )
            for node, reply in reversed(good)  # the first of several replies is kept
        }


def audited(
    strategy: S,
    path: str | Path = LOG,
    *,
    reported: Reported | None = None,
    wanted: Wanted | None = None,
    every: int = 0,
) -> S:
    """Let a strategy write a log of participation and say at the end what it optimised; nothing else changes.

    Args:
        strategy: Any strategy of the message API.
        path: Of the log; one that has the name is replaced.
        reported: Metrics in which clients report steps and examples, or epochs and batch size in place of steps.
        wanted: The objective to compare with, see :func:`fl_lightning.audit.audit`.
        every: Print the verdict after so many rounds, too; 0: at the end alone.
    """
    weight_key = strategy.weighted_by_key if isinstance(strategy, FedAvg) else None
    return watched(strategy, Watcher(path, reported, weight_key), wanted, every)


def watched(strategy: S, watcher: Watcher, wanted: Wanted | None, every: int) -> S:
    """Put a watcher between a strategy and its nodes, by functions in the place of three methods of this object."""
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    start = strategy.start

    def configure_train(server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        return watcher.outgoing(list(configure(server_round, arrays, config, grid)), arrays, grid)

    def aggregate_train(
        server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        result = aggregate(server_round, watcher.incoming(server_round, list(replies)))
        if every and server_round % every == 0:
            watcher.book.show(wanted, _note(strategy))
        return result

    @wraps(start)
    def start_and_show(*args: Any, **kwargs: Any) -> Result:
        result = start(*args, **kwargs)
        watcher.book.show(wanted, _note(strategy))
        return result

    strategy.configure_train = configure_train  # type: ignore[method-assign]
    strategy.aggregate_train = aggregate_train  # type: ignore[method-assign]
    strategy.start = start_and_show  # type: ignore[method-assign]
    return strategy


def _note(strategy: Strategy) -> str:
    """Return what the verdict does not know of a strategy's rule."""
    name = type(strategy).__name__
    if isinstance(strategy, _RESCALED):
        return f"{name} rescales every weight of the model by itself, which changes the objective further."
    if isinstance(strategy, NO_MEANS) or not isinstance(strategy, FedAvg):
        return f"{name} is not known to be a weighted mean of what arrives: the verdict holds as far as it is one."
    return ""
