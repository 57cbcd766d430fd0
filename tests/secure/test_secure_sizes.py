"""Bytes of secure sums: what is charged against what the parties really exchange."""

import numpy as np
import pytest

from fl_lightning.aggregators import SecureSum, ServerMomentum
from fl_lightning.secure import FixedPoint, secure_sum
from fl_lightning.secure.protocol import NUMBER, SEALED, exchanged_bytes
from systems import gaussian_federation, linear_module, small_loop


@pytest.mark.parametrize(("num_clients", "num_lost", "threshold"), [(2, 0, 2), (6, 2, 3), (9, 1, 8), (5, 3, 3)])
def test_keys_and_shares_are_as_long_as_the_parties_send_them(num_clients, num_lost, threshold):
    clients = list(range(10, 10 + num_clients))
    vectors = {client: np.zeros(3) for client in clients[num_lost:]}
    _, view = secure_sum(vectors, clients, FixedPoint(1.0, num_clients), threshold)
    keys = sum(len(key) for pair in view.directory.values() for key in pair)
    sealed = [len(message) for inbox in view.sealed.values() for message in inbox.values()]
    revealed = [share for shares in view.shares.values() for share in shares.values()]
    assert len(sealed) == num_clients**2
    assert all(0.97 * SEALED <= size <= SEALED for size in sealed)  # leading zeros of a share are not sent
    assert all(share.bit_length() <= 66 * 8 for share in revealed)
    up, down = exchanged_bytes(num_clients, len(vectors), threshold)
    assert up == keys + num_clients**2 * SEALED + 66 * len(revealed)
    assert down == num_clients * keys + num_clients**2 * SEALED + NUMBER * len(revealed)


@pytest.mark.parametrize("bits", [32, 64])
def test_masked_vectors_are_as_long_as_the_ring_has_them(bits):
    vectors = {client: np.zeros(1000) for client in range(3)}
    _, view = secure_sum(vectors, list(vectors), FixedPoint(1.0, 3, bits), 2)
    for aggregator in (SecureSum(1.0, bits=bits), ServerMomentum(SecureSum(1.0, bits=bits))):
        assert aggregator.upload_bytes(1000, 4000.0) == view.masked[0].nbytes


def test_a_run_is_charged_for_all_of_it():
    loop = small_loop(aggregator=SecureSum(1e3, threshold=2, bits=32), rounds=8)
    several = 0
    for result in loop.iterate(linear_module(), gaussian_federation()):
        drawn = result.plan.cohort.clients
        up, down = exchanged_bytes(len(drawn), int((result.delivered[drawn] > 0).sum()), 2)
        vectors = len(drawn) * 18 * 4  # 5 inputs, 3 classes and their biases
        assert (result.costs.uplink_bytes, result.costs.downlink_bytes) == (vectors + up, vectors + down)
        several += len(drawn) > 1
    assert several > 4
