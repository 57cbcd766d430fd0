"""Each aggregator against a few lines of numpy, over rounds with failures, repeated draws and nothing delivered."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fl_lightning import theory
from fl_lightning.aggregators import (
    AdaptiveControlVariates,
    Aggregator,
    Amplified,
    AnonymousMean,
    CommunicationAware,
    CommunicationAwareNormalizedMean,
    ControlVariates,
    DynamicRegularizer,
    EchoedInnovations,
    EstimatedParticipation,
    Extrapolated,
    IncompleteWork,
    LagTolerant,
    LastKnownUpdates,
    MemorizedMean,
    NormalizedMean,
    ParticipationIntervals,
    PostponedBroadcast,
    PushPull,
    RecentMean,
    RectifiedMean,
    ReweightedProgress,
    ServerAdam,
    ServerMomentum,
    ServerYogi,
    StaleMixture,
    UplinkMerge,
)
from fl_lightning.server.rates import Calibration
from fl_lightning.types import Cohort, Profiles
from made import made_profiles
from reference import aggregation as reference
from reference.made_rounds import EMPTY_ROUNDS, D, K, M, made_rounds, played, trajectory
from systems import made_plan

Make = Callable[[], Aggregator]


def fedar(gamma):
    def step(memory, r, x):
        """The last update of everybody by its age, over the weight of who ever arrived."""
        rows = memory.setdefault("rows", {})
        rows |= {m: (r.index, r.delta(m, x)) for m in range(M) if r.z[m] > 0}
        total = sum((r.w[m] * gamma ** (r.index - when) * y for m, (when, y) in rows.items()), np.zeros(D))
        return r.lr * r.scale * total / max(sum(r.w[m] for m in rows), 1e-12)

    return step


MEMORYLESS: dict[str, tuple[Make, Callable]] = {
    "FedAvg": (AnonymousMean, reference.fedavg),
    "FedAvg received": (lambda: AnonymousMean("received"), reference.fedavg_received),
    "c-a-FedAvg": (CommunicationAware, reference.ca_fedavg),
    "c-a-FedAvg capped": (lambda: CommunicationAware(max_inverse=1.5), reference.ca_fedavg_capped),
    "FedNova gamma": (NormalizedMean, reference.fednova(reference.tau_gamma)),
    "FedNova omega": (lambda: NormalizedMean("omega"), reference.fednova(reference.tau_omega)),
    "FedNova received": (lambda: NormalizedMean("received"), reference.fednova(reference.tau_received)),
    "FedNova selected": (lambda: NormalizedMean("selected"), reference.fednova(reference.tau_selected)),
    "FedNova number": (lambda: NormalizedMean(7.5), reference.fednova(lambda r: 7.5)),
    "c-a-FedNova": (CommunicationAwareNormalizedMean, reference.ca_fednova),
    "scheme C": (IncompleteWork, reference.scheme_c(None)),
    "scheme C nominal": (lambda: IncompleteWork(12), reference.scheme_c(12)),
}
# What stays where it is when nothing arrives, though it remembers.
PATIENT: dict[str, tuple[Make, Callable]] = {
    "FedAU": (ParticipationIntervals, reference.fedau(50, 1.0)),
    "FedAU cutoff": (lambda: ParticipationIntervals(cutoff=3, server_lr=0.5), reference.fedau(3, 0.5)),
    "Debiasing FedAvg": (EstimatedParticipation, reference.debiased),
    "FedAWE": (EchoedInnovations, reference.fedawe(True, False)),
    "FedAWE equal": (lambda: EchoedInnovations(weighted=False), reference.fedawe(False, False)),
    "FedAWE normalised": (lambda: EchoedInnovations(normalize=True, server_lr=0.5), reference.fedawe(True, True, 0.5)),
    "FedPBC": (PostponedBroadcast, reference.fedpbc),
    "SCAFFOLD": (ControlVariates, reference.scaffold("ack")),
    "FedDyn": (lambda: DynamicRegularizer(0.5), reference.feddyn(0.5)),
    "FedExP": (lambda: Extrapolated(AnonymousMean()), reference.fedexp(1e-3)),
    "FAVANO": (ReweightedProgress, reference.favano),
    "adaptive controls": (AdaptiveControlVariates, reference.adaptive_controls(5.0, 0.97)),
    "adaptive controls, replaced": (lambda: AdaptiveControlVariates(0, 0.5), reference.adaptive_controls(0, 0.5)),
    "SCAFFOLD always": (lambda: ControlVariates("always"), reference.scaffold("always")),
}
# What memory moves on.
RESTLESS: dict[str, tuple[Make, Callable]] = {
    "FedVARP original": (LastKnownUpdates, reference.fedvarp("original")),
    "FedVARP paper": (lambda: LastKnownUpdates("paper"), reference.fedvarp("paper")),
    "FedVARP importance": (lambda: LastKnownUpdates("importance"), reference.fedvarp("importance")),
    "FedVARP normalised": (lambda: LastKnownUpdates("original", True), reference.fedvarp("original", True)),
    "FedVARP paper normalised": (lambda: LastKnownUpdates("paper", True), reference.fedvarp("paper", True)),
    "MIFA": (MemorizedMean, reference.mifa),
    "ACED": (lambda: RecentMean(2), reference.aced(2)),
    "FedAR": (lambda: RectifiedMean(0.7), fedar(0.7)),
    "FedAR is MIFA over who ever arrived": (lambda: RectifiedMean(1.0), fedar(1.0)),
    "SAFA": (lambda: LagTolerant(1), reference.safa(1)),
    "FedStale": (lambda: StaleMixture(0.3), reference.fedstale(0.3)),
    "FOCUS": (PushPull, reference.tracking(common=False)),
    "FedSUM": (UplinkMerge, reference.tracking(common=True)),
    "amplified FedAvg": (lambda: Amplified(AnonymousMean(), 3, 2.5), reference.amplified(reference.fedavg, 3, 2.5)),
    "FedAvgM": (lambda: ServerMomentum(AnonymousMean()), reference.with_momentum(reference.fedavg, 0.9, 1.0)),
    "FedAdam": (lambda: ServerAdam(AnonymousMean()), reference.with_adam(reference.fedavg, 0.01, 0.9, 0.99, 1e-3)),
    "FedYogi": (
        lambda: ServerYogi(AnonymousMean(), 0.02, 0.8, 0.9, 1e-2),
        reference.with_adam(reference.fedavg, 0.02, 0.8, 0.9, 1e-2, yogi=True),
    ),
    "FedVARP with server momentum": (
        lambda: ServerMomentum(LastKnownUpdates("paper"), 0.5, 0.7),
        reference.with_momentum(reference.fedvarp("paper"), 0.5, 0.7),
    ),
    "FedAWE with server Adam": (
        lambda: ServerAdam(EchoedInnovations()),
        reference.with_adam(reference.fedawe(True, False), 0.01, 0.9, 0.99, 1e-3),
    ),
    "SCAFFOLD with server momentum": (
        lambda: ServerMomentum(ControlVariates("always")),
        reference.with_momentum(reference.scaffold("always"), 0.9, 1.0),
    ),
}
ALL = MEMORYLESS | PATIENT | RESTLESS


def settings(cases: dict[str, tuple[Make, Callable]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("make", "rule"), cases.values(), ids=cases)


def records(seed: int = 0) -> tuple[Profiles, Cohort]:
    r = next(made_rounds(1, seed))
    return made_profiles(weights=r.w, num_steps=r.T, failure_rates=r.q, accumulation=r.A), Cohort(
        probabilities=r.p, coefficients=r.c, counts=r.n, num_draws=K
    )


def test_made_rounds_contain_what_they_should() -> None:
    rounds = list(made_rounds())
    assert [r.index for r in rounds if not r.z.any()] == list(EMPTY_ROUNDS)
    assert sum((r.n > 1).any() for r in rounds) > 5
    assert sum(((r.n > 0) & (r.z == 0)).any() for r in rounds) > 10
    assert any(((r.z > 0) & (r.z < r.n)).any() for r in rounds)


@settings(ALL)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_aggregator_equals_its_reference(make: Make, rule: Callable, seed: int) -> None:
    rounds, memory = list(made_rounds(20, seed)), {}
    x = np.linspace(-1, 1, D)
    for r, model in zip(rounds, trajectory(make(), rounds), strict=True):
        x = x - rule(memory, r, x)
        np.testing.assert_allclose(model, x, rtol=1e-6, atol=1e-6, err_msg=f"round {r.index}")
    assert np.abs(x - np.linspace(-1, 1, D)).max() > 1e-3


@settings(MEMORYLESS | PATIENT)
def test_empty_rounds_keep_the_model(make: Make, rule: Callable) -> None:
    models = [np.linspace(-1, 1, D), *trajectory(make(), list(made_rounds()))]
    for index in EMPTY_ROUNDS:
        np.testing.assert_allclose(models[index], models[index - 1], rtol=0, atol=1e-12)


@settings(RESTLESS)
def test_memory_moves_the_model_in_empty_rounds(make: Make, rule: Callable) -> None:
    models = [np.linspace(-1, 1, D), *trajectory(make(), list(made_rounds()))]
    assert np.abs(models[EMPTY_ROUNDS[1]] - models[EMPTY_ROUNDS[1] - 1]).max() > 1e-6
    np.testing.assert_allclose(models[1], models[0], rtol=0, atol=1e-12)  # nothing to remember yet


@settings(ALL)
def test_a_run_goes_on_from_its_saved_state(make: Make, rule: Callable) -> None:
    rounds = list(made_rounds())
    whole = list(trajectory(make(), rounds))
    first = make()
    x = torch.from_numpy(list(trajectory(first, rounds[:8]))[-1].copy())
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make()
    second.setup(M, x)
    second.load_state_dict(torch.load(file, weights_only=True))
    for r, expected in zip(rounds[8:], whole[8:], strict=True):
        x = played(second, r, x)
        np.testing.assert_array_equal(x.numpy(), expected)


@settings(ALL)
def test_memory_has_the_type_of_the_model(make: Make, rule: Callable) -> None:
    aggregator = make()
    x = torch.zeros(D, dtype=torch.float32)
    aggregator.setup(M, x)
    for r in made_rounds(3):
        x = played(aggregator, r, x)
    assert x.dtype == torch.float32
    assert not any(value.dtype == torch.float64 and value.ndim > 1 for value in tensors(aggregator.state_dict()))


def tensors(state: dict) -> list[torch.Tensor]:
    found = []
    for value in state.values():
        found += tensors(value) if isinstance(value, dict) else [value] * isinstance(value, torch.Tensor)
    return found


@pytest.mark.parametrize("variant", ["original", "paper", "importance"])
def test_lost_uploads_leave_the_memory_of_fedvarp_alone(variant: str) -> None:
    aggregator = LastKnownUpdates(variant)
    x = torch.zeros(D, dtype=torch.float64)
    aggregator.setup(M, x)
    for r in made_rounds():
        before = aggregator.last_updates.dense()
        x_before, x = x, played(aggregator, r, x)
        for m in range(M):
            expected = torch.from_numpy(r.delta(m, x_before.numpy())) if r.z[m] else before[m]
            torch.testing.assert_close(aggregator.last_updates.of(m), expected)


def test_the_server_control_is_the_mean_of_the_clients_with_acknowledgement_only() -> None:
    gaps = {}
    for commit in ("ack", "always"):
        aggregator = ControlVariates(commit)
        x = torch.zeros(D, dtype=torch.float64)
        aggregator.setup(M, x)
        gaps[commit] = []
        for r in made_rounds():
            x = played(aggregator, r, x)
            mean = torch.from_numpy(r.w) @ aggregator.client_controls.dense()
            gaps[commit].append(float((aggregator.server_control - mean).abs().max()))
    assert max(gaps["ack"]) < 1e-12
    assert gaps["always"][-1] > 0.1


def test_intervals_end_on_arrival_and_at_the_cutoff() -> None:
    aggregator = ParticipationIntervals(cutoff=3)
    aggregator.setup(2, torch.zeros(1))
    weights = []
    for arrived in ([0, 1], [0, 2], [0, 0], [1, 0], [0, 0], [1, 1]):
        weights.append(aggregator.mean_interval.tolist())
        aggregator._count(np.array(arrived) > 0)
    # Client 0: cut off after round 3, arrives in 4 and 6. Client 1: arrives in 1, 2, is cut off after 5, arrives in 6.
    assert [each[0] for each in weights] == [1, 1, 1, 3, 2, 2]
    assert [each[1] for each in weights] == [1, 1, 1, 1, 1, 5 / 3]
    assert aggregator.mean_interval.tolist() == [2, 6 / 4]
    assert aggregator.num_intervals.tolist() == [3, 4]
    assert aggregator.elapsed.tolist() == [0, 0]


def test_an_interval_that_ends_with_an_arrival_on_the_cutoff_counts_once() -> None:
    aggregator = ParticipationIntervals(cutoff=2)
    aggregator.setup(1, torch.zeros(1))
    aggregator._count(np.array([False]))
    aggregator._count(np.array([True]))
    assert (aggregator.num_intervals[0], aggregator.mean_interval[0], aggregator.elapsed[0]) == (1, 2, 0)


def length(aggregator: Aggregator, profiles: Profiles, cohort: Cohort) -> float:
    plan = made_plan(1, profiles, cohort, aggregator.coefficients(profiles, cohort), 1.0)
    return plan.step_length


def test_step_lengths_are_those_of_the_appendix() -> None:
    """With p = w, the calibrated rates of the FedACS paper, eta_3 to eta_5."""
    profiles, _ = records()
    w, q, a = profiles.weights, profiles.failure_rates, profiles.accumulation
    cohort = Cohort(probabilities=w, coefficients=np.ones(M), counts=np.zeros(M, dtype=np.int64), num_draws=K)
    fedavg = np.sum(w * (1 - q) * a)
    for aggregator, expected in (
        (AnonymousMean(), fedavg),
        (AnonymousMean("received"), fedavg / np.sum(w * (1 - q))),
        (CommunicationAware(), np.sum(w * a)),
        (LastKnownUpdates("paper"), np.sum(w * a)),
        (LastKnownUpdates("original"), np.sum(w * a)),
        (LastKnownUpdates("original", normalize_memory=True), np.sum(w * a)),
        (MemorizedMean(), np.sum(w * a)),
        (NormalizedMean("gamma"), fedavg),
        (NormalizedMean("omega"), np.sum(w * (1 - q)) * np.sum(w * a)),
        (CommunicationAwareNormalizedMean(), np.sum(w * a)),
        (CommunicationAwareNormalizedMean(tau=3.0), 3.0),
        (ParticipationIntervals(calibrate=True, server_lr=2.0), 2 * np.sum(w * a)),
        (ParticipationIntervals(), fedavg),
        (EstimatedParticipation(), np.sum(w * a)),
        (PushPull(), np.sum(w * a)),
        (UplinkMerge(), np.sum(w * a)),
        (EchoedInnovations(), np.sum(w * a)),
        (EchoedInnovations(weighted=False), np.mean(a)),
        (ControlVariates(), fedavg),
        (AdaptiveControlVariates(), fedavg),
        (ServerMomentum(CommunicationAware()), np.sum(w * a)),
    ):
        assert length(aggregator, profiles, cohort) == pytest.approx(expected, rel=1e-12), type(aggregator).__name__


@pytest.mark.parametrize(("calibrate", "expected"), [(False, 1.0), (True, None)])
def test_calibration_leaves_fedau_alone_unless_asked(calibrate: bool, expected: float | None) -> None:
    profiles, _ = records()
    cohort = Cohort(
        probabilities=profiles.weights, coefficients=np.ones(M), counts=np.zeros(M, dtype=np.int64), num_draws=K
    )
    coefficients = ParticipationIntervals(calibrate=calibrate).coefficients(profiles, cohort)
    plan = made_plan(1, profiles, cohort, coefficients, 0.1)
    rate, _ = Calibration(apply="local")(plan, plan, lambda rate: iter(()))
    amounts = profiles.weights * profiles.accumulation
    factor = expected or amounts @ (1 - profiles.failure_rates) / amounts.sum()
    assert rate == pytest.approx(0.1 * factor)
    np.testing.assert_allclose(plan.effective_weights, amounts / amounts.sum())


def test_the_combined_correction_is_the_consistent_one_for_any_law() -> None:
    profiles, cohort = records()
    restored = Cohort(
        probabilities=cohort.probabilities,
        coefficients=profiles.weights / cohort.probabilities,
        counts=cohort.counts,
        num_draws=K,
    )
    coefficients = CommunicationAwareNormalizedMean(tau=2.0).coefficients(profiles, restored)
    expected = theory.consistent_coefficients(
        profiles.weights, cohort.probabilities, profiles.failure_rates, profiles.accumulation, scale=2.0
    )
    np.testing.assert_allclose(coefficients, expected)


def test_clients_that_never_arrive_have_no_part_in_what_memory_optimises() -> None:
    profiles, cohort = records()
    rates = profiles.failure_rates.copy()
    rates[2] = 1.0
    profiles = made_profiles(
        weights=profiles.weights, num_steps=profiles.num_steps, failure_rates=rates, accumulation=profiles.accumulation
    )
    for aggregator in (LastKnownUpdates("paper"), MemorizedMean(), StaleMixture(), ControlVariates()):
        coefficients = aggregator.coefficients(profiles, cohort)
        assert np.isfinite(coefficients).all()
        assert coefficients[2] == 0
    for aggregator in (CommunicationAware(), CommunicationAwareNormalizedMean()):
        with pytest.raises(ValueError, match=r"client 2 has failure rate 1.*max_inverse"):
            aggregator.coefficients(profiles, cohort)
    assert np.isfinite(CommunicationAware(max_inverse=10).coefficients(profiles, cohort)).all()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: AnonymousMean("arrived"), "normalize='arrived' is unknown"),
        (lambda: CommunicationAware(0.5), r"max_inverse=0\.5 must be at least 1"),
        (lambda: NormalizedMean("mean"), "tau='mean' must be a positive number or one of gamma"),
        (lambda: NormalizedMean(-1.0), r"tau=-1\.0 must be a positive number"),
        (lambda: CommunicationAwareNormalizedMean("gamma"), "tau='gamma'"),
        (lambda: IncompleteWork(0), "nominal_steps=0"),
        (lambda: LastKnownUpdates("is"), "variant='is' is unknown"),
        (lambda: RectifiedMean(0.0), r"gamma=0\.0 must be above 0 and at most 1"),
        (lambda: StaleMixture(1.5), r"beta=1\.5 must be between 0 and 1"),
        (lambda: ParticipationIntervals(cutoff=0), "cutoff=0"),
        (lambda: ParticipationIntervals(server_lr=0), "server_lr=0"),
        (lambda: EchoedInnovations(server_lr=-1), "server_lr=-1"),
        (lambda: AdaptiveControlVariates(smoothing=-1), "smoothing=-1 must be a number of local steps"),
        (lambda: AdaptiveControlVariates(decay=0), r"decay=0 must be in \(0, 1\]"),
        (lambda: LagTolerant(-1), "lag_tolerance=-1"),
        (lambda: DynamicRegularizer(alpha=0), "alpha=0 must be a positive number"),
        (lambda: Amplified(AnonymousMean(), period=0), "period=0 must be at least 1 round"),
        (lambda: Amplified(AnonymousMean(), amplification=-1), "amplification=-1"),
        (lambda: Extrapolated(AnonymousMean(), epsilon=-1), "epsilon=-1"),
        (lambda: ControlVariates("never"), "commit='never' is unknown"),
        (lambda: ServerMomentum(AnonymousMean(), momentum=1.0), r"momentum=1\.0 must be in \[0, 1\)"),
        (lambda: ServerAdam(AnonymousMean(), lr=0), "lr=0 must be a positive number"),
        (lambda: ServerYogi(AnonymousMean(), epsilon=0), "epsilon=0 must be a positive number"),
    ],
)
def test_wrong_settings_are_refused(make: Make, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
