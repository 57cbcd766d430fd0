"""Every algorithm against the objective it is predicted to optimise, by the basis trick.

To add an algorithm, add a line to ``ALGORITHMS``: name, sampler, aggregator, and the Omega it should have, up to a
factor, as a function of w, q, A and gain: one row for each round, one column for each client. The gain is what A
becomes at a finite learning rate. Parts are made afresh for each test. ``python tests/test_omega_table.py`` prints the
errors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fl_lightning import aggregators, samplers
from fl_lightning.aggregators import Aggregator
from fl_lightning.samplers import Independent, Sampler
from fl_lightning.uploads import (
    Clip,
    GaussianMechanism,
    OverTheAir,
    Quantized,
    RandomK,
    Signs,
    TopK,
    Upload,
    Uploads,
)
from reference.quadratic_clients import System, made_labels, measured_weights, predicted_weights, reported_weights

TOLERANCE = 0.02

SPEC_STATIC = System(
    weights=np.array([0.1, 0.2, 0.15, 0.25, 0.1, 0.2]),
    num_draws=3,
    learning_rate=2e-3,
    min_steps=np.array([1, 3, 5, 10, 20, 30]),
    max_steps=np.array([1, 3, 5, 10, 20, 30]),
    min_failure=np.array([0.45, 0.4, 0.3, 0.2, 0.1, 0.0]),
    max_failure=np.array([0.45, 0.4, 0.3, 0.2, 0.1, 0.0]),
)
SPEC_DYNAMIC = replace(
    SPEC_STATIC,
    min_steps=np.array([1, 1, 1, 20, 20, 20]),
    max_steps=np.array([10, 10, 10, 30, 30, 30]),
    min_failure=np.array([0.4, 0.4, 0.4, 0.0, 0.0, 0.0]),
    max_failure=np.array([0.5, 0.5, 0.5, 0.1, 0.1, 0.1]),
)


def random_system(seed: int, num_kinds: int, dynamic: bool) -> System:
    rng = np.random.default_rng(seed)
    steps, rates = rng.integers(2, 25, num_kinds), rng.uniform(0, 0.6, num_kinds)
    return System(
        weights=rng.dirichlet(np.full(num_kinds, 4.0)),
        num_draws=2,
        learning_rate=2e-3,
        min_steps=np.maximum(1, steps // 2) if dynamic else steps,
        max_steps=steps + steps // 2 if dynamic else steps,
        min_failure=rates / 2 if dynamic else rates,
        max_failure=np.minimum(0.8, 1.5 * rates) if dynamic else rates,
    )


SYSTEMS = {
    "spec-static": SPEC_STATIC,
    "spec-dynamic": SPEC_DYNAMIC,
    "random-static": random_system(1, 5, dynamic=False),
    "random-dynamic": random_system(2, 4, dynamic=True),
}


@dataclass(frozen=True)
class Algorithm:
    name: str
    sampler: Callable[[], Sampler]
    aggregator: Callable[[], Aggregator]
    omega: Callable[..., np.ndarray]  # of w, q, A and gain
    proximal: float = 0.0  # mu of the local solver
    copies: int = 160  # clients of each kind; fewer where each client is asked for its start or shift
    num_rounds: int = 320
    uploads: Callable[[], list[Upload]] = list
    server_scale: float = 1.0  # small where the prediction is a limit for small steps, large where local work is short
    limit: int | None = None  # the most local steps that anybody is asked for

    def on(self, system: str) -> System:
        return replace(SYSTEMS[system], proximal=self.proximal, server_scale=self.server_scale, limit=self.limit)


def total(values):
    """Sum over the clients of each round."""
    return values.sum(axis=-1, keepdims=True)


def fedavg(w, q, a, gain):
    return w * (1 - q) * gain


def fedavg_received(w, q, a, gain):
    return w * (1 - q) * gain / total(w * (1 - q))


def links_corrected(w, q, a, gain):
    return w * gain


def equal_weights(w, q, a, gain):
    return gain


def fednova(w, q, a, gain):
    """Tau of each round is the mean A of what arrives."""
    return w * (1 - q) * gain / a * total(w * (1 - q) * a) / total(w * (1 - q))


def fednova_omega(w, q, a, gain):
    return w * (1 - q) * gain / a * total(w * a)


def both_corrected(w, q, a, gain):
    """Tau of each round is the mean A of all clients."""
    return w * gain / a * total(w * a)


def fedacs(w, q, a, gain):
    return w * gain / a / total(w / ((1 - q) * a))


def fedacs_of_links(w, q, a, gain):
    """Draws correct the links; tau of each round is the mean A of what arrives, which is that of all."""
    return w * gain / a * total(w * a) / total(w / (1 - q))


def fedacs_mean(w, q, a, gain):
    return w * (1 - q) * gain / ((1 - q) * a).mean(axis=0)


def incomplete_work(w, q, a, gain):
    return w * (1 - q) * gain / a * a.max(axis=-1, keepdims=True)


def exact(w, q, a, gain):
    return w


def scaled_by_clients(w, q, a, gain):
    """The step of each round is as long as FedAvg's."""
    return w * gain / a * total(w * (1 - q) * a)


