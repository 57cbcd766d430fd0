import numpy as np
import pytest

from fl_lightning.samplers import Certain, Independent, Systematic, WithoutReplacement, WithReplacement

P = np.array([0.05, 0.1, 0.0, 0.3, 0.15, 0.25, 0.15])
K = 3
NUM_ROUNDS = 20_000


def _counts(drawing, probabilities=P, num_draws=K) -> np.ndarray:
    rng = np.random.default_rng(7)
    return np.array([drawing(probabilities, num_draws, rng) for _ in range(NUM_ROUNDS)])


@pytest.mark.parametrize(
    "drawing", [WithReplacement(), Systematic(), Systematic("fixed"), WithoutReplacement(), Independent()]
)
def test_every_drawing_keeps_the_expected_counts(drawing) -> None:
    counts = _counts(drawing)
    assert counts.dtype == np.int64
    assert np.abs(counts.mean(axis=0) - K * P).max() < 5 * np.sqrt(K * P.max() / NUM_ROUNDS)
    assert (counts[:, 2] == 0).all()
    if not isinstance(drawing, Independent):
        assert (counts.sum(axis=1) == K).all()


def test_variances_of_the_counts_are_those_of_theory() -> None:
    share, inclusion = K * P * (1 - P), K * P
    fraction = inclusion % 1
    for drawing, variance in (
        (WithReplacement(), share),  # multinomial
        (Independent(), inclusion * (1 - inclusion)),  # Bernoulli
        (Systematic(), fraction * (1 - fraction)),  # n is one of the two whole numbers around K p: the least possible
        (WithoutReplacement(), inclusion * (1 - inclusion)),
    ):
        assert np.allclose(_counts(drawing).var(axis=0), variance, atol=0.02), type(drawing).__name__


def test_systematic_draws_differ_from_the_expectation_by_less_than_one() -> None:
    probabilities = np.array([0.5, 0.2, 0.3])
    counts = _counts(Systematic(), probabilities, 5)
    assert (np.abs(counts - 5 * probabilities) < 1).all()
    assert counts[:, 0].max() == 3  # repeated draws are possible


def test_fixed_order_separates_neighbours_and_random_order_does_not() -> None:
    uniform = np.full(8, 1 / 8)
    fixed, mixed = _counts(Systematic("fixed"), uniform, 2), _counts(Systematic(), uniform, 2)
    assert not (fixed[:, 0] & fixed[:, 1]).any()
    assert (mixed[:, 0] & mixed[:, 1]).mean() == pytest.approx(2 / 8 * 1 / 7, abs=0.01)


def test_without_replacement_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"client 0 has K p = 1\.500"):
        WithoutReplacement()(np.array([0.5, 0.25, 0.25]), 3, np.random.default_rng(0))
    assert WithoutReplacement()(np.full(3, 1 / 3), 3, np.random.default_rng(0)).tolist() == [1, 1, 1]


def test_a_client_without_probability_is_not_drawn_at_the_end_of_the_scale() -> None:
    class AlmostOne:
        def random(self, size=None):
            return np.full(size, 1 - 2**-53)

    assert WithReplacement()(np.array([0.1, 0.2, 0.7, 0.0]), 4, AlmostOne()).tolist() == [0, 0, 4, 0]


def test_certain_draws_nothing_by_chance() -> None:
    assert _counts(Certain(), np.array([0.0, 1 / 3, 1 / 3, 1 / 3]))[:, 1:].min() == 1
