"""A log of who took part in NVFlare's rounds, and a verdict: a component of the server that watches its events."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nvflare.apis.dxo import DXO, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.recipe.spec import Recipe

from fl_lightning.audit.book import LOG, Book, check_epochs
from fl_lightning.audit.estimate import Wanted
from fl_lightning.audit.log import Row

R = TypeVar("R", bound=Recipe)
APPLIED = "fl_lightning_applied"  # in the meta data of an aggregate: factors of the clients' updates


def number(value: object) -> float | None:
    """Return what a client reported; None where it is no number that it could be."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if good else None  # type: ignore[arg-type]


def examples_of(meta: dict[str, object], key: str, epochs: float | None, batch_size: int | None) -> float | None:
    """Return a client's examples: as reported, else those that make its steps in so many epochs."""
    reported, steps = number(meta.get(key)), number(meta.get(MetaKey.NUM_STEPS_CURRENT_ROUND))
    if reported is not None or steps is None or epochs is None or batch_size is None:
        return reported
    return steps * batch_size / epochs


def on_sampled(fl_ctx: FLContext, note: Callable[[list[str]], None]) -> None:
    """Note whom the controller of the round that begins asks, whether or not they fetch their task."""
    controller = fl_ctx.get_engine().get_component(fl_ctx.get_prop(FLContextKey.WORKFLOW))
    sample = getattr(controller, "sample_clients", None)
    if sample is None:
        return

    def noted(*args: int | None, **named: int | None) -> list[str]:
        controller.sample_clients = sample  # for this round alone
        names: list[str] = controller.sample_clients(*args, **named)
        note(names)
        return names

    controller.sample_clients = noted


class ParticipationRecorder(FLComponent):
    """Writes a round when it has been aggregated, and prints the verdict at the end of the run.

    Sites count as asked when the controller samples them, or when they fetch the round's task. Weights are those of
    NVFlare's FedAvg: the steps of the round times the site's aggregation weight.

    Args:
        path: Of the log; relative to the run's folder at the server.
        examples_key: Key of the meta data in which clients report their examples.
        epochs: Local epochs, where clients do not report examples; with ``batch_size`` they follow from the steps.
        batch_size: Likewise.
        wanted: The objective to compare with, see :func:`fl_lightning.audit.audit`.
    """

    def __init__(
        self,
        path: str = LOG,
        examples_key: str = "num_examples",
        epochs: float | None = None,
        batch_size: int | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        super().__init__()
        check_epochs(epochs, batch_size, "examples of steps")
        self.path, self.examples_key = path, examples_key
        self.epochs, self.batch_size = epochs, batch_size
        self.wanted = wanted
        self._book: Book | None = None
        self._asked: Counter[str] = Counter()  # of the round, as all below
        self._arrived: dict[str, dict[str, object]] = {}  # meta data

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note who is asked and who arrives, write a round, show the verdict."""
        if event_type == EventType.START_RUN:
            folder = fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())
            self._book = Book(Path(folder) / self.path)
        elif event_type == AppEventType.ROUND_STARTED:
            self._asked, self._arrived = Counter(), {}
            on_sampled(fl_ctx, lambda names: self._asked.update(dict.fromkeys(names, 1)))
        elif event_type == AppEventType.BEFORE_TRAIN_TASK:
            self._asked[_peer(fl_ctx)] = 1
        elif event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
            result = fl_ctx.get_prop(AppConstants.TRAINING_RESULT)
            if fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED, False) and result is not None:
                dxo: DXO = from_shareable(result)
                self._arrived[_peer(fl_ctx)] = dict(dxo.meta or {})
        elif event_type == AppEventType.AFTER_AGGREGATION and self._book is not None:
            self._write(self._book, fl_ctx)
        elif event_type == EventType.END_RUN and self._book is not None:
            self._book.show(self.wanted)

    def _write(self, book: Book, fl_ctx: FLContext) -> None:
        model = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT)
        meta = model.meta or {}
        factors = meta.get(APPLIED)
        info = meta.get(AppConstants.METRICS_AGGREGATION_INFO, {})
        weights = {each["name"]: number(each["weight"]) for each in info.get("site_weights") or []}
        index = int(fl_ctx.get_prop(AppConstants.CURRENT_ROUND))
        rows = {}
        for name, told in self._arrived.items():
            rows[name] = Row(
                round=index,
                client=name,
                asked=1,
                arrived=1,
                examples=examples_of(told, self.examples_key, self.epochs, self.batch_size),
                steps=number(told.get(MetaKey.NUM_STEPS_CURRENT_ROUND)),
                weight=None if factors else weights.get(name),
                applied=factors.get(name) if factors else None,
            )
        everybody = [client.name for client in fl_ctx.get_engine().get_clients()]
        book.ask(self._asked | Counter(list(rows)), everybody)
        book.receive(index, rows)


def _peer(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_peer_context().get_identity_name())


def audited(
    recipe: R,
    path: str = LOG,
    *,
    examples_key: str = "num_examples",
    epochs: float | None = None,
    batch_size: int | None = None,
    wanted: Wanted | None = None,
) -> R:
    """Let a recipe's server write a log of participation and say at the end what was optimised; nothing else changes.

    Args:
        recipe: One whose server runs FedAvg, e.g. ``FedAvgRecipe``.
        path: See :class:`ParticipationRecorder`, as for the others.
        examples_key: Key of the meta data in which clients report their examples.
        epochs: Local epochs, where clients do not report examples.
        batch_size: Likewise.
        wanted: The objective to compare with.
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"audited takes a recipe of NVFlare, not {type(recipe).__name__}")
    recorder = ParticipationRecorder(path, examples_key, epochs, batch_size, wanted)
    recipe._job.to_server(recorder, id="participation")  # as NVFlare's own add_experiment_tracking does
    recipe._job.set_app_packages([*recipe._job.job.app_packages, "fl_lightning"])  # is installed: no part is copied
    return recipe