def within_tolerance(rounds: int):
    def omega(w, q, a, gain):
        """A client counts while its last model is within the lag tolerance; q of several rounds are unrelated."""
        return w * gain * (1 - q.mean(axis=0) ** (rounds + 2))

    return omega


def rectified(gamma: float):
    def omega(w, q, a, gain):
        """A remembered update counts by its age, which is geometric; q of several rounds are unrelated."""
        m = a.shape[-1]
        k = m // 2 if m % 5 else 2 * m // 5
        arriving = (1 - (1 - w) ** k) * (1 - q.mean(axis=0))
        return w * gain * arriving / (1 - gamma * (1 - arriving))

    return omega


def label_matched(w, q, a, gain):
    """The shares of arrivals nearest to FedAvg's whose labels are mixed as in all data; nobody's is below 0 here."""
    mixes = made_labels(w.shape[-1]) / made_labels(w.shape[-1]).sum(axis=1, keepdims=True)
    usual = w * (1 - q) / total(w * (1 - q))
    shares = usual + (w - usual) @ mixes @ np.linalg.inv(mixes.T @ mixes) @ mixes.T
    assert (shares > 0).all()
    return shares * gain / total(shares / (1 - q))


def weights_dropped(w, q, a, gain):
    return (1 - q) * gain


def fastest_first(w, q, a, gain):
    """One of d candidates is taken where fewer than K of the others are faster; the time of a round is its steps."""
    m = a.shape[-1]
    k = m // 2 if m % 5 else 2 * m // 5
    d = min(max(k, 60), m)
    ways = [sum(math.comb(r, i) * math.comb(m - 1 - r, d - 1 - i) for i in range(min(k, d))) for r in range(m)]
    law = np.array([each / math.comb(m - 1, d - 1) for each in ways])
    taken = np.empty_like(a)
    for row, times in zip(taken, a, strict=True):
        by_rank = np.empty(m)
        by_rank[np.argsort(times)] = law
        row[:] = [by_rank[times == time].mean() for time in times]
    return taken * (1 - q) * gain


def private(norm: float, noise_multiplier: float) -> list[Upload]:
    step = GaussianMechanism(Clip(norm), noise_multiplier=noise_multiplier, key=0)
    step.begin(Independent())
    return [step]


IMPORTANCE, UNIFORM, FULL = samplers.Importance, samplers.Uniform, samplers.FullParticipation
FEDACS = samplers.HeterogeneityAware
MEAN, NOVA, VARP = aggregators.AnonymousMean, aggregators.NormalizedMean, aggregators.LastKnownUpdates
OS, CONSISTENT = samplers.NormProportional, samplers.Consistent
LAG = aggregators.LagTolerant
AWE, PBC, MOMENTUM = aggregators.EchoedInnovations, aggregators.PostponedBroadcast, aggregators.ServerMomentum

