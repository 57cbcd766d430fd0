"""Secure aggregation: the server learns the sum of vectors and no single one of them."""

from fl_lightning.secure.primitives import FixedPoint, recover, split
from fl_lightning.secure.protocol import Participant, ServerView, secure_sum

__all__ = ["FixedPoint", "Participant", "ServerView", "recover", "secure_sum", "split"]
