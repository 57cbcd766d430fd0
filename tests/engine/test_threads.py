"""Clients side by side: each row once, on a trainer of its own."""

import threading

import pytest
import torch

from fl_lightning.engine.ways import SideBySide, num_side_by_side


class Trainer:
    def __init__(self) -> None:
        self.inside = threading.Lock()


@pytest.mark.parametrize("num_trainers", [1, 2, 3])
def test_each_row_is_done_once_by_a_trainer_that_does_nothing_else(num_trainers):
    done = []

    def task(trainer, row):
        assert trainer.inside.acquire(blocking=False)
        done.append(row)
        trainer.inside.release()

    way = SideBySide([Trainer() for _ in range(num_trainers)], cpu_tuning=False, threads=num_trainers)
    way.spread(task, range(20))
    assert sorted(done) == list(range(20))
    way.spread(task, [])


def test_a_trainer_has_its_own_threads_and_the_process_keeps_its():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        seen = []
        way = SideBySide([Trainer(), Trainer()], cpu_tuning=False, threads=2)
        way.spread(lambda trainer, row: seen.append(torch.get_num_threads()), range(4))
        assert seen == [1] * 4
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_single_row_is_done_by_the_caller_with_the_threads_of_a_trainer():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        seen = []
        way = SideBySide([Trainer(), Trainer()], cpu_tuning=False, threads=2)
        way.spread(lambda trainer, row: seen.append((threading.current_thread(), torch.get_num_threads())), [5])
        assert seen == [(threading.current_thread(), 1)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_error_reaches_the_caller_after_all_others_have_stopped():
    done = []

    def task(trainer, row):
        if row == 0:
            raise ValueError("from the task")
        done.append(row)

    way = SideBySide([Trainer(), Trainer()], cpu_tuning=False, threads=2)
    with pytest.raises(ValueError, match="from the task"):
        way.spread(task, range(5))
    assert done == [1, 2, 3, 4]


def test_more_threads_than_eight_are_shared():
    assert [num_side_by_side(threads) for threads in (0, 1, 8, 64)] == [1, 1, 8, 8]