ALGORITHMS = [
    Algorithm("FedAvg", IMPORTANCE, MEAN, fedavg),
    Algorithm("FedAvg over what arrived, many draws", IMPORTANCE, lambda: MEAN("received"), fedavg_received),
    Algorithm("FedAvg, uniform", UNIFORM, MEAN, fedavg),
    Algorithm("FedAvg, full participation", FULL, MEAN, fedavg),
    Algorithm("FedProx", IMPORTANCE, MEAN, fedavg, proximal=20.0),
    Algorithm("FedACS", FEDACS, MEAN, fedacs),
    Algorithm("FedACS, mean knowledge", lambda: FEDACS("mean"), MEAN, fedacs_mean),
    Algorithm("FedACS, proximal", FEDACS, MEAN, fedacs, proximal=20.0),
    Algorithm("c-a-FedAvg", IMPORTANCE, aggregators.CommunicationAware, links_corrected),
    Algorithm("FedNova", IMPORTANCE, NOVA, fednova),
    Algorithm("FedNova, tau omega", IMPORTANCE, lambda: NOVA("omega"), fednova_omega),
    Algorithm("c-a-FedNova", IMPORTANCE, aggregators.CommunicationAwareNormalizedMean, both_corrected),
    Algorithm("scheme C", IMPORTANCE, aggregators.IncompleteWork, incomplete_work),
    Algorithm("FedVARP, original", IMPORTANCE, VARP, links_corrected),
    Algorithm("FedVARP, original, uniform", UNIFORM, VARP, links_corrected),
    Algorithm("FedVARP, paper", IMPORTANCE, lambda: VARP("paper"), links_corrected),
    Algorithm("FedVARP, importance", IMPORTANCE, lambda: VARP("importance"), links_corrected),
    Algorithm("FedVARP, normalised", IMPORTANCE, lambda: VARP(normalize_memory=True), both_corrected),
    Algorithm("MIFA", IMPORTANCE, aggregators.MemorizedMean, links_corrected),
    Algorithm("FedAR", IMPORTANCE, aggregators.RectifiedMean, rectified(0.9)),
    Algorithm("FedAR, short memory", IMPORTANCE, lambda: aggregators.RectifiedMean(0.5), rectified(0.5)),
    Algorithm("FedStale", IMPORTANCE, aggregators.StaleMixture, links_corrected),
    Algorithm("FedAU", IMPORTANCE, aggregators.ParticipationIntervals, links_corrected),
    Algorithm("Debiasing FedAvg", IMPORTANCE, aggregators.EstimatedParticipation, links_corrected, num_rounds=640),
    Algorithm(
        "FedAWE, equal weights", IMPORTANCE, lambda: AWE(weighted=False), equal_weights, copies=16, num_rounds=1000
    ),
    Algorithm("FedAWE", IMPORTANCE, AWE, links_corrected, copies=16, num_rounds=1000),
    Algorithm(
        "FedAWE, normalised", IMPORTANCE, lambda: AWE(normalize=True), both_corrected, copies=16, num_rounds=1000
    ),
    Algorithm("FedPBC", FULL, PBC, links_corrected, copies=8, server_scale=0.5),
    Algorithm("FAVANO", UNIFORM, aggregators.ReweightedProgress, fednova_omega, copies=24, num_rounds=1000),
    Algorithm("SAFA", FULL, aggregators.LagTolerant, within_tolerance(5), copies=12, num_rounds=640),
    Algorithm("SAFA, short tolerance", FULL, lambda: LAG(0), within_tolerance(0), copies=12, num_rounds=640),
    Algorithm("SCAFFOLD", IMPORTANCE, aggregators.ControlVariates, exact, copies=12),
    Algorithm("FOCUS", IMPORTANCE, aggregators.PushPull, exact, copies=12),
    Algorithm("FedSUM", IMPORTANCE, aggregators.UplinkMerge, exact, copies=12),
    Algorithm("FedDyn", IMPORTANCE, lambda: aggregators.DynamicRegularizer(80.0), exact, copies=12, proximal=80.0),
    Algorithm("amplified FedAvg", IMPORTANCE, lambda: aggregators.Amplified(MEAN()), fedavg),
    Algorithm("FedACS with control variates", FEDACS, aggregators.AdaptiveControlVariates, fedacs, copies=12),
    Algorithm(
        "limited FedACS",
        lambda: FEDACS("mean"),
        lambda: MOMENTUM(MEAN(), momentum=0.5, lr=0.5),
        fedacs_mean,
        num_rounds=640,
        server_scale=3.0,
        limit=4,
    ),
    Algorithm(
        "FedACS-CV",
        lambda: FEDACS("mean"),
        lambda: MOMENTUM(aggregators.AdaptiveControlVariates(), momentum=0.5, lr=0.5),
        fedacs_mean,
        copies=12,
        server_scale=3.0,
        limit=4,
    ),
    Algorithm("FedAvgM", IMPORTANCE, lambda: MOMENTUM(MEAN(), lr=0.1), fedavg),
    Algorithm("FedACS with server momentum", FEDACS, lambda: MOMENTUM(MEAN(), lr=0.1), fedacs),
    Algorithm("OS", OS, MEAN, fedavg),
    Algorithm("OS, OCS", lambda: OS(budget="optimal"), MEAN, fedavg),
    Algorithm("OS, AOCS with stale norms", lambda: OS("stale", "approximate"), MEAN, fedavg),
    Algorithm("OS, norms of first gradients", lambda: OS("first_gradient"), MEAN, fedavg),
    Algorithm("DELTA", samplers.DiversityBased, MEAN, fedavg),
    Algorithm("clustered by size", samplers.ClusteredBySize, MEAN, fedavg),
    Algorithm("clustered by similarity", samplers.ClusteredBySimilarity, MEAN, fedavg, copies=16, num_rounds=1200),
    Algorithm("variance-optimal", samplers.VarianceOptimal, MEAN, scaled_by_clients),
    Algorithm("variance-optimal with norms", lambda: samplers.VarianceOptimal(True), MEAN, scaled_by_clients),
    Algorithm("work-aware", samplers.WorkAware, MEAN, scaled_by_clients),
    Algorithm("FedCote", samplers.LabelMatching, MEAN, label_matched),
    Algorithm("FedCote, one step", lambda: samplers.LabelMatching(exact=False), MEAN, label_matched),
    Algorithm(
        "TiFL, tiers alike", lambda: samplers.Tiers(adaptive=False), MEAN, weights_dropped, copies=2, num_rounds=9000
    ),
    Algorithm("REFL, always available", samplers.LeastAvailable, MEAN, weights_dropped),
    Algorithm("FedCS", lambda: samplers.FastestCandidates(60), MEAN, fastest_first, copies=16, num_rounds=1200),
    Algorithm("FedACS, QSGD 4 bits", FEDACS, MEAN, fedacs, uploads=lambda: [Quantized(4)], num_rounds=640),
    Algorithm("FedACS, random-k", FEDACS, MEAN, fedacs, uploads=lambda: [RandomK(0.5)], num_rounds=640),
    Algorithm(
        "FedACS, random-k with feedback", FEDACS, MEAN, fedacs, uploads=lambda: [RandomK(0.5, True)], num_rounds=1280
    ),
    Algorithm("FedACS, top-k with feedback", FEDACS, MEAN, fedacs, uploads=lambda: [TopK(0.5)], num_rounds=1280),
    Algorithm("FedAvg, signs with feedback", IMPORTANCE, MEAN, fedavg, uploads=lambda: [Signs()], num_rounds=1280),
    Algorithm("DELTA made consistent", lambda: CONSISTENT(samplers.DiversityBased()), MEAN, scaled_by_clients),
    Algorithm("FedACS of the links, FedNova", lambda: FEDACS(corrects="links"), NOVA, fedacs_of_links),
    Algorithm("DP-FedACS", lambda: FEDACS(corrects="links"), NOVA, fedacs_of_links, uploads=lambda: private(2.0, 0.5)),
    Algorithm("DP-FedAvg", IMPORTANCE, MEAN, fedavg, uploads=lambda: private(2.0, 0.2)),
    Algorithm("OTA-FedACS", FEDACS, MEAN, fedacs, uploads=lambda: [OverTheAir(10.0)]),
]

