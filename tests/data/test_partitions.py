import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.data import IID, Dirichlet, GivenIndices, OneClassPerClient, Shards

labels_of = st.lists(st.integers(0, 4), min_size=40, max_size=120).map(
    lambda values: np.array([0, 1, 2, 3, 4, *values])
)
seeds = st.integers(0, 2**31)
BALANCED = np.repeat(np.arange(10), 100)


def check_each_example_once(parts, labels):
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(part.dtype == np.int64 for part in parts)


@given(labels_of, st.integers(1, 20), seeds)
def test_iid_deals_every_example_once_and_evenly(labels, num_clients, seed):
    parts = IID(num_clients).split(labels, np.random.default_rng(seed))
    check_each_example_once(parts, labels)
    assert len(parts) == num_clients
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(labels_of, st.integers(1, 8), st.integers(1, 3), seeds)
def test_shards_deal_every_example_once(labels, num_clients, shards, seed):
    parts = Shards(num_clients, shards).split(labels, np.random.default_rng(seed))
    check_each_example_once(parts, labels)
    assert max(map(len, parts)) - min(map(len, parts)) <= shards


def test_shards_bound_the_number_of_classes():
    parts = Shards(20, 2).split(BALANCED, np.random.default_rng(1))  # 40 shards of 25: none crosses a class
    assert {len(part) for part in parts} == {50}
    assert max(len(np.unique(BALANCED[part])) for part in parts) == 2


@settings(deadline=None)
@given(labels_of, st.integers(1, 6), st.floats(0.001, 100), st.integers(1, 3), st.sampled_from([None, "class"]), seeds)
def test_dirichlet_deals_every_example_once_with_the_minimum(labels, num_clients, alpha, min_size, by, seed):
    try:
        parts = Dirichlet(num_clients, alpha, min_size, by=by).split(labels, np.random.default_rng(seed))
    except ValueError as error:
        assert "fewer clients" in str(error)  # noqa: PT017
        assert alpha < 1
        return
    check_each_example_once(parts, labels)
    assert len(parts) == num_clients
    assert min(map(len, parts)) >= min_size


def test_dirichlet_alpha_moves_from_one_class_to_all():
    def mean_largest_share(alpha):
        parts = Dirichlet(20, alpha).split(BALANCED, np.random.default_rng(0))
        return np.mean([np.bincount(BALANCED[part], minlength=10).max() / len(part) for part in parts])

    assert mean_largest_share(1000.0) < 0.2
    assert 0.4 < mean_largest_share(0.1) < 0.95
    assert mean_largest_share(0.1) > mean_largest_share(1.0) > mean_largest_share(10.0)


