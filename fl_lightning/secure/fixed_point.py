"""Numbers as whole numbers of a ring, where sums are exact and masks are uniform."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bits = Literal[32, 64]
Ring = npt.NDArray[Any]  # unsigned integers of 32 or 64 bits, which wrap around


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
        """Distance between two numbers that stay different; an encoded entry is at most half of it away.

        The ring has room for these halves of all parties, too.
        """
        room = 2.0 ** (self.bits - 1) * (1 - 2.0**-20) - self.num_parties / 2 - 1
        return self.bound * self.num_parties / room

    @property
    def dtype(self) -> type[np.uint32] | type[np.uint64]:
        """Type of the ring's elements."""
        return np.uint32 if self.bits == 32 else np.uint64

    def encode(self, values: npt.NDArray[np.float64]) -> Ring:
        """Return a vector as elements of the ring.

        Raises:
            ValueError: If an entry is above the bound or not finite.
        """
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