# Those who must learn before they report it.
LEARNED = [
    Algorithm("F3AST", samplers.TrackedRates, MEAN, fedavg),
    Algorithm(
        "CA-Fed, nobody left out",
        lambda: samplers.CorrelationAware(bias=1e9),
        MEAN,
        links_corrected,
        copies=24,
        num_rounds=640,
    ),
]


class RankedByAvailability(samplers.TrackedRates):
    """F3AST as a public implementation has it: ranks by availability, which is not how often a client was drawn."""

    traits = samplers.SamplerTraits(learns=True, scope="none")

    def observe(self, result):
        pass


class TrackedWithoutAck(aggregators.PushPull):
    """FOCUS as its authors' code has it, which knows no lost uploads: clients take over their vector in any case."""

    def trains(self, plan, delivered):
        return plan.cohort.clients


class MergedWithoutAck(aggregators.UplinkMerge):
    """FedSUM in the same way."""

    def trains(self, plan, delivered):
        return plan.cohort.clients


class DividedByAvailability(samplers.CorrelationAware):
    """CA-Fed that divides by how often a client is there, as its authors' code, and not by how often it arrives."""

    def _rates(self, num_clients):
        return np.ones(num_clients)


# What is wrong, with the Omega that it was meant to have.
WRONG = [
    Algorithm("FedNova, tau received", IMPORTANCE, lambda: NOVA("received"), fednova),
    Algorithm("FedNova, tau selected", IMPORTANCE, lambda: NOVA("selected"), fednova),
    Algorithm("SCAFFOLD without ACK", IMPORTANCE, lambda: aggregators.ControlVariates("always"), exact),
    Algorithm("FOCUS without ACK", IMPORTANCE, TrackedWithoutAck, exact),
    Algorithm("FedSUM without ACK", IMPORTANCE, MergedWithoutAck, exact),
    Algorithm("CA-Fed by availability", lambda: DividedByAvailability(bias=1e9), MEAN, links_corrected),
    Algorithm("F3AST ranked by availability", RankedByAvailability, MEAN, fedavg),
    Algorithm("OS without reweighting", lambda: samplers.NormProportional(reweight=False), MEAN, fedavg),
]