def test_dirichlet_shares_follow_the_law():
    """Client m's share of class c has mean 1/M whatever alpha is, and spreads more for a small one."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(2), 3000)
    shares = [np.bincount(labels[Dirichlet(3, 1.0).split(labels, rng)[0]], minlength=2) / 3000 for _ in range(600)]
    np.testing.assert_allclose(np.mean(shares, axis=0), 1 / 3, atol=0.03)
    reference = rng.dirichlet([1.0, 1.0], size=(20_000, 3))  # the definition, once more
    reference = reference[:, 0] / reference.sum(axis=1)
    np.testing.assert_allclose(np.std(shares, axis=0), reference.std(axis=0), rtol=0.15)


@pytest.mark.parametrize("alpha", [0.1, 2.0])
def test_a_class_is_shared_out_by_one_draw_over_the_clients(alpha):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 2000)
    partition = Dirichlet(4, alpha, by="class")
    parts = [partition.split(labels, rng) for _ in range(400)]
    shares = np.array([[np.bincount(labels[part], minlength=3) for part in each] for each in parts]) / 2000
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    # A share is Beta(alpha, (M - 1) alpha); classes are independent, clients of one class are not.
    np.testing.assert_allclose(shares.var(), 1 / 4 * 3 / 4 / (4 * alpha + 1), rtol=0.1)
    by_class = np.corrcoef(shares[:, 0, 0], shares[:, 0, 1])[0, 1], np.corrcoef(shares[:, 0, 0], shares[:, 1, 0])[0, 1]
    np.testing.assert_allclose(by_class, (0, -1 / 3), atol=0.12)


def test_dirichlet_says_what_to_do_when_the_minimum_cannot_be_met():
    with pytest.raises(ValueError, match=r"need at least 1200 examples, the data has 1000"):
        Dirichlet(12, 0.1, min_size=100).split(BALANCED, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"alpha=0.05.*min_size=95.*best: \d+.*fewer clients or a larger alpha"):
        Dirichlet(10, 0.05, min_size=95).split(BALANCED, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [("blocks", [m // 2 for m in range(20)]), ("cyclic", [m % 10 for m in range(20)])],
)
def test_one_class_assignment(assignment, expected):
    parts = OneClassPerClient(20, assignment).split(BALANCED, np.random.default_rng(0))
    check_each_example_once(parts, BALANCED)
    assert [np.unique(BALANCED[part]).tolist() for part in parts] == [[label] for label in expected]
    assert {len(part) for part in parts} == {50}


@given(st.integers(10, 40), st.sampled_from(["blocks", "cyclic", "random"]), seeds)
def test_one_class_covers_everything_for_any_number_of_clients(num_clients, assignment, seed):
    parts = OneClassPerClient(num_clients, assignment).split(BALANCED, np.random.default_rng(seed))
    check_each_example_once(parts, BALANCED)
    assert all(len(np.unique(BALANCED[part])) == 1 for part in parts)
    owners = np.bincount([BALANCED[part[0]] for part in parts], minlength=10)
    assert owners.max() - owners.min() <= 1


def test_random_assignment_is_a_shuffle_of_blocks_that_depends_on_the_seed():
    def classes(seed):
        parts = OneClassPerClient(20, "random").split(BALANCED, np.random.default_rng(seed))
        return [int(BALANCED[part[0]]) for part in parts]

    assert classes(0) != classes(1)
    assert sorted(classes(0)) == [m // 2 for m in range(20)]


def test_one_class_needs_a_client_for_each_class_and_an_example_for_each_client():
    with pytest.raises(ValueError, match="num_clients=9 for 10 classes"):
        OneClassPerClient(9).split(BALANCED, np.random.default_rng(0))
    with pytest.raises(ValueError, match="2 clients need at least 2 examples, the data has 1"):
        OneClassPerClient(4).split(np.array([0, 1, 1]), np.random.default_rng(0))


@pytest.mark.parametrize("partition", [OneClassPerClient(20, "random"), Dirichlet(20, 0.3), Shards(20), IID(20)])
def test_the_generator_decides_the_split(partition):
    first, again, other = (partition.split(BALANCED, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert all(map(np.array_equal, first, again))
    assert not all(len(a) == len(b) and np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("num_clients", [0, -1, 2.5, True, float("nan"), "3"])
@pytest.mark.parametrize("make", [IID, OneClassPerClient, Shards, lambda n: Dirichlet(n, 1.0)])
def test_num_clients_is_checked(make, num_clients):
    with pytest.raises(ValueError, match="num_clients must be an integer of at least 1"):
        make(num_clients)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(3, 0.0), "alpha"),
        (lambda: Dirichlet(3, -1.0), "alpha"),
        (lambda: Dirichlet(3, float("nan")), "alpha"),
        (lambda: Dirichlet(3, float("inf")), "alpha"),
        (lambda: Dirichlet(3, 1.0, min_size=0), "min_size"),
        (lambda: Dirichlet(3, 1.0, by="label"), "by='label' is unknown: use 'class'"),
        (lambda: Dirichlet(3, 1.0, sizes="equal", by="class"), "sizes='equal' and by='class' exclude each other"),
        (lambda: Shards(3, 0), "shards_per_client"),
        (lambda: OneClassPerClient(3, "mod"), "assignment='mod' is unknown: use 'blocks', 'cyclic' or 'random'"),
    ],
)
def test_other_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("partition", [IID(5), Shards(5, 1), Dirichlet(5, 1.0)])
def test_too_few_examples(partition):
    with pytest.raises(ValueError, match="5 clients need at least 5 examples, the data has 4"):
        partition.split(np.zeros(4, dtype=np.int64), np.random.default_rng(0))


def test_given_indices_from_a_file_and_from_lists(tmp_path):
    path = tmp_path / "clients.json"
    path.write_text(json.dumps([[2, 0], [1, 2]]))
    for partition in (GivenIndices(str(path)), GivenIndices([[2, 0], [1, 2]])):
        parts = partition.split(np.zeros(3, dtype=np.int64), np.random.default_rng(0))
        assert [part.tolist() for part in parts] == [[2, 0], [1, 2]]
    with pytest.raises(ValueError, match="client 0 is given example 2, but the data has 2"):
        GivenIndices(str(path)).split(np.zeros(2, dtype=np.int64), np.random.default_rng(0))


@pytest.mark.parametrize(
    "content", ["[[0], [", "{}", "[]", "3", "[[0], []]", "[[0.5]]", "[[true]]", "[[-1]]", "[[[1]]]", '["a"]']
)
def test_given_indices_refuses_what_is_no_list_of_lists(tmp_path, content):
    path = tmp_path / "clients.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"clients\.json"):
        GivenIndices(str(path))


def test_given_indices_names_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        GivenIndices(str(tmp_path / "none.json"))


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 100.0])
def test_clients_of_equal_size_have_mixes_of_their_own(alpha):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 300))
    parts = Dirichlet(20, alpha, sizes="equal").split(labels, np.random.default_rng(0))
    assert [len(part) for part in parts] == [150] * 20
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(3000))
    mixes = np.array([np.bincount(labels[part], minlength=10) for part in parts]) / 150
    largest = mixes.max(axis=1)
    # A Dirichlet(0.1) mix of ten has a largest share of 0.69 on average; one of 100 is nearly even.
    assert largest.mean() > 0.55 if alpha < 1 else np.median(largest) < 0.2
    with pytest.raises(ValueError, match="sizes='even'"):
        Dirichlet(20, alpha, sizes="even")
    with pytest.raises(ValueError, match="20 clients need at least 20 examples"):
        Dirichlet(20, alpha, sizes="equal").split(labels[:10], np.random.default_rng(0))
