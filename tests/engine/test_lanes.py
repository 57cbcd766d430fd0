import threading

import pytest
import torch

from fl_lightning.engine.lanes import Lanes


@pytest.mark.parametrize("num_lanes", [1, 2, 3])
def test_each_task_runs_once_on_a_lane_of_its_own(num_lanes):
    lanes, done, inside = Lanes(num_lanes, num_lanes), [], [threading.Lock() for _ in range(num_lanes)]

    def task(number):
        def run(lane):
            assert inside[lane].acquire(blocking=False)
            done.append(number)
            inside[lane].release()

        return run

    lanes.run([task(number) for number in range(20)])
    assert sorted(done) == list(range(20))


def test_a_lane_has_its_own_threads_and_the_process_keeps_its():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        seen = []
        Lanes(2).run([lambda lane: seen.append(torch.get_num_threads())] * 4)
        assert seen == [1] * 4
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_error_in_a_task_reaches_the_caller():
    def fail(lane):
        raise ValueError("from the task")

    with pytest.raises(ValueError, match="from the task"):
        Lanes(2, 2).run([fail, lambda lane: None])
