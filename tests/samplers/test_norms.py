import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.samplers import NormProportional
from fl_lightning.samplers.optimal import approximate_inclusion, optimal_inclusion

SCORES = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=30)


def _by_bisection(scores: np.ndarray, budget: int) -> np.ndarray:
    """The minimiser of sum u^2/pi under sum pi = K, pi <= 1 is min(1, lambda u)."""
    low, high = 0.0, budget / scores.min()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * scores).sum() < budget else (low, middle)
    return np.minimum(1, high * scores)


@pytest.mark.parametrize("inclusion", [optimal_inclusion, approximate_inclusion])
def test_vector_of_the_specification(inclusion) -> None:
    assert inclusion([1, 1, 2, 3, 20, 30], 3) == pytest.approx([1 / 7, 1 / 7, 2 / 7, 3 / 7, 1, 1], abs=1e-12)


@settings(deadline=None)
@given(SCORES, st.data())
def test_optimal_inclusion_is_the_constrained_minimum(scores: list[float], data: st.DataObject) -> None:
    u = np.array(scores)
    budget = data.draw(st.integers(1, len(u)))
    inclusion = optimal_inclusion(u, budget)
    assert inclusion.sum() == pytest.approx(budget, rel=1e-9)
    assert (inclusion > 0).all()
    assert (inclusion <= 1).all()
    assert inclusion == pytest.approx(_by_bisection(u, budget), rel=1e-6)


@settings(deadline=None)
@given(SCORES, st.data())
def test_approximation_reaches_the_optimum_when_it_may_iterate(scores: list[float], data: st.DataObject) -> None:
    u = np.array(scores)
    budget = data.draw(st.integers(1, len(u)))
    assert approximate_inclusion(u, budget, 100) == pytest.approx(optimal_inclusion(u, budget), rel=1e-6)
    few = approximate_inclusion(u, budget)
    assert few.sum() <= budget * (1 + 1e-9)
    assert (few <= 1).all()


@pytest.mark.parametrize("inclusion", [optimal_inclusion, approximate_inclusion])
def test_scores_of_zero(inclusion) -> None:
    assert inclusion(np.zeros(4), 3).tolist() == [0.75] * 4
    assert optimal_inclusion([0, 0, 1, 1], 3).tolist() == [0.5, 0.5, 1, 1]
    with pytest.raises(ValueError, match="impossible with 4 clients"):
        inclusion(np.ones(4), 5)
    with pytest.raises(ValueError, match="diverged"):
        inclusion([1, np.nan], 1)


@pytest.mark.parametrize("setting", [{"norms": "old"}, {"budget": "all"}, {"max_iterations": -1}])
def test_unknown_settings_are_refused(setting: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        NormProportional(**setting)