# Selections by rule, which promise no objective; measured against w, the one that was asked for.
SELECTIONS = [
    Algorithm("DivFL", samplers.SubmodularSelection, MEAN, exact),
    Algorithm("DivFL, weights of the selected", lambda: samplers.SubmodularSelection("samples"), MEAN, exact),
    Algorithm("HiCS-FL", lambda: samplers.EntropyClusters(num_classes=6), MEAN, exact),
    Algorithm("power-of-choice", samplers.PowerOfChoice, MEAN, exact),
    Algorithm("FedExP", IMPORTANCE, lambda: aggregators.Extrapolated(MEAN()), exact),
    Algorithm("CA-Fed", samplers.CorrelationAware, MEAN, exact),
    Algorithm("Oort", samplers.UtilityBased, MEAN, exact),
    Algorithm("PyramidFL", lambda: samplers.UtilityBased(most_work=11.0), MEAN, exact, limit=4),
    Algorithm("TiFL", samplers.Tiers, MEAN, exact),
]


def error(algorithm: Algorithm, system: str, num_rounds: int, copies: int, seed: int = 0) -> float:
    """L1 distance of the measured from the predicted weights."""
    parts = algorithm.sampler(), algorithm.aggregator()
    uploads = Uploads(algorithm.uploads())
    measured = measured_weights(algorithm.on(system), *parts, num_rounds, copies, seed, uploads)
    predicted = predicted_weights(algorithm.on(system), algorithm.omega, False, copies, num_rounds, seed)
    return float(np.abs(measured - predicted).sum())


