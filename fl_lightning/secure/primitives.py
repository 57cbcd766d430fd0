"""What a secure sum is made of: keys that two parties agree on, masks, sealed messages, and shares of a secret.

Keys, masks and sealed messages need ``cryptography``. Shares are those of Shamir: any t of n give the secret, and fewer
say nothing about it.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt

from fl_lightning.secure.fixed_point import Ring

PRIME = 2**521 - 1  # above all secrets of 64 bytes


@cache
def library() -> SimpleNamespace:
    """Import the parts of ``cryptography`` that are used.

    Raises:
        ImportError: With how to install it.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, aead, algorithms, modes
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError:
        raise ImportError(
            "cryptography is not installed, and secret noise and sums need it: pip install 'fl-lightning[privacy]'"
        ) from None
    return SimpleNamespace(
        hashes=hashes,
        x25519=x25519,
        Cipher=Cipher,
        aead=aead,
        algorithms=algorithms,
        modes=modes,
        hkdf=hkdf,
        ed25519=ed25519,
        InvalidSignature=InvalidSignature,
    )


class KeyPair:
    """A key of X25519, of which the public half is for everybody.

    Args:
        private: 32 bytes; random ones by default.
    """

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
    parts = library()
    stream = parts.Cipher(parts.algorithms.AES(seed), parts.modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(size * np.dtype(dtype).itemsize)), dtype=dtype)


def sealed(key: bytes, content: dict[str, int]) -> bytes:
    """Return numbers encrypted for one receiver; a key is used for one message, so the nonce may be fixed."""
    return bytes(library().aead.ChaCha20Poly1305(key).encrypt(bytes(12), json.dumps(content).encode(), None))


def opened(key: bytes, message: bytes) -> dict[str, int]:
    """Return what :func:`sealed` encrypted; an altered message raises."""
    return dict(json.loads(library().aead.ChaCha20Poly1305(key).decrypt(bytes(12), message, None)))


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
