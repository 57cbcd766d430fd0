import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.engine.ways import share
from two_processes import main

ROOT = Path(__file__).parents[2]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 5))
def test_shares_are_a_partition_and_nearly_even(work, world_size):
    work = np.array(work, dtype=np.int64)
    shares = share(work, world_size)
    assert len(shares) == world_size
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(work)))
    loads = [int(work[positions].sum()) for positions in shares]
    assert min(loads) >= max(loads) - work.max()
    assert max(loads) <= work.sum() / world_size + work.max() * (1 - 1 / world_size)


def test_no_process_is_refused():
    with pytest.raises(ValueError, match="world_size=0"):
        share(np.array([1]), 0)


def test_two_processes_give_every_bit_of_one(tmp_path):
    main(1, str(tmp_path))
    command = [sys.executable, str(ROOT / "tests" / "two_processes.py"), "2", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    one, first, second = (torch.load(tmp_path / name) for name in ("1_0.pt", "2_0.pt", "2_1.pt"))
    assert set(one) == {"stacked", "sequential", "local", "augmented"}
    assert sum(name.startswith("own buffers") for name in one["local"]) > 1
    assert len(one["sequential"]["buffers"]) == 16
    assert one["stacked"]["test_numbers"].tolist() == [20] * 3
    for mode, values in one.items():
        for name, value in values.items():
            assert torch.equal(value, first[mode][name]), (mode, name)
            assert torch.equal(value, second[mode][name]), (mode, name)
