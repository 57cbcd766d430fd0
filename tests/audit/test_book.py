"""What a server keeps while it runs: no more after 10,000 rounds than after 1,000."""

import tracemalloc
from collections import Counter

import pytest

from fl_lightning.audit import Row, read_log
from fl_lightning.audit.book import Book, Learned

NAMES = [f"site-{place}" for place in range(10)]


@pytest.mark.parametrize("rounds", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_rounds(rounds, tmp_path):
    book, learned = Book(tmp_path / "log.csv"), Learned(wanted="examples", bound=10.0)
    tracemalloc.start()
    try:
        for index in range(1, rounds + 1):
            book.ask(Counter(NAMES), NAMES)
            rows = {name: Row(round=index, client=name, asked=1, arrived=1, examples=5, steps=2) for name in NAMES[1:]}
            learned.observe(NAMES, dict.fromkeys(rows, (2.0, 5.0)))
            book.receive(index, rows)
            if index == rounds // 10:
                before = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    log = read_log(tmp_path / "log.csv")
    assert (log.num_rounds, log.arrived.sum()) == (rounds, 9 * rounds)


def test_steps_are_bounded_by_the_median():
    learned = Learned(wanted="equal", bound=4.0)
    learned.observe("abc", {"a": (8.0, None), "b": (8.0, None), "c": (0.001, None)})
    assert learned.bounded_steps("abcd").tolist() == [8, 8, 2, 8]
    assert learned.bounded_steps("a", {"a": 1e9}).tolist() == [32]
    assert learned.failure_rates("ad").tolist() == pytest.approx([0.2 / 3, 0.1])
