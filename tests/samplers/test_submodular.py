from itertools import combinations

import numpy as np
import pytest

from fl_lightning.samplers import PowerOfChoice, SubmodularSelection
from fl_lightning.samplers.divfl import greedy_representatives


def _objective(apart: np.ndarray, selected: tuple[int, ...]) -> float:
    return float(apart[:, list(selected)].min(axis=1).sum())


def _random_distances(seed: int, num_clients: int = 9) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(num_clients, 2))
    return np.linalg.norm(points[:, None] - points[None, :], axis=2)


@pytest.mark.parametrize("seed", range(8))
def test_each_greedy_step_is_the_best_single_step(seed: int) -> None:
    apart = _random_distances(seed)
    chosen = greedy_representatives(apart, 4).tolist()
    for size in range(4):
        prefix = tuple(chosen[:size])
        best = min((c for c in range(9) if c not in prefix), key=lambda c: _objective(apart, (*prefix, c)))
        assert chosen[size] == best


@pytest.mark.parametrize("seed", range(8))
def test_greedy_comes_near_the_optimum_of_all_subsets(seed: int) -> None:
    apart = _random_distances(seed)
    for size in (1, 2, 3):
        best = min(_objective(apart, subset) for subset in combinations(range(9), size))
        worst = max(_objective(apart, subset) for subset in combinations(range(9), size))
        reached = _objective(apart, tuple(greedy_representatives(apart, size)))
        assert reached == pytest.approx(best) if size == 1 else reached <= best + (worst - best) / np.e


def test_stochastic_greedy_examines_only_its_candidates() -> None:
    apart = _random_distances(0, 40)
    values = [
        _objective(apart, tuple(greedy_representatives(apart, 4, 6, np.random.default_rng(seed)))) for seed in range(30)
    ]
    greedy = _objective(apart, tuple(greedy_representatives(apart, 4)))
    assert greedy <= min(values) + 0.05 * greedy
    assert np.std(values) > 0
    everybody = greedy_representatives(apart, 4, 40, np.random.default_rng(0))
    assert everybody.tolist() == greedy_representatives(apart, 4).tolist()


def test_duplicates_are_selected_without_repetition() -> None:
    assert sorted(greedy_representatives(np.zeros((4, 4)), 3).tolist()) == [0, 1, 2]


def test_settings_are_checked() -> None:
    for setting, name in (({"weights": "x"}, "weights"), ({"refresh": "x"}, "refresh"), ({"candidates": 0}, "cand")):
        with pytest.raises(ValueError, match=name):
            SubmodularSelection(**setting)
    with pytest.raises(ValueError, match="num_candidates=0"):
        PowerOfChoice(0)
