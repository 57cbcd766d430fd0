"""Keys that two parties agree on, and the masks that come of them. Everything here needs ``cryptography``."""

import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from fl_lightning.secure.fixed_point import Ring


@cache
def library() -> Any:
    """Import the parts of ``cryptography`` that are used.

    Raises:
        ImportError: With how to install it.
    """
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, aead, algorithms, modes
        from cryptography.hazmat.primitives.kdf import hkdf
    except ImportError:
        raise ImportError(
            "cryptography is not installed, and secure aggregation needs it: pip install 'fl-lightning[privacy]'"
        ) from None
    return SimpleNamespace(
        hashes=hashes, x25519=x25519, Cipher=Cipher, aead=aead, algorithms=algorithms, modes=modes, hkdf=hkdf
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


def mask(seed: bytes, size: int, dtype: Any) -> Ring:
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
