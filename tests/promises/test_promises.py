"""What one part promises holds with every other part, or the pair is refused in one line.

Each promise is tried with each combination; ``docs/promises.md`` shows the outcome. Where a change of it is meant, run
this file (``python tests/promises/test_promises.py``), which writes the page, and say in the commit why.
"""

import contextlib
import copy
import functools
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from promises.combinations import CLIENTS_PER_ROUND, COMBINATIONS, Combination, Settings
from torch import nn

from fl_lightning.aggregators import Aggregator, SecureSum
from fl_lightning.algorithms import Algorithm
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.diagnosis.dry_run import bounded_parts, unknown_parts
from fl_lightning.diagnosis.systems import diagnosed
from fl_lightning.engine import Engine
from fl_lightning.loop import FederatedLoop
from fl_lightning.module import FederatedModule
from fl_lightning.samplers import HeterogeneityAware, Independent
from fl_lightning.types import Conditions, ModelState
from fl_lightning.uploads import Clip, GaussianMechanism
from made import made_loop
from reference.played_rounds import distance, measured, played_planner
from systems import gaussian_federation

PAGE = Path(__file__).parents[2] / "docs" / "promises.md"
PAIRS = [(kind, name) for kind, found in COMBINATIONS.items() for name in found]
REFUSALS = (ValueError, TypeError)
GROUPS = [Group(0.5, (1, 2), (0.4, 0.5)), Group(0.5, (3, 6), (0.0, 0.1))]


class Refused(Exception):  # noqa: N818
    """The pair was refused, in one line."""


def base() -> Settings:
    return {
        "rounds": 4,
        "lr": 0.02,
        "batch_size": 4,
        "schedule": HeterogeneitySchedule(groups=GROUPS),
        "sampling": SamplerSelection(HeterogeneityAware(), CLIENTS_PER_ROUND),
        "channel": ChannelFailures(),
        "aggregator": Aggregator(),
        "uploads": [],
        "engine": Engine("sequential"),
    }


def module(width: int = 8) -> FederatedModule:
    torch.manual_seed(0)
    return FederatedModule(nn.Sequential(nn.Linear(5, width), nn.Linear(width, 3)), 3)


def combined(combination: Combination, settings: Settings) -> Settings:
    """Return the settings of a pair; a part that is refused when it is made is refused."""
    try:
        return combination(settings)
    except REFUSALS as error:
        raise Refused(_one_line(error)) from error


def played(settings: Settings, then: Callable[[FederatedLoop], None] = lambda loop: None, width: int = 8) -> Any:
    """Return the result of a loop and the loop; refused where its first round does not begin."""
    try:
        loop = made_loop(**settings)
        then(loop)
        model = module(width)
        rounds = loop.iterate(model, gaussian_federation())
        next(rounds)
    except REFUSALS as error:
        raise Refused(_one_line(error)) from error
    for _ in rounds:
        pass
    return loop


def _one_line(error: Exception) -> str:
    text = str(error)
    assert text, error
    assert "\n" not in text, text
    return text


def history(loop: FederatedLoop) -> list[dict[str, float]]:
    """Return the metrics of all rounds but those that are measured by the wall clock."""
    rows = loop.record.result(loop.state, loop.algorithm.averaging.state, loop.module).history
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


# --- the promises -------------------------------------------------------------------------------------------------


def resumable(combination: Combination) -> None:
    """Four rounds are two rounds, a checkpoint and two rounds, bit for bit."""
    whole = played(combined(combination, base()))
    first = made_loop(**combined(combination, base()))
    rounds = first.iterate(module(), gaussian_federation())
    next(rounds)
    next(rounds)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    rounds.close()
    file.seek(0)
    second = made_loop(**combined(combination, base()))
    second.run(module(), gaussian_federation(), resume_from=torch.load(file, weights_only=True))
    assert torch.equal(second.state.weights, whole.state.weights)
    for row, same in zip(history(second), history(whole), strict=True):
        assert row == pytest.approx(same, nan_ok=True, rel=0, abs=0)


