"""Shamir's secret sharing: any t of n shares give the secret, fewer tell nothing about it."""

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**521 - 1  # above all secrets of 64 bytes


def split(secret: int, threshold: int, holders: Sequence[int]) -> dict[int, int]:
    """Return a share of a secret for each holder: the values of a random polynomial of degree t - 1.

    Args:
        secret: At least 0, below 2^521 - 1.
        threshold: t, how many shares give the secret.
        holders: Different numbers above 0.
    """
    if not 0 <= secret < PRIME:
        raise ValueError("a secret must be a number from 0 to 2^521 - 2")
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"threshold={threshold} must be from 1 to the number of holders, {len(holders)}")
    if len(set(holders)) < len(holders) or min(holders) < 1:
        raise ValueError("holders must be different numbers above 0")
    coefficients = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {holder: _value(coefficients, holder) for holder in holders}


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def recover(shares: Mapping[int, int]) -> int:
    """Return the secret of which these are at least t shares: the polynomial at 0, by Lagrange.

    >>> shares = split(42, 2, [1, 2, 3])
    >>> recover({1: shares[1], 3: shares[3]})
    42
    """
    return sum(shares[holder] * factor for holder, factor in _at_zero(tuple(shares)).items()) % PRIME


def _at_zero(points: tuple[int, ...]) -> dict[int, int]:
    factors = {}
    for own in points:
        above, below = 1, 1
        for other in points:
            if other != own:
                above, below = above * other % PRIME, below * (other - own) % PRIME
        factors[own] = above * pow(below, -1, PRIME) % PRIME
    return factors