def by_name(algorithm: Algorithm) -> str:
    return algorithm.name


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS + LEARNED, ids=by_name)
def test_measured_weights_are_the_predicted_ones(algorithm: Algorithm, system: str) -> None:
    assert error(algorithm, system, algorithm.num_rounds, algorithm.copies) < TOLERANCE


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=by_name)
def test_reported_weights_are_the_predicted_ones(algorithm: Algorithm, system: str) -> None:
    """What the plan tells calibration, diagnosis and the log, before anything is drawn."""
    reported = reported_weights(algorithm.on(system), algorithm.sampler(), algorithm.aggregator(), 256, copies=32)
    predicted = predicted_weights(algorithm.on(system), algorithm.omega, True, copies=32, num_rounds=256)
    assert np.abs(reported - predicted).sum() < 0.5 * TOLERANCE


def test_feddyn_needs_rounds_in_inverse_proportion_to_alpha() -> None:
    """A client's term is learned at the rate alpha eta A per arrival: a tenth of alpha takes ten times the rounds."""
    dyn = Algorithm("", IMPORTANCE, lambda: aggregators.DynamicRegularizer(8.0), exact, copies=4, proximal=8.0)
    assert error(dyn, "spec-static", 320, 4) > 3 * TOLERANCE
    assert error(dyn, "spec-static", 3200, 4) < TOLERANCE


@pytest.mark.parametrize("algorithm", WRONG, ids=by_name)
def test_wrong_variants_miss_the_predicted_weights(algorithm: Algorithm) -> None:
    assert error(algorithm, "spec-static", 2000, copies=1) > 3 * TOLERANCE


@pytest.mark.parametrize("algorithm", SELECTIONS, ids=by_name)
def test_selections_by_rule_optimise_something_else(algorithm: Algorithm) -> None:
    assert error(algorithm, "spec-static", 300, copies=8) > 3 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("system", ["spec-static", "spec-dynamic"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=by_name)
def test_measured_weights_with_few_draws_over_many_rounds(algorithm: Algorithm, system: str) -> None:
    if algorithm.name == "FedAvg over what arrived, many draws":
        pytest.skip("a ratio of sums, which is biased when few clients are drawn")
    assert error(algorithm, system, 60_000, copies=1) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_postponed_broadcast_with_sampling(system: str) -> None:
    """Clients that are drawn rarely drift far, so only short steps come close to the prediction."""
    algorithm = Algorithm("FedPBC, sampled", IMPORTANCE, PBC, links_corrected, server_scale=0.25)
    assert error(algorithm, system, 1200, copies=32) < TOLERANCE


if __name__ == "__main__":
    print("| algorithm |", " | ".join(SYSTEMS), "|")
    for each in ALGORITHMS + LEARNED:
        cells = [f"{error(each, system, each.num_rounds, each.copies):.4f}" for system in SYSTEMS]
        print(f"| {each.name} |", " | ".join(cells), "|", flush=True)
    for each in WRONG:
        print(f"| {each.name} (wrong) | {error(each, 'spec-static', 2000, copies=1):.4f} |", flush=True)
    for each in SELECTIONS:
        for name in ("spec-static", "spec-dynamic"):
            weights = measured_weights(each.on(name), each.sampler(), each.aggregator(), 1000, copies=8)
            print(
                f"| {each.name}, {name} | optimises", " ".join(f"{weight:.3f}" for weight in weights), "|", flush=True
            )
