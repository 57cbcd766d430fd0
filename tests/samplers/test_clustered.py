from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fl_lightning.samplers import ClusteredBySimilarity, ClusteredBySize
from fl_lightning.samplers.clustered import Bins, cut_tree, similarity_bins, size_bins, ward_tree

WEIGHTS = st.lists(st.floats(0, 1), min_size=1, max_size=25).filter(lambda values: sum(values) > 0)


def _random_angles(num_clients: int, seed: int) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(num_clients, 3))
    return np.linalg.norm(points[:, None] - points[None, :], axis=2)


def _assert_exact(bins: Bins, weights: np.ndarray, num_bins: int) -> None:
    total = sum(Fraction(weight) for weight in weights.tolist())
    columns = [Fraction(0)] * len(weights)
    assert len(bins.bins) == num_bins
    for segments in bins.bins:
        assert sum(mass for _, mass in segments) == bins.capacity
        for client, mass in segments:
            columns[client] += Fraction(mass, bins.capacity)
    assert columns == [num_bins * Fraction(weight) / total for weight in weights.tolist()]


@settings(deadline=None)
@given(WEIGHTS, st.integers(1, 12), st.integers(0, 99))
def test_each_client_has_exactly_its_mass_and_each_bin_is_full(weights: list[float], num_bins: int, seed: int) -> None:
    w = np.array(weights)
    _assert_exact(size_bins(w, num_bins), w, num_bins)
    _assert_exact(similarity_bins(w, num_bins, _random_angles(len(w), seed)), w, num_bins)


def test_clients_as_large_as_a_bin_own_whole_bins() -> None:
    table = size_bins(np.array([0.05, 0.3, 0.6, 0.05]), 5).distributions(4)
    assert (table == 1).sum(axis=0).tolist() == [0, 1, 3, 0]
    assert table.sum(axis=1) == pytest.approx(np.ones(5))


def test_algorithm_1_pours_the_largest_first() -> None:
    # Units of 1/12; K = 3 bins of 4: shares 3, 3, 2, 2, 1, 1.
    table = size_bins(np.array([1, 3, 2, 3, 2, 1]) / 12, 3).distributions(6)
    expected = np.array([[0, 3, 0, 1, 0, 0], [0, 0, 2, 2, 0, 0], [1, 0, 0, 0, 2, 1]]) / 4
    assert table == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_the_cut_is_the_coarsest_one_that_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    apart = _random_angles(12, seed)
    masses = rng.integers(1, 20, 12)
    tree = linkage(squareform(apart, checks=False), "ward")
    for num_clusters in range(4, 13):  # the way of the published code: more and more clusters until none is too heavy
        labels = fcluster(tree, num_clusters, criterion="maxclust")
        if np.bincount(labels, masses).max() <= 40:
            break
    expected = {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels)}
    found = cut_tree(ward_tree(apart), masses.tolist(), 40, 4)
    assert {frozenset(cluster) for cluster in found} == expected


def test_clients_alike_share_a_bin() -> None:
    directions = np.repeat(np.arange(4), 3)  # four kinds of three clients
    apart = np.where(directions[:, None] == directions[None, :], 0.1, np.pi / 2)
    np.fill_diagonal(apart, 0)
    table = similarity_bins(np.full(12, 1 / 12), 4, apart).distributions(12)
    assert sorted(tuple(np.flatnonzero(row)) for row in table) == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]


@settings(deadline=None)
@given(WEIGHTS, st.integers(1, 12), st.integers(0, 99))
def test_bins_are_exact_where_some_clients_alone_are_compared(weights: list[float], num_bins: int, seed: int) -> None:
    w, rng = np.array(weights), np.random.default_rng(seed)
    compared = rng.permutation(len(w))[: rng.integers(0, len(w) + 1)]
    _assert_exact(similarity_bins(w, num_bins, _random_angles(len(compared), seed), compared), w, num_bins)


def test_the_order_of_those_who_are_compared_has_no_meaning() -> None:
    weights, apart = np.random.default_rng(0).dirichlet(np.ones(20)), _random_angles(20, 3)
    order = np.random.default_rng(1).permutation(20)
    shuffled = similarity_bins(weights, 6, apart[np.ix_(order, order)], order)
    assert shuffled == similarity_bins(weights, 6, apart)


def test_those_who_arrived_are_clustered_among_many_who_did_not() -> None:
    sampler = ClusteredBySimilarity()
    directions = torch.eye(3).repeat_interleave(40, dim=0)  # three kinds of forty clients
    delivered = np.random.default_rng(0).permutation(2100)[:120]
    sampler._memory.store(2100, delivered, directions)
    weights = np.full(2100, 2e-5)
    weights[delivered] = (1 - 2e-5 * 1980) / 120
    draws = [sampler.draw(weights, 3, np.random.default_rng(seed))[delivered].reshape(3, 40) for seed in range(40)]
    all_kinds = np.mean([(counts.sum(axis=1) > 0).all() for counts in draws])
    assert all_kinds > 0.6  # each kind fills 96 % of a bin: 0.88 on average; independent draws have 0.2


def test_draws_follow_the_bins_and_vary_less_than_independent_ones() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(8))
    bins = size_bins(weights, 4)
    table = bins.distributions(8)
    rng = np.random.default_rng(1)
    counts = np.array([bins.draw(8, rng) for _ in range(20_000)])
    assert (counts.sum(axis=1) == 4).all()
    assert counts.mean(axis=0) == pytest.approx(4 * weights, abs=0.02)
    assert counts.var(axis=0) == pytest.approx((table * (1 - table)).sum(axis=0), abs=0.02)
    assert ((table * (1 - table)).sum(axis=0) <= 4 * weights * (1 - weights) + 1e-12).all()


def test_bins_by_size_are_made_anew_when_the_weights_change() -> None:
    sampler, rng = ClusteredBySize(), np.random.default_rng(0)
    assert sampler.draw(np.array([1.0, 0.0]), 3, rng).tolist() == [3, 0]
    assert sampler.draw(np.array([0.0, 1.0]), 3, rng).tolist() == [0, 3]
    assert sampler.draw(np.array([0.0, 1.0]), 2, rng).tolist() == [0, 2]
