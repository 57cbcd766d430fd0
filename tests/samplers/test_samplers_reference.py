"""Each sampler in a real loop against a few lines of numpy that know nothing of its code."""

import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fl_lightning import samplers
from fl_lightning.callbacks import ChannelFailures, Group, HeterogeneitySchedule, SamplerSelection
from fl_lightning.data.quadratic import QuadraticFederation
from fl_lightning.loop import FederatedLoop
from fl_lightning.module import QuadraticModule
from fl_lightning.seeding import Purpose, generator
from fl_lightning.server.rates import Calibration
from fl_lightning.solvers import SGD
from fl_lightning.types import Profiles
from made import made_loop, made_profiles

M, D, K, LR, SEED = 7, 5, 3, 0.05, 3
TARGETS = np.random.default_rng(0).normal(size=(M, D)).astype(np.float32)
WEIGHTS = np.array([0.1, 0.2, 0.05, 0.25, 0.15, 0.05, 0.2])


@dataclass
class Past:
    """All that a reference may look at: the rounds so far and the model."""

    rounds: list = field(default_factory=list)
    model: np.ndarray = field(default_factory=lambda: np.zeros(D))
    loop: FederatedLoop | None = None
    models: list = field(default_factory=list)  # at the start of each round

    def arrived(self) -> dict[int, np.ndarray]:
        """The last delivered Delta / A of each client."""
        last = {}
        for result in self.rounds:
            for client, delta in zip(result.updates.clients, result.updates.deltas.numpy(), strict=True):
                last[int(client)] = delta / result.plan.profiles.num_steps[client]
        return last

    def norms(self) -> np.ndarray:
        last = {client: np.linalg.norm(row) for client, row in self.arrived().items()}
        if not last:
            return np.ones(M)
        mean = np.mean(list(last.values()))
        return np.array([max(last.get(client, mean), 0.1 * mean) for client in range(M)])