class CountingEngine(Engine):
    """Counts the local steps that clients really make, and answers before a draw."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self.steps: dict[int, dict[int, int]] = {}

    def train(self, state: ModelState, plan: Any, clients: Any, *handout: Any) -> Any:
        updates = super().train(state, plan, clients, *handout)
        made = zip(updates.clients.tolist(), updates.num_steps.tolist(), strict=True)
        self.steps.setdefault(plan.index, {}).update(made)
        return updates


def counted(combination: Combination) -> None:
    """No step of a client is missing from what the run says it cost, and a lost upload costs what others cost."""
    settings = combined(combination, base())
    engine = settings["engine"] = CountingEngine(settings["engine"].mode)
    results: list[Any] = []
    loop = made_loop(**settings)
    try:
        rounds = loop.iterate(module(), gaussian_federation())
        results.append(next(rounds))
    except REFUSALS as error:
        raise Refused(_one_line(error)) from error
    results += rounds
    size = loop.state.weights.numel() - (0 if loop.local_parts is None else loop.local_parts.num_kept[0])
    for result in results:
        plan, costs = result.plan, result.costs
        counts = plan.cohort.counts if plan.cohort.arrivals is not None else np.minimum(plan.cohort.counts, 1)
        personal = loop.algorithm.personal
        own = 0 if personal is None else int(personal.num_steps(plan)[plan.cohort.clients].sum())
        assert costs.local_steps == int(counts @ plan.profiles.num_steps) + plan.probed_steps + own
        assert sum(engine.steps.get(plan.index, {}).values()) <= costs.local_steps
        uploads = int(counts.sum())
        bits = 1 if loop.algorithm.uploads or isinstance(loop.algorithm.aggregator, SecureSum) else 32
        assert costs.uplink_bytes >= uploads * size * bits / 8
    assert loop.spent.local_steps == sum(result.costs.local_steps for result in results)
    assert loop.spent.uplink_bytes == pytest.approx(sum(result.costs.uplink_bytes for result in results))


class BrokenClient(Engine):
    """Trains, but client 0 sends something that would ruin a model."""

    def __init__(self, mode: str, value: float) -> None:
        super().__init__(mode)
        self.value = value

    def train(self, state: ModelState, plan: Any, clients: Any, *handout: Any) -> Any:
        updates = super().train(state, plan, clients, *handout)
        deltas = updates.deltas.clone()
        deltas[torch.from_numpy(updates.clients == 0)] = self.value
        return replace(updates, deltas=deltas)


def bounded(combination: Combination) -> None:
    """One client that sends NaN, infinities or 3e38 moves the model no further than an honest one could."""
    start = torch.nn.utils.parameters_to_vector(module().parameters()).detach()
    clean = combined(combination, base()) | {"rounds": 6}
    honest = float((played(clean).state.weights - start).norm())
    for value in (float("nan"), float("inf"), 3e38, -1e30):
        settings = combined(combination, base()) | {"rounds": 6}
        settings["engine"] = BrokenClient(settings["engine"].mode, value)
        moved = played(settings).state.weights - start
        assert torch.isfinite(moved).all(), value
        assert float(moved.norm()) < 100 * (1 + honest), (value, float(moved.norm()), honest)


class Shuffling(FederatedLoop):
    """Moves something from one client's upload to another's, so that their sum n c Delta stays what it is."""

    amount = 0.0

    def _setup(self, *arguments: Any) -> None:
        super()._setup(*arguments)
        self._stages.between.append(self._shuffled)

    def _shuffled(self, received: Any, state: Any) -> Any:
        updates, plan = received.updates, received.plan
        shares = received.delivered[updates.clients] * plan.coefficients[updates.clients]
        rows = np.flatnonzero(shares > 0)
        if len(rows) < 2 or not self.amount:
            return received
        deltas = updates.deltas.clone()
        deltas[rows[0]] += self.amount / shares[rows[0]]
        deltas[rows[1]] -= self.amount / shares[rows[1]]
        return replace(received, updates=replace(updates, deltas=deltas))


def hidden(combination: Combination) -> None:
    """Under a secure sum, nothing that the server does or shows depends on more than the sum."""
    found = []
    for amount in (0.0, 0.5):
        settings = base() | {"aggregator": SecureSum(bound=1e4, threshold=2)}
        loop = made_loop(**combined(combination, settings))
        loop.__class__ = Shuffling
        loop.amount = amount
        plans = []
        try:
            rounds = loop.iterate(module(), gaussian_federation())
            plans.append(next(rounds).plan)
        except REFUSALS as error:
            raise Refused(_one_line(error)) from error
        plans += [result.plan for result in rounds]
        found.append((loop, plans))
    (plain, before), (moved, after) = found
    assert torch.allclose(plain.state.weights, moved.state.weights, rtol=1e-3, atol=1e-4)
    for one, other in zip(before, after, strict=True):
        assert np.allclose(one.cohort.probabilities, other.cohort.probabilities, rtol=1e-3)
        assert np.array_equal(one.cohort.counts, other.cohort.counts)
    for row, same in zip(history(plain), history(moved), strict=True):
        assert row == pytest.approx(same, rel=1e-2, abs=1e-3, nan_ok=True)


@contextlib.contextmanager
def recorded() -> Iterator[list[torch.Tensor]]:
    """Keep the aggregated Delta of each round, before whatever wraps the aggregator."""
    found: list[torch.Tensor] = []

    def recording(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def direction(self: Aggregator, *arguments: Any) -> torch.Tensor:
            found.append(plain(self, *arguments))
            return found[-1]

        return direction

    with pytest.MonkeyPatch.context() as patch:
        for kind in (Aggregator, SecureSum):
            patch.setattr(kind, "direction", recording(kind.direction))
        yield found


class Silenced(Engine):
    """Trains, but one client sends zeros."""

    def __init__(self, mode: str, client: int) -> None:
        super().__init__(mode)
        self.client = client

    def train(self, state: ModelState, plan: Any, clients: Any, *handout: Any) -> Any:
        updates = super().train(state, plan, clients, *handout)
        deltas = updates.deltas.clone()
        deltas[torch.from_numpy(updates.clients == self.client)] = 0
        return replace(updates, deltas=deltas)


COVERED = {
    *("round", "learning_rate", "step_length", "epsilon", "delta", "noise_multiplier", "clip_norm", "channel_noise"),
    *("chi2", "test_loss", "test_accuracy", "averaged_loss", "averaged_accuracy"),
}
MULTIPLIER = 2.0


def private_settings(key: int | None) -> Settings:
    step = GaussianMechanism(Clip(1.0), noise_multiplier=MULTIPLIER, key=key)
    sampling = SamplerSelection(HeterogeneityAware(), CLIENTS_PER_ROUND, Independent())
    return base() | {"uploads": [step], "sampling": sampling, "rounds": 1}


def private(combination: Combination) -> None:
    """The noise is at least z times as large as what one client can move, and nothing else is shown."""
    secret = played(combined(combination, private_settings(None)) | {"rounds": 3})
    draws_are_known = not secret.algorithm.uploads.secret.secret_draws
    shown = {name for row in history(secret) for name in row}
    if not draws_are_known:
        assert shown <= COVERED, shown - COVERED
    assert not {name for name in shown if name.startswith(("train_loss", "clip_factor", "clipped", "num_rejected"))}

    def direction(key: int, client: int = -1) -> tuple[torch.Tensor, Any]:
        settings = combined(combination, private_settings(key))
        settings["engine"] = Silenced(settings["engine"].mode, client)
        with recorded() as found:
            loop = played(settings, width=100)
        return found[0], loop.planner.plan(1).cohort.counts

    (first, counts), (second, _) = direction(1), direction(2)
    deviation = float((first - second).std()) / 2**0.5
    for client in np.flatnonzero(counts)[:3].tolist():
        moved = float((direction(1, client)[0] - first).norm())
        assert moved * MULTIPLIER <= 1.1 * deviation * counts[client], (client, moved, deviation)


def consistent(combination: Combination) -> str | None:
    """What is said of the objective is what rounds optimise, or it is said that nobody knows."""
    rng = np.random.default_rng(11)
    weights = rng.dirichlet(np.full(6, 5.0))
    steps, rates = np.array([2, 3, 5, 8, 10, 12]), np.array([0.4, 0.3, 0.3, 0.2, 0.1, 0.05])
    settings = combined(combination, base())
    for name in ("schedule", "rounds", "lr", "batch_size", "engine"):
        settings.pop(name)
    system = {name: settings.pop(name) for name in ("clock", "channel") if name in settings}
    algorithm = Algorithm(**settings)
    for step in algorithm.uploads.steps:
        if step.noise is not None:
            step.noise.renew(0)
    try:
        planner = played_planner([Conditions(steps, rates)] * 16, weights, system.pop("clock", None), **system)
        diagnoses, unknown = diagnosed([("it", copy.deepcopy(algorithm))], planner)
    except REFUSALS as error:
        raise Refused(_one_line(error)) from error
    if unknown or unknown_parts(algorithm):
        return "not known"
    if algorithm.sampling.traits.asks != "nothing":
        return "not played"
    said = diagnoses[0].effective_weights * clip_factors(algorithm, steps)
    found = measured(algorithm, planner, 2500, 200)
    limit = 0.25 if bounded_parts(algorithm, planner.system) else 0.1
    assert distance(found, said / said.sum()) < limit, (found.round(3), said.round(3))
    return None


def clip_factors(algorithm: Algorithm, accumulation: Any) -> Any:
    """Return what clips leave of updates that are as long as the work: known here, and measured during a run."""
    bounds = [step.norm for step in algorithm.uploads.steps if isinstance(step, Clip) and step.of == "update"]
    return np.prod([np.minimum(1, bound / accumulation) for bound in bounds], axis=0) if bounds else 1.0


SLOW = {"consistent": pytest.mark.slow}
HEAD = """# Promises and combinations

