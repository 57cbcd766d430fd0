"""A cure for federations that run Flower's weighted means: FedACS's draws, and a mean over all that were drawn."""

from collections import Counter
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from typing_extensions import override

from fl_lightning import theory
from fl_lightning.audit.book import LOG, Learned
from fl_lightning.audit.estimate import Wanted
from fl_lightning.audit.log import Row
from fl_lightning.flower.auditing import NO_MEANS, Reported, S, Watcher, watched
from fl_lightning.samplers.sampler import Systematic
from fl_lightning.theory.checks import Vector


class _Cure(Watcher):
    """Readdresses what a strategy sends, and weighs what it gets."""

    def __init__(
        self, path: str | Path, reported: Reported | None, counts_key: str, learned: Learned, seed: int | None
    ) -> None:
        super().__init__(path, reported)
        self.counts_key, self.learned = counts_key, learned
        self.rng = np.random.default_rng(seed)
        self.sent: ArrayRecord | None = None

    @override
    def outgoing(self, messages: list[Message], arrays: ArrayRecord, grid: Grid) -> list[Message]:
        if not messages:
            return messages
        nodes = [str(node) for node in sorted(grid.get_node_ids())]
        counts = Systematic()(self._probabilities(nodes), len(messages), self.rng)
        drawn = Counter({node: int(count) for node, count in zip(nodes, counts, strict=True) if count})
        self.book.ask(drawn, nodes)
        self.sent = arrays
        return [_message(messages[0].content, messages[0], int(node)) for node in drawn]

    def _probabilities(self, nodes: list[str]) -> Vector:
        """Return FedACS's p, (nodes,)."""
        known = self.learned
        if not known.steps:
            return np.full(len(nodes), 1 / len(nodes))
        return theory.heterogeneity_aware_probabilities(
            known.weights(nodes), known.failure_rates(nodes), known.bounded_steps(nodes)
        )

    @override
    def incoming(self, server_round: int, replies: list[Message]) -> list[Message]:
        good = [reply for reply in replies if not reply.has_error()]
        drawn = self.book.asked
        rows = self.rows(server_round, good, applied=1 / max(1, drawn.total()))
        self.learned.observe(drawn, {node: self._report(row) for node, row in rows.items()})
        self.book.receive(server_round, rows)
        if not good or self.sent is None:
            return replies
        key = next(iter(good[0].content.metric_records))
        counts = [float(drawn[str(reply.metadata.src_node_id)]) for reply in good]
        for reply, count in zip(good, counts, strict=True):
            values = reply.content.metric_records[key]
            reply.content[key] = MetricRecord({**values, self.counts_key: count})
        missing = drawn.total() - sum(counts)
        return [*replies, *([self._absent(good, counts, key, missing)] if missing > 0 else [])]

    def _report(self, row: Row) -> tuple[float, float]:
        if row.steps and row.examples:
            return row.steps, row.examples
        key = self.reported.examples_key if row.steps else self.reported.steps_key
        raise ValueError(
            f"node {row.client} reports no {key}, without which nobody can tell how far it pulls: let clients report "
            "it as a metric, or give Reported(epochs=..., batch_size=...) in place of steps"
        )

    def _absent(self, good: list[Message], counts: list[float], key: str, missing: float) -> Message:
        """Return a reply for all that did not arrive: the model as it was, and metrics that leave the mean alone."""
        ((arrays_key, arrays),) = good[0].content.array_records.items()
        if self.sent is None or arrays.keys() != self.sent.keys():
            raise ValueError("clients send other arrays than they get, but heterogeneity_aware needs whole models back")
        named = [reply.content.metric_records[key] for reply in good]
        means = {name: np.average([one[name] for one in named], axis=0, weights=counts).tolist() for name in named[0]}
        metrics = MetricRecord({**means, self.counts_key: missing})
        content = RecordDict({arrays_key: self.sent, key: metrics})
        return _message(content, good[0], good[0].metadata.src_node_id)


def _message(content: RecordDict, like: Message, node: int) -> Message:
    return Message(content=content, message_type=like.metadata.message_type, dst_node_id=node)


def heterogeneity_aware(
    strategy: S,
    path: str | Path = LOG,
    *,
    reported: Reported | None = None,
    wanted: Wanted = "examples",
    every: int = 0,
    bound: float = 10.0,
    seed: int | None = None,
) -> S:
    """Let a weighted mean of Flower optimise the wanted objective: FedACS's draws, and a mean over all that were drawn.

    As many nodes are drawn as the strategy would ask, by p ~ w / ((1 - q) T) with q and T as learned so far; one that
    is drawn several times trains once and counts as often. What does not arrive counts as the model that was sent,
    so that who arrives does not take the place of who does not. The log is that of :func:`audited`.

    Args:
        strategy: A weighted mean: FedAvg, FedAvgM, FedProx, or a subclass.
        path: Of the log; one that has the name is replaced.
        reported: Metrics in which clients report steps and examples, or epochs and batch size in place of steps.
        wanted: The objective: shares of examples, or equal weights.
        every: Print the verdict after so many rounds, too; 0: at the end alone.
        bound: Reported steps count as at most so many times more or fewer than the median node's, which bounds what a
            node can gain that reports too few.
        seed: Of the draws; None: different in each run.
    """
    if not isinstance(strategy, FedAvg) or isinstance(strategy, NO_MEANS):
        raise TypeError(f"{type(strategy).__name__} is no weighted mean: use FedAvg, FedAvgM, FedProx, or audited(...)")
    learned = Learned(wanted=wanted, bound=bound)
    return watched(strategy, _Cure(path, reported, strategy.weighted_by_key, learned, seed), wanted, every)
