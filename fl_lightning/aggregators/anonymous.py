"""The paper's rule: the server adds up what arrives and asks nobody for a name."""

from fl_lightning.aggregators.base import Aggregator


class AnonymousMean(Aggregator):
    r"""Divides the sum of what arrived by K, never by the number of arrivals.

    .. math:: X \leftarrow X - \frac{\eta}{K} \sum_{m\ \mathrm{delivered}} n_m \Delta_m
    """