What one part promises holds when another part joins it, or the pair is refused in one line before the first round. A
test (`tests/promises`) makes each pair, plays it and looks:

- **resumable**: a run that is interrupted and resumed gives the same model and the same metrics, bit for bit.
- **counted**: no local step and no upload is missing from the costs of a run; a lost upload costs what others cost.
- **bounded**: a client that sends NaN, infinities or 3e38 moves the model no further than an honest one could.
- **hidden**: under `SecureSum`, nothing that the server does or shows depends on more than the sum of the updates.
- **private**: under `GaussianMechanism`, the noise is at least z times what one client can move, and no number is shown
  that epsilon does not cover.
- **consistent**: what `diagnose` says of the objective is what played rounds optimise, or it says that it is
  *not known* (`pytest -m slow tests/promises`). *Not played*: the sampler asks clients, whom these rounds do not have;
  `tests/test_omega_table.py` has it.

The page is made by `python tests/promises/test_promises.py`.
"""
PROMISES = {each.__name__: each for each in (resumable, counted, bounded, hidden, private, consistent)}


@functools.cache
def outcome(promise: str, kind: str, name: str) -> str:
    """Return ``kept``, or ``refused`` with the reason."""
    try:
        return PROMISES[promise](COMBINATIONS[kind][name]) or "kept"
    except Refused as refusal:
        return f"refused: {refusal}"


def written_table(found: Callable[[str, str, str], str]) -> str:
    """Return the page: a row for each combination, a column for each promise, the reasons below."""
    lines = [HEAD, f"| | with | {' | '.join(PROMISES)} |", "|---" * (len(PROMISES) + 2) + "|"]
    reasons: list[str] = []
    for kind, name in PAIRS:
        cells = []
        for promise in PROMISES:
            said, _, reason = found(promise, kind, name).partition(": ")
            if reason and reason not in reasons:
                reasons.append(reason)
            cells.append(f"refused [{1 + reasons.index(reason)}](#reasons)" if reason else said)
        lines.append(f"| {kind} | `{name}` | {' | '.join(cells)} |")
    listed = [f"{place}. {reason}" for place, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "\n## Reasons\n", *listed, ""])


def stored(promise: str, kind: str, name: str) -> str:
    """Return what the page says of a pair."""
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {kind} | `{name}` |"))
    return row.strip("| ").split(" | ")[2 + [*PROMISES].index(promise)].partition(" [")[0]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
@pytest.mark.parametrize("promise", [pytest.param(each, marks=SLOW.get(each, ())) for each in PROMISES])
def test_a_promise_is_kept_or_the_pair_refused(promise, kind, name):
    assert outcome(promise, kind, name).partition(":")[0] == stored(promise, kind, name)


if __name__ == "__main__":
    PAGE.write_text(written_table(outcome))
