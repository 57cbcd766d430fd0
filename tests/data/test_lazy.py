"""Data that is loaded when a client is drawn: the same results as data in memory, bounded memory, no load twice."""

import threading
import time

import numpy as np
import pytest
import torch

from fl_lightning.aggregators import AnonymousMean
from fl_lightning.callbacks import HeterogeneitySchedule, SamplerSelection
from fl_lightning.data import LazyFederation
from fl_lightning.data.lazy import ClientCache
from fl_lightning.engine import Engine
from fl_lightning.planning import Planner
from fl_lightning.samplers import ClusteredBySimilarity, HeterogeneityAware, Sampler, Uniform
from fl_lightning.server.rates import Calibration
from fl_lightning.solvers import SGD
from made import made_planner
from systems import PAPER_GROUPS, gaussian_federation, linear_module, small_loop

CLIENTS = 40


def lazy(whole, **options) -> LazyFederation:
    """Return the same federation, loaded client by client."""

    def load(client):
        return whole.batch(client, np.arange(whole.sizes[client]))

    return LazyFederation(whole.sizes, load, whole.test, **options)


def trained(federation, mode="auto", draws=20, **settings):
    loop = small_loop(
        rounds=5, sampling=SamplerSelection(HeterogeneityAware(), draws), engine=Engine(mode, threads=1), **settings
    )
    loop.run(linear_module(), federation)
    return loop


@pytest.mark.parametrize("mode", ["stacked", "sequential"])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_results_are_those_of_data_in_memory(mode, cache_bytes):
    whole = gaussian_federation(CLIENTS)
    expected = trained(whole, mode)
    for ahead in (False, True):
        found = trained(lazy(whole, cache_bytes=cache_bytes, ahead=ahead), mode)
        assert torch.equal(found.state.weights, expected.state.weights)


def test_equal_shapes_are_stacked_by_themselves():
    assert trained(lazy(gaussian_federation(CLIENTS))).engine.choice.mode == "stacked"


def test_clients_of_several_shapes_train_in_groups():
    """Half of the clients have wider inputs, of which the model takes the first five."""
    whole = gaussian_federation(CLIENTS)

    def load(client):
        inputs, labels = whole.batch(client, np.arange(whole.sizes[client]))
        return (torch.cat([inputs, inputs], dim=1) if client % 2 else inputs), labels

    class First(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs[..., :5])

    from fl_lightning.module import FederatedModule

    models = []
    for federation in (LazyFederation(whole.sizes, load, whole.test), whole):
        torch.manual_seed(0)
        loop = small_loop(rounds=3, sampling=SamplerSelection(Uniform(), 20), engine=Engine("stacked", threads=1))
        loop.run(FederatedModule(First(5, 3), 3), federation)
        models.append(loop.state.weights)
    torch.testing.assert_close(models[0], models[1], rtol=1e-5, atol=1e-6)


def test_a_million_clients_cost_an_array():
    federation = LazyFederation(np.full(1_000_000, 4), lambda client: (torch.ones(4, 2) * client, torch.arange(4)))
    assert federation.num_clients == 1_000_000
    assert federation.batch(999_999, np.array([1]))[0].tolist() == [[999_999.0, 999_999.0]]
    assert federation.cache.num_loads == 1


def test_the_least_recently_used_leave_first():
    loads = []

    def load(client):
        loads.append(client)
        return torch.zeros(10)  # 40 bytes

    cache = ClientCache(load, max_bytes=120)
    for client in (0, 1, 2, 0, 3, 0, 1):
        cache[client]
    assert loads == [0, 1, 2, 3, 1]  # 3 displaced 1, which had not been used since
    assert cache.bytes <= 120


def test_what_is_larger_than_the_cache_is_still_served():
    cache = ClientCache(lambda client: torch.full((100,), float(client)), max_bytes=10)
    assert [float(cache[client][0]) for client in (1, 2, 1)] == [1.0, 2.0, 1.0]
    assert cache.num_loads == 3


def test_nobody_is_loaded_twice_at_the_same_time():
    started, loads = threading.Barrier(9), []

    def load(client):
        loads.append(client)
        time.sleep(0.05)
        return torch.zeros(1)

    cache = ClientCache(load, max_bytes=1000)

    def ask():
        started.wait()
        cache[5]

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    for thread in threads:
        thread.join()
    assert loads == [5]


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_wishes_are_loaded_in_a_thread_and_then_who_comes_after_them():
    names = []

    def load(client):
        names.append((client, threading.current_thread().name))
        return torch.zeros(10)

    cache = ClientCache(load, max_bytes=10_000)
    cache.prefetch([3, 1], then=lambda: [7])
    wait_for(lambda: cache.num_loads == 3)
    assert names == [(3, "prefetch"), (1, "prefetch"), (7, "prefetch")]
    cache[1]
    assert len(names) == 3
    cache.prefetch(range(100, 100_000))  # no more than half of the cache for what nobody used yet
    wait_for(lambda: not cache._thread.is_alive())
    assert 4000 <= cache.bytes <= 6000


def test_a_failure_belongs_to_whoever_asks():
    attempts = []

    def load(client):
        attempts.append(client)
        if len(attempts) < 3:
            raise OSError("the disk is away")
        return torch.zeros(1)

    cache = ClientCache(load, max_bytes=100)
    cache.prefetch([4])
    wait_for(lambda: len(attempts) == 1)
    with pytest.raises(OSError, match="away"):
        cache[4]
    assert cache[4].tolist() == [0.0]


def test_the_next_round_is_known_where_nothing_is_learned():
    def planner(sampler: Sampler) -> Planner:
        return made_planner(
            schedule=HeterogeneitySchedule(groups=PAPER_GROUPS),
            sampling=SamplerSelection(sampler, 6),
            aggregator=AnonymousMean(),
            solver=SGD(),
            calibration=Calibration(),
            weights=np.full(30, 1 / 30),
            learning_rate=0.1,
            steps_per_epoch=np.ones(30, dtype=np.int64),
        )

    fixed = planner(HeterogeneityAware())
    fixed.start()
    for index in (1, 2, 9):
        assert np.array_equal(fixed.next_clients(index), fixed.plan(index).cohort.clients)
    assert len(planner(ClusteredBySimilarity()).next_clients(1)) == 0


def test_wrong_data_is_named():
    with pytest.raises(ValueError, match=r"load\(1\) returned 3 examples, but sizes\[1\] is 4"):
        LazyFederation([4, 4], lambda client: torch.zeros(3)).batch(1, np.array([0]))
    with pytest.raises(ValueError, match="sizes must be one whole number for each client"):
        LazyFederation([0.5, 1.5], lambda client: torch.zeros(3))
    with pytest.raises(ValueError, match="1 of 2 clients have no training example"):
        LazyFederation([0, 1], lambda client: torch.zeros(3))
    with pytest.raises(ValueError, match="cache_bytes=-1"):
        LazyFederation([1], lambda client: torch.zeros(1), cache_bytes=-1)