Reference = Callable[[Past, Profiles, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def deltas(past: Past, profiles: Profiles) -> np.ndarray:
    gain = (1 - (1 - LR) ** profiles.num_steps) / LR
    return (past.model - TARGETS) * gain[:, None]


def water_filling(u: np.ndarray) -> np.ndarray:
    low, high = 0.0, K / u.min()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * u).sum() < K else (low, middle)
    return np.minimum(1, high * u)


def indicator(selected: np.ndarray) -> np.ndarray:
    return np.isin(np.arange(M), selected) / K


def os_exact(past, profiles, rng):
    u = WEIGHTS * np.linalg.norm(deltas(past, profiles), axis=1)
    return u / u.sum(), WEIGHTS * u.sum() / u


def os_optimal(past, profiles, rng):
    inclusion = water_filling(WEIGHTS * np.linalg.norm(deltas(past, profiles), axis=1))
    return inclusion / K, WEIGHTS * K / inclusion


def os_stale(past, profiles, rng):
    u = WEIGHTS * past.norms() * profiles.num_steps
    return u / u.sum(), WEIGHTS * u.sum() / u


def os_first(past, profiles, rng):
    inclusion = water_filling(WEIGHTS * np.linalg.norm(past.model - TARGETS, axis=1) * profiles.num_steps)
    return inclusion / K, np.ones(M)


def delta(past, profiles, rng):
    p = np.full(M, 1 / M)
    for result in past.rounds:
        clients = result.updates.clients
        if len(clients):
            g = result.updates.deltas.numpy() / result.plan.profiles.num_steps[clients][:, None]
            score = 0.5 * np.linalg.norm(g, axis=1) + 0.5 * np.linalg.norm(g - g.mean(0), axis=1)
            score *= WEIGHTS[clients]
            p[clients] = p[clients].sum() * score / score.sum()
        p = np.maximum(p, 1e-3 / M)
        p /= p.sum()
    return p, WEIGHTS / p


def divfl(past, profiles, rng):
    rows = -TARGETS.astype(float)  # the first round asks everybody, at the model 0
    for client, row in past.arrived().items():
        rows[client] = row
    apart = np.linalg.norm(rows[:, None] - rows[None, :], axis=2)
    chosen: list[int] = []
    for _ in range(K):
        totals = {c: apart[:, [*chosen, c]].min(axis=1).sum() for c in range(M) if c not in chosen}
        chosen.append(min(totals, key=totals.get))
    mass = np.zeros(M)
    for client in range(M):
        mass[min(sorted(chosen), key=lambda c: apart[client, c])] += WEIGHTS[client]
    return indicator(chosen), K * mass


def divfl_samples(past, profiles, rng):
    p, _ = divfl(past, profiles, rng)
    return p, K * np.where(p > 0, WEIGHTS, 0) / WEIGHTS[p > 0].sum()


def power_of_choice(past, profiles, rng):
    losses = 0.5 * ((past.model - TARGETS) ** 2).sum(axis=1)
    candidates = rng.choice(M, 5, replace=False, p=WEIGHTS)
    return indicator(candidates[np.argsort(-losses[candidates])[:K]]), np.ones(M)


def hics(past, profiles, rng):
    finished = len(past.rounds)
    if finished * K < M:
        return indicator((finished * K + np.arange(K)) % M), np.ones(M)
    last = past.arrived()
    entropy = {}
    temperature = np.median([np.abs(row[-4:]).max() for row in last.values()]) / 5
    for client, row in last.items():
        share = np.exp(-row[-4:] / temperature)
        share /= share.sum()
        entropy[client] = -(share * np.log(share)).sum()
    mean = np.mean(list(entropy.values()))
    entropies = np.array([entropy.get(client, mean) for client in range(M)])
    apart = np.zeros((M, M))
    for a in range(M):
        for b in range(M):
            known = a in last and b in last
            x, y = (last[a][-4:], last[b][-4:]) if known else (np.eye(4)[0], np.eye(4)[1])
            angle = np.arccos(np.clip(x @ y / np.linalg.norm(x) / np.linalg.norm(y), -1, 1))
            apart[a, b] = 0 if a == b else angle + 10 * abs(entropies[a] - entropies[b])
    labels = fcluster(linkage(squareform(apart, checks=False), "ward"), K, "maxclust") - 1
    sizes = np.bincount(labels)
    preference = np.exp(4 * (1 - finished / 500) * np.bincount(labels, entropies) / sizes)
    low, high = 0.0, 1e9  # min(size, factor * preference) adding up to K
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(sizes, middle * preference).sum() < K else (low, middle)
    return (np.minimum(sizes, high * preference) / sizes)[labels] / K, np.ones(M)


def scaled(profiles: Profiles, p: np.ndarray) -> np.ndarray:
    arriving = (1 - profiles.failure_rates) * profiles.num_steps
    return WEIGHTS / (p * arriving) * (WEIGHTS @ arriving)


def variance_optimal(past, profiles, rng):
    p = WEIGHTS * past.norms() / np.sqrt(1 - profiles.failure_rates)
    return p / p.sum(), scaled(profiles, p / p.sum())


def work_aware(past, profiles, rng):
    p = WEIGHTS / np.sqrt((1 - profiles.failure_rates) * profiles.num_steps)
    return p / p.sum(), scaled(profiles, p / p.sum())


def consistent_delta(past, profiles, rng):
    p, _ = delta(past, profiles, rng)
    return p, scaled(profiles, p)


def fedacs_estimated(past, profiles, rng):
    drawn, arrived, work = np.zeros(M), np.zeros(M), np.zeros(M)
    for result in past.rounds:
        drawn += result.plan.cohort.counts
        arrived += result.delivered
        work += result.delivered * result.plan.profiles.num_steps
    rate = (arrived + 2 * (arrived.sum() + 1) / (drawn.sum() + 1)) / (drawn + 2)
    mean_work = work.sum() / arrived.sum() if arrived.any() else 1.0
    p = WEIGHTS / rate / ((work + 2 * mean_work) / (arrived + 2))
    return p / p.sum(), np.ones(M)


def fedacs(past, profiles, rng):
    p = WEIGHTS / ((1 - profiles.failure_rates) * profiles.num_steps)
    return p / p.sum(), np.ones(M)


def plain(past, profiles, rng):
    return WEIGHTS, np.ones(M)


def uniform(past, profiles, rng):
    return np.full(M, 1 / M), M * WEIGHTS


def f3ast(past, profiles, rng):
    rates = WEIGHTS
    for result in past.rounds:
        rates = 0.99 * rates + 0.01 * result.plan.cohort.counts / K
    behind = (WEIGHTS / rates).round(9)
    return indicator(np.array(sorted(range(M), key=lambda m: (-behind[m], m))[:K])), WEIGHTS / rates


def cafed(past, profiles, rng):
    states = [np.where(r.plan.cohort.counts > 0, r.delivered > 0, -1) for r in past.rounds]
    losses: dict[int, float] = {}
    for result in past.rounds:
        losses |= dict(zip(result.updates.clients.tolist(), result.updates.losses, strict=True))
    known = np.array([[state[m] >= 0 for m in range(M)] for state in states]).reshape(-1, M).sum(0)
    there = np.array([[state[m] == 1 for m in range(M)] for state in states]).reshape(-1, M).sum(0)
    rate = (there + 2 * (there.sum() + 1) / (known.sum() + 1)) / (known + 2)
    kept = np.full(M, True)
    if losses:
        f = np.array([losses.get(m, np.mean(list(losses.values()))) for m in range(M)])
        pairs = [(m, a[m], b[m]) for a, b in itertools.pairwise(states) for m in range(M)]
        stay = [sum(1 for each in pairs if each == (m, s, s)) + 1 for s in (0, 1) for m in range(M)]
        seen = [sum(1 for n, a, b in pairs if (n, a) == (m, s) and b >= 0) + 2 for s in (0, 1) for m in range(M)]
        correlation = (np.array(stay) / np.array(seen)).reshape(2, M).sum(0) - 1

        def error(kept):
            share = np.where(kept, WEIGHTS, 0) / WEIGHTS[kept].sum()
            return share @ f + f.max() * (np.abs(share - WEIGHTS).sum() / 2) ** 2

        for order in (-np.abs(correlation), rate):
            for m in np.argsort(order, kind="stable"):
                without = kept & (np.arange(M) != m)
                if without.any() and error(without) < error(kept) - 1e-12:
                    kept = without
    return kept / kept.sum(), M * WEIGHTS / rate


def oort(past, profiles, rng):
    t, loss, when = len(past.rounds), np.full(M, np.nan), np.zeros(M)
    for result in past.rounds:
        loss[result.updates.clients], when[result.updates.clients] = result.updates.losses, result.plan.index
    slow = np.minimum(1, np.quantile(profiles.num_steps, 0.3) / profiles.num_steps) ** 2
    known = ~np.isnan(loss)
    fresh = min(K * max(0.9 * 0.98**t, 0.3) if known.any() else K, M - known.sum())
    fresh = max(fresh, K - known.sum())

    def shared(score, amount):  # min(1, factor * score) adding up to the amount
        low, high = 0.0, 1e12
        for _ in range(300):
            middle = (low + high) / 2
            low, high = (middle, high) if np.minimum(1, middle * score).sum() < amount else (low, middle)
        return np.minimum(1, high * score)

    p = shared(np.where(known, 0, WEIGHTS * slow), fresh) if fresh else np.zeros(M)
    if fresh < K:
        u = (WEIGHTS * loss)[known]
        high = np.sort(u)[int(np.ceil(0.9 * (len(u) - 1)))]
        score = np.zeros(M)
        score[known] = (np.minimum(u, high) - u.min()) / max(np.ptp(u), 1e-12) + np.sqrt(
            0.1 * np.log(t + 1) / when[known]
        )
        score *= slow
        limit = 0.7 * np.sort(score[known])[::-1][int(K - fresh) - 1 if int(K - fresh) <= known.sum() else -1]
        pool = np.where(known & (score >= limit), np.maximum(score, 1e-9), 0)
        pool = pool if (pool > 0).sum() >= K - fresh else np.where(known, np.maximum(score, 1e-9), 0)
        p = p + shared(pool, K - fresh)
    return p / p.sum(), np.ones(M)


def alike(past, profiles, rng):
    return np.full(M, 1 / M), np.ones(M)


def tifl(past, profiles, rng):
    order = np.argsort(
        np.mean([each.num_steps for each in past.loop.planner.typical_profiles()], axis=0), kind="stable"
    )
    slow = np.isin(np.arange(M), order[4:])  # seven clients, two tiers
    chance = np.array([0.5, 0.5])
    if len(past.rounds) >= 10:
        losses = 0.5 * ((past.models[10] - TARGETS) ** 2).sum(axis=1)
        chance = np.array([1, 2]) / 3 if losses[slow].mean() > losses[~slow].mean() else np.array([2, 1]) / 3
    return np.where(slow, chance[1] / 3, chance[0] / 4), np.ones(M)


def fedcs(past, profiles, rng):
    taken = np.zeros(M)
    for candidates in itertools.permutations(range(M), 6):
        taken[sorted(candidates, key=lambda m: profiles.num_steps[m])[:K]] += 1  # of equals the first, in all orders
    return taken / taken.sum(), np.ones(M)


CASES: dict[str, tuple[Callable[[], samplers.Sampler], Reference]] = {
    "importance": (samplers.Importance, plain),
    "uniform": (samplers.Uniform, uniform),
    "fedacs": (samplers.HeterogeneityAware, fedacs),
    "fedacs-estimated": (lambda: samplers.HeterogeneityAware("estimated"), fedacs_estimated),
    "os-exact": (samplers.NormProportional, os_exact),
    "os-optimal": (lambda: samplers.NormProportional(budget="optimal"), os_optimal),
    "os-approximate": (lambda: samplers.NormProportional(budget="approximate", max_iterations=50), os_optimal),
    "os-stale": (lambda: samplers.NormProportional("stale"), os_stale),
    "os-first": (lambda: samplers.NormProportional("first_gradient", "optimal", reweight=False), os_first),
    "delta": (samplers.DiversityBased, delta),
    "clustered-size": (samplers.ClusteredBySize, plain),
    "clustered-similarity": (samplers.ClusteredBySimilarity, plain),
    "divfl": (samplers.SubmodularSelection, divfl),
    "divfl-samples": (lambda: samplers.SubmodularSelection("samples"), divfl_samples),
    "hics": (lambda: samplers.EntropyClusters(4, num_rounds=500, entropy_variance_threshold=1e9), hics),
    "powerofchoice": (lambda: samplers.PowerOfChoice(5), power_of_choice),
    "varianceoptimal": (lambda: samplers.VarianceOptimal(use_norms=True), variance_optimal),
    "workaware": (samplers.WorkAware, work_aware),
    "f3ast": (samplers.TrackedRates, f3ast),
    "cafed": (samplers.CorrelationAware, cafed),
    "oort": (samplers.UtilityBased, oort),
    "refl": (samplers.LeastAvailable, alike),
    "tifl": (samplers.Tiers, tifl),
    "fedcs": (samplers.FastestCandidates, fedcs),
    "consistent-delta": (lambda: samplers.Consistent(samplers.DiversityBased()), consistent_delta),
}


class Checker:
    """Compares each plan with the reference, and shows the reference each result."""

    def __init__(self, reference: Reference) -> None:
        self.reference, self.past = reference, Past()

    def on_round_start(self, loop, plan) -> None:
        self.past.model = loop.state.weights.numpy().copy()
        self.past.models.append(self.past.model)
        self.past.loop = loop
        p, c = self.reference(self.past, plan.profiles, generator(SEED, Purpose.SAMPLING, plan.index))
        assert plan.cohort.probabilities == pytest.approx(p, rel=1e-6, abs=1e-12), plan.index
        drawable = p > 0
        assert plan.cohort.coefficients[drawable] == pytest.approx(c[drawable], rel=1e-6), plan.index
        assert (plan.cohort.counts[~drawable] == 0).all()

    def on_round_end(self, loop, result) -> None:
        self.past.rounds.append(result)


def independently(sampler: samplers.Sampler) -> samplers.Drawing | None:
    """Return draws in which a client may come twice, for samplers without a way of their own."""
    return samplers.WithReplacement() if isinstance(sampler.drawing, samplers.Systematic) else None


def run(sampler: samplers.Sampler, *watchers, rounds: int = 20, resume_from=None, **settings) -> FederatedLoop:
    loop = made_loop(
        rounds=rounds,
        lr=LR,
        schedule=HeterogeneitySchedule(groups=[Group(1.0, (1, 6), (0.4, 0.85))]),
        sampling=SamplerSelection(sampler, K, independently(sampler)),
        channel=ChannelFailures(),
        weights=WEIGHTS.tolist(),
        evaluate_every=1000,
        callbacks=watchers,
        seed=SEED,
        **({"calibration": Calibration("none")} | settings),
    )
    loop.run(QuadraticModule(D).double(), QuadraticFederation(TARGETS), resume_from)
    return loop


class Recorder:
    """Keeps the results."""

    def __init__(self) -> None:
        self.results: list = []

    def on_round_end(self, loop, result) -> None:
        self.results.append(result)


@pytest.mark.parametrize("name", CASES)
def test_law_and_factors_over_twenty_rounds(name: str) -> None:
    make, reference = CASES[name]
    checker = Checker(reference)
    run(make(), checker)
    results = checker.past.rounds
    assert len(results) == 20
    counts = np.array([result.plan.cohort.counts for result in results])
    delivered = np.array([result.delivered for result in results])
    assert (delivered.sum(axis=1) == 0).any(), "no empty round was tested"
    assert (delivered < counts).any(), "no failure was tested"
    if type(make()).draw is samplers.Sampler.draw and independently(make()):
        assert counts.max() > 1, "no repeated draw was tested"


@pytest.mark.parametrize("name", ["os-stale", "varianceoptimal"])
def test_remembered_norms(name: str) -> None:
    make, reference = CASES[name]
    sampler, checker = make(), Checker(reference)
    run(sampler, checker, rounds=4)
    arrived, norms = checker.past.arrived(), sampler._last_norms.norms
    assert np.isnan(norms).sum() == M - len(arrived) > 0
    for client, row in arrived.items():
        assert norms[client] == pytest.approx(np.linalg.norm(row), rel=1e-6)


@pytest.mark.parametrize("name", ["clustered-similarity", "divfl"])
def test_remembered_updates(name: str) -> None:
    make, reference = CASES[name]
    sampler, checker = make(), Checker(reference)
    run(sampler, checker, rounds=4)
    memory, arrived = sampler._memory, checker.past.arrived()
    rows = memory.rows.dense().numpy()
    for client, row in arrived.items():
        assert rows[client] == pytest.approx(row, rel=1e-6)
    absent = [client for client in range(M) if client not in arrived]
    assert absent
    expected = -TARGETS if name == "divfl" else np.zeros((M, D))  # a failed upload changes nothing
    assert rows[absent] == pytest.approx(expected[absent], rel=1e-6)
    assert memory.products == pytest.approx(rows @ rows.T, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_state_survives_a_file(name: str) -> None:
    make, _ = CASES[name]
    unbroken, resumed = Recorder(), Recorder()
    run(make(), unbroken, rounds=12)
    file = io.BytesIO()
    torch.save(run(make(), rounds=6).state_dict(), file)
    file.seek(0)
    run(make(), resumed, rounds=12, resume_from=torch.load(file, weights_only=True))
    assert len(resumed.results) == 6
    for first, other in zip(unbroken.results[6:], resumed.results, strict=True):
        for name in ("probabilities", "coefficients", "counts"):
            assert np.array_equal(getattr(first.plan.cohort, name), getattr(other.plan.cohort, name))


@pytest.mark.parametrize("name", CASES)
def test_law_is_known_before_anybody_is_asked(name: str) -> None:
    num_steps = np.arange(1, M + 1)
    profiles = made_profiles(
        weights=WEIGHTS, num_steps=num_steps, failure_rates=np.linspace(0, 0.5, M), accumulation=num_steps.astype(float)
    )
    cohort = SamplerSelection(CASES[name][0](), K).expected_cohort(profiles)
    assert cohort.probabilities.sum() == pytest.approx(1)
    assert np.isfinite(cohort.coefficients).all()
    assert (cohort.counts == 0).all()


def test_hics_falls_back_to_similarity_where_entropies_differ_much() -> None:
    recorder = Recorder()
    run(samplers.EntropyClusters(4, entropy_variance_threshold=0.0), recorder)
    warm_up = -(-M // K)
    assert recorder.results[warm_up - 1].plan.cohort.probabilities.max() == pytest.approx(1 / K)
    for result in recorder.results[warm_up:]:
        assert result.plan.cohort.probabilities == pytest.approx(WEIGHTS)
        assert result.plan.cohort.counts.sum() == K


@pytest.mark.parametrize("has_bias", [True, False])
def test_hics_reads_the_whole_output_layer(has_bias: bool) -> None:
    recorder = Recorder()
    sampler = samplers.EntropyClusters(2, 4, has_bias, entropy_variance_threshold=1e9)
    run(sampler, recorder)
    assert sampler._memory.rows.dense().shape == (M, 4)
    assert all(result.plan.cohort.counts.sum() == K for result in recorder.results)


def test_hics_draws_as_often_as_it_says() -> None:
    sampler = samplers.EntropyClusters(4, entropy_variance_threshold=1e9)
    run(sampler)
    num_steps = np.ones(M, dtype=np.int64)
    p = sampler.probabilities(
        made_profiles(weights=WEIGHTS, num_steps=num_steps, failure_rates=np.zeros(M), accumulation=np.ones(M)), K
    )
    rng = np.random.default_rng(0)
    counts = np.array([sampler.draw(p, K, rng) for _ in range(5000)])
    assert np.ptp(p) > 0.01
    assert (counts.sum(axis=1) == K).all()
    assert counts.mean(axis=0) == pytest.approx(K * p, abs=0.03)


def test_selections_that_are_impossible_are_refused() -> None:
    profiles = made_profiles(
        weights=np.array([0.5, 0.5, 0.0]),
        num_steps=np.ones(3, dtype=np.int64),
        failure_rates=np.zeros(3),
        accumulation=np.ones(3),
    )
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="3 clients cannot be chosen among 2 candidates"):
        samplers.PowerOfChoice().prepare(profiles, 3, None, rng)
    with pytest.raises(ValueError, match="4 distinct clients were asked for, but there are 3"):
        samplers.SubmodularSelection().prepare(profiles, 4, None, rng)
    with pytest.raises(ValueError, match="4 distinct clients were asked for, but there are 3"):
        samplers.EntropyClusters(4).probabilities(profiles, 4)
    with pytest.raises(ValueError, match="above 0 wherever the weight is"):
        samplers.Consistent(samplers.Importance()).coefficients(profiles, np.array([1.0, 0.0, 0.0]))


@pytest.mark.parametrize(
    "setting",
    [{"num_classes": 1}, {"output_size": 15}, {"has_bias": False}, {"temperature": 0.0}, {"num_rounds": 0}],
)
def test_impossible_output_layers_are_refused(setting: dict) -> None:
    with pytest.raises(ValueError, match=r"output_size|temperature|num_rounds"):
        samplers.EntropyClusters(**setting)


def test_asking_everybody_is_charged() -> None:
    charged = {}
    for name in ("importance", "os-exact", "os-first", "os-stale", "divfl", "powerofchoice"):
        recorder = Recorder()
        run(CASES[name][0](), recorder, rounds=2)
        charged[name] = [result.plan.probed_steps for result in recorder.results]
        steps = [int(result.plan.profiles.num_steps.sum()) for result in recorder.results]
    assert charged["importance"] == charged["os-stale"] == [0, 0]
    assert charged["os-exact"] == steps
    assert charged["os-first"] == [M, M]
    assert charged["divfl"] == [M, 0]
    assert charged["powerofchoice"] == [2, 2]  # five forward passes, a third of a step each


@pytest.mark.parametrize(("name", "charge"), [("os-first", M), ("powerofchoice", 2)])
def test_a_plan_that_is_made_several_times_asks_once(name: str, charge: int) -> None:
    recorder = Recorder()
    run(CASES[name][0](), recorder, rounds=2, solver=SGD(proximal=2.0), calibration=Calibration("round", "local"))
    assert [result.plan.probed_steps for result in recorder.results] == [charge, charge]
    calibrated = recorder.results[0].plan.learning_rate != LR
    assert calibrated == (name != "powerofchoice")  # which selects by rule, and keeps its rate
