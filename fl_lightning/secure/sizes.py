"""How many bytes the parties of a secure sum exchange besides the masked vectors."""

import json

from fl_lightning.secure.shamir import PRIME

KEYS = 2 * 32  # both public keys of a participant (X25519)
SHARE = (PRIME.bit_length() + 7) // 8  # one share that is revealed
NUMBER = 4  # of a client
# Two shares under ChaCha20-Poly1305, whose tag has 16 bytes; shares with fewer digits make a shorter message.
SEALED = len(json.dumps({"key": PRIME - 1, "seed": PRIME - 1})) + 16


def exchanged_bytes(num_participants: int, num_arrived: int, threshold: int) -> tuple[float, float]:
    r"""Return the bytes up and down of keys and shares in one sum.

    With n participants, each sends its keys, gets those of all, and sends sealed shares for all, which the server hands
    on: :math:`n K + n^2 S` up, :math:`n^2 (K + S)` down. Where at least t vectors arrive, t holders are told who
    arrived and reveal one share of each participant: :math:`t n` shares up, :math:`t n` numbers down.

    Args:
        num_participants: n, who agreed on masks.
        num_arrived: Whose masked vector arrived.
        threshold: t.

    >>> exchanged_bytes(0, 0, 2)
    (0.0, 0.0)
    """
    n, revealed = num_participants, num_participants * threshold if num_arrived >= threshold else 0
    return float(n * KEYS + n**2 * SEALED + revealed * SHARE), float(n**2 * (KEYS + SEALED) + revealed * NUMBER)
