"""How large messages are, counted from what an algorithm really sends."""

from dataclasses import dataclass

import numpy as np

from fl_lightning.aggregators import Aggregator
from fl_lightning.types import IntVector, ModelState
from fl_lightning.uploads import Uploads

SCALAR_BYTES = 4  # of a loss or a norm that a client answers with


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """How large messages are."""

    download: float = 0.0  # bytes that a client gets before it trains
    upload: float = 0.0  # bytes that a client sends back
    model: float = 0.0  # bytes of the model, which a client that is only asked something gets

    def total(self, sent: IntVector, got: IntVector, asked: IntVector, answer_bytes: float) -> tuple[float, float]:
        """Return the bytes up and down of a round.

        Args:
            sent: Clients that upload, whether it arrives or not.
            got: Clients that download.
            asked: Clients that answered a question before the draw.
            answer_bytes: Of all answers together.

        >>> traffic = Traffic(download=80.0, upload=10.0, model=40.0)
        >>> traffic.total(np.array([1]), np.array([1, 2]), np.array([2, 3]), answer_bytes=8.0)
        (18.0, 200.0)
        """
        num_only_asked = len(np.setdiff1d(asked, got)) if len(asked) else 0  # mostly nobody is asked
        return self.upload * len(sent) + answer_bytes, self.download * len(got) + self.model * num_only_asked


def message_sizes(state: ModelState, num_local: tuple[int, int], aggregator: Aggregator, uploads: Uploads) -> Traffic:
    """Return the sizes of messages: without what stays at the clients or is frozen, with what an algorithm adds.

    Args:
        state: The model as it travels: trainable weights and float buffers.
        num_local: How many weights and how many buffer values stay at the clients.
        aggregator: Says how many vectors as long as the weights a client gets, and how it protects an upload.
        uploads: Says how long an upload is.
    """
    weights = len(state.weights) - num_local[0]
    buffers = len(state.buffers) - num_local[1]
    size = state.weights.element_size()
    buffer_bytes = float(buffers * state.buffers.element_size())
    return Traffic(
        download=aggregator.traits.num_downloaded * weights * size + buffer_bytes,
        upload=aggregator.upload_bytes(weights, uploads.num_bytes(weights, size)) + buffer_bytes,
        model=weights * size + buffer_bytes,
    )
