"""Where the noise of a private run comes from: a key that no seed, file or page gives away."""

import hashlib
import secrets

import numpy as np
import torch

from fl_lightning.secure.primitives import mask
from fl_lightning.types import Vector

KEY_BYTES = 32


class Noise:
    """Standard normal numbers from a key (AES-256 in counter mode): who does not have it cannot take them off again.

    Args:
        fixed: A number in place of a key; then whoever knows it and the seed of the run can recompute the noise.
    """

    def __init__(self, fixed: int | None = None) -> None:
        if fixed is not None and (isinstance(fixed, bool) or not isinstance(fixed, int) or fixed < 0):
            raise ValueError(f"key={fixed!r} must be a whole number, 0 or more, or left out for a secret key")
        self.fixed = fixed
        self.key = b""  # none yet

    @property
    def is_secret(self) -> bool:
        """Whether the key is of this run alone, and in no setting."""
        return self.fixed is None

    def renew(self, seed: int) -> None:
        """Take a new key, from the randomness of the operating system or from the fixed number and the seed."""
        text = f"noise of key {self.fixed} and seed {seed}"
        self.key = secrets.token_bytes(KEY_BYTES) if self.is_secret else hashlib.sha256(text.encode()).digest()

    @property
    def draw_seed(self) -> int | None:
        """A secret seed for the draws, whose secrecy is what amplifies privacy; None where nothing is secret."""
        return int.from_bytes(self._derived("draws"), "big") if self.is_secret and self.key else None

    def numbers(self, size: int, round_index: int, name: str) -> Vector:
        """Return standard normal numbers that are a function of key, round and name, by Box and Muller, (size,)."""
        words = mask(self._derived(f"round {round_index} {name}"), size + size % 2, np.uint64)
        uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53  # never 0
        lengths, angles = np.sqrt(-2 * np.log(uniform[0::2])), 2 * np.pi * uniform[1::2]
        return np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)])[:size]

    def like(self, rows: torch.Tensor, round_index: int, name: str = "sum") -> torch.Tensor:
        """Return such numbers as long as the rows of a matrix, the same on every device, (d,)."""
        return torch.from_numpy(self.numbers(rows.shape[1], round_index, name)).to(rows)

    def _derived(self, name: str) -> bytes:
        if not self.key:
            raise ValueError("the noise has no key yet: call renew(seed) first")
        return hashlib.sha256(self.key + name.encode()).digest()
