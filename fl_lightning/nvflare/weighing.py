"""A cure for NVFlare's FedAvg by weights: normalised, communication-aware, and over all that were asked."""

from typing import Any

from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
    filter_aggregatable_metrics,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from fl_lightning.audit.book import Learned, check_epochs
from fl_lightning.audit.estimate import Wanted
from fl_lightning.nvflare.recording import APPLIED, examples_of, number, on_sampled
from fl_lightning.theory.checks import Vector


class HeterogeneityAware(ModelAggregator):
    r"""Lets NVFlare's FedAvg optimise the wanted objective: ``FedAvgRecipe(..., aggregator=HeterogeneityAware())``.

    .. math:: x \leftarrow x + \frac{1}{A} \sum_{m \text{ arrived}} a_m (x_m - x), \qquad
        a_m = \frac{w_m}{(1 - q_m) T_m}

    with T the steps that the upload took, q the failure rate as learned from earlier rounds, and A the sum of a over
    all that were asked, each at its mean. What does not arrive therefore counts as the model that was sent.

    Args:
        wanted: The objective: equal weights, or shares of examples as reported or as they follow from the steps.
        examples_key: Key of the meta data in which clients report their examples.
        epochs: Local epochs, where clients do not report examples; with ``batch_size`` they follow from the steps.
        batch_size: Likewise.
        bound: Reported steps count as at most so many times more or fewer than the median site's.
    """

    def __init__(
        self,
        wanted: Wanted = "examples",
        examples_key: str = "num_examples",
        epochs: float | None = None,
        batch_size: int | None = None,
        bound: float = 10.0,
    ) -> None:
        super().__init__()
        check_epochs(epochs, batch_size, "examples of steps")
        self.wanted: Wanted = wanted
        self.examples_key, self.bound = examples_key, bound
        self.epochs, self.batch_size = epochs, batch_size
        self._learned = Learned(wanted=wanted, bound=bound)
        self._asked: set[str] = set()
        self.reset_stats()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note who is asked."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.ROUND_STARTED:
            on_sampled(fl_ctx, self._ask)
        elif event_type == AppEventType.BEFORE_CONTRIBUTION_ACCEPT:
            self.fl_ctx = fl_ctx

    def _ask(self, names: list[str]) -> None:
        self._asked = set(names)

    def reset_stats(self) -> None:
        """Begin a round; who is asked in it is known by now."""
        self._amounts: dict[str, float] = {}  # a of who arrived
        self._reports: dict[str, tuple[float, float | None]] = {}
        self._sum, self._metrics = WeightedAggregationHelper(), WeightedAggregationHelper()
        self._like: FLModel | None = None

    def accept_model(self, model: FLModel) -> None:
        """Add an upload with its weight; nothing of it is kept."""
        meta = model.meta or {}
        name = str(meta.get("client_name"))
        steps = number(meta.get(MetaKey.NUM_STEPS_CURRENT_ROUND))
        examples = examples_of(meta, self.examples_key, self.epochs, self.batch_size)
        if steps is None or (examples is None and self.wanted == "examples"):
            key = MetaKey.NUM_STEPS_CURRENT_ROUND if steps is None else self.examples_key
            raise ValueError(
                f"site {name} reports no {key}, without which nobody can tell how far it pulls: let clients report it "
                "in the meta data of their FLModel, or give epochs and batch_size in place of examples, or wanted=equal"
            )
        self._reports[name] = steps, examples
        self._amounts[name] = float(self._amount([name], {name: steps}, {name: examples or 1.0})[0])
        self._like = model
        self._add(self._sum, model.params, self._amounts[name])
        self._add(self._metrics, filter_aggregatable_metrics(model.metrics), self._amounts[name])

    def _amount(
        self, names: list[str], steps: dict[str, float] | None = None, examples: dict[str, float] | None = None
    ) -> Vector:
        """Return a of some sites, by what was learned or by what they report now."""
        known = self._learned
        return known.weights(names, examples) / (1 - known.failure_rates(names)) / known.bounded_steps(names, steps)

    @staticmethod
    def _add(to: WeightedAggregationHelper, data: dict[str, Any], weight: float) -> None:
        to.add(data=data, weight=weight, contributor_name="", contribution_round=None)

    def aggregate_model(self) -> FLModel:
        """Return the mean over all that were asked; who did not arrive counts as the model that was sent."""
        if self._like is None:
            return FLModel(params={}, params_type=ParamsType.DIFF)
        total = self._total()
        missing = total - sum(self._amounts.values())
        if abs(missing) > 1e-12 * total:
            self._add(self._sum, self._unchanged(self._like), missing)
        factors = {name: amount / total for name, amount in self._amounts.items()}
        result = FLModel(
            params=self._sum.get_result(),
            params_type=self._like.params_type,
            metrics=self._metrics.get_result() or None,
            meta={APPLIED: factors},
        )
        self._learned.observe(self._asked | set(self._amounts), self._reports)
        return result

    def _total(self) -> float:
        """Return A: the mean of a over all sites that are known, for each that was asked."""
        names = sorted(self._learned.steps)
        asked = len(self._asked | set(self._amounts))
        if not names:  # the first round
            return sum(self._amounts.values()) * asked / len(self._amounts)
        return float(self._amount(names).mean()) * asked

    def _unchanged(self, like: FLModel) -> dict[str, Any]:
        """Return what an upload would be that changes nothing."""
        if like.params_type == ParamsType.DIFF:
            return {name: 0 * value for name, value in like.params.items()}
        sent = self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS]
        return {name: sent[name] for name in like.params}
