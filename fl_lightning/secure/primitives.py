"""What a secure sum is made of: numbers of a ring, keys that two parties agree on, masks, and shares of a secret.

Keys, masks and sealed messages need ``cryptography``. Shares are those of Shamir: any t of n give the secret, and fewer
say nothing about it.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fl_lightning.output import not_installed

Bits = Literal[32, 64]
Ring = npt.NDArray[Any]  # unsigned integers of 32 or 64 bits, which wrap around
PRIME = 2**521 - 1  # above all secrets of 64 bytes


@dataclass(frozen=True)
class FixedPoint:
    """Turns numbers of at most ``bound`` into multiples of a step, so that the sum of all parties fits the ring.

    Args:
        bound: Largest absolute value of an entry; a larger one is an error, never cut off.
        num_parties: How many vectors are added up at most.
        bits: Of the ring.

    >>> ring = FixedPoint(bound=1.0, num_parties=3, bits=32)
    >>> bool(abs(ring.decode(ring.encode(np.array([0.25])) + ring.encode(np.array([-0.5])))[0] + 0.25) < ring.step)
    True
    """

    bound: float
    num_parties: int
    bits: Bits = 64

    def __post_init__(self) -> None:
        if not 0 < self.bound < float("inf"):
            raise ValueError(f"bound={self.bound} must be a positive number")
        if self.bits not in (32, 64):
            raise ValueError(f"bits={self.bits!r} must be 32 or 64")
        if not 1 <= self.num_parties < 2 ** (self.bits - 2):
            raise ValueError(f"num_parties={self.num_parties} must be from 1 to {2 ** (self.bits - 2) - 1}")

    @property
    def step(self) -> float:
        """Distance between two numbers that stay different; an encoded entry is at most half of it away."""
        # The ring has room for these halves of all parties, too.
        room = 2.0 ** (self.bits - 1) * (1 - 2.0**-20) - self.num_parties / 2 - 1
        return self.bound * self.num_parties / room

    @property
    def dtype(self) -> type[np.uint32] | type[np.uint64]:
        """Type of the ring's elements."""
        return np.uint32 if self.bits == 32 else np.uint64

    def encode(self, values: npt.NDArray[np.float64]) -> Ring:
        """Return a vector as elements of the ring."""
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= self.bound:  # also NaN
            raise ValueError(
                f"an entry of an update is {largest:.3g}, above the declared bound={self.bound:g}: raise the bound, or "
                "put fl_lightning.uploads.Clip before"
            )
        return np.rint(values / self.step).astype(np.int64).astype(self.dtype)

    def decode(self, total: Ring) -> npt.NDArray[np.float64]:
        """Return a sum of encoded vectors as numbers."""
        signed = np.int32 if self.bits == 32 else np.int64
        return total.view(signed).astype(np.float64) * self.step


@cache
def library() -> SimpleNamespace:
    """Import the parts of ``cryptography`` that are used."""
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import ciphers, hashes
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
        from cryptography.hazmat.primitives.ciphers import aead
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError:
        raise ImportError(f"secret noise and sums: {not_installed('cryptography', 'privacy')}") from None
    return SimpleNamespace(
        aead=aead, ciphers=ciphers, ed25519=ed25519, exceptions=exceptions, hashes=hashes, hkdf=hkdf, x25519=x25519
    )


class KeyPair:
    """A key of X25519, of which the public half is for everybody; from 32 private bytes, or random ones."""

    def __init__(self, private: bytes | None = None) -> None:
        key = library().x25519.X25519PrivateKey
        self._key = key.generate() if private is None else key.from_private_bytes(private)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        """The secret half."""
        return bytes(self._key.private_bytes_raw())

    def agree(self, public: bytes, purpose: str) -> bytes:
        """Return 32 bytes that only the two owners of the keys know, different for each purpose (HKDF, SHA-256)."""
        parts = library()
        shared = self._key.exchange(parts.x25519.X25519PublicKey.from_public_bytes(public))
        derive = parts.hkdf.HKDF(algorithm=parts.hashes.SHA256(), length=32, salt=None, info=purpose.encode())
        return bytes(derive.derive(shared))


def mask(seed: bytes, size: int, dtype: npt.DTypeLike) -> Ring:
    """Return uniform elements of a ring from 32 bytes (AES-256 in counter mode), (d,)."""
    ciphers = library().ciphers
    stream = ciphers.Cipher(ciphers.algorithms.AES(seed), ciphers.modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(size * np.dtype(dtype).itemsize)), dtype=dtype)


def sealed(key: bytes, content: dict[str, int]) -> bytes:
    """Return numbers encrypted for one receiver; a key is used for one message, so the nonce may be fixed."""
    return bytes(library().aead.ChaCha20Poly1305(key).encrypt(bytes(12), json.dumps(content).encode(), None))


def opened(key: bytes, message: bytes) -> dict[str, int]:
    """Return what :func:`sealed` encrypted; an altered message raises."""
    return dict(json.loads(library().aead.ChaCha20Poly1305(key).decrypt(bytes(12), message, None)))


def split(secret: int, threshold: int, holders: Sequence[int]) -> dict[int, int]:
    """Return a share of a secret for each holder: the values of a random polynomial of degree t - 1."""
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
    total = 0
    for holder, share in shares.items():
        others = [other for other in shares if other != holder]
        total += share * prod(others) * pow(prod(other - holder for other in others), -1, PRIME)
    return total % PRIME
