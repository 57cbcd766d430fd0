"""The protocol of Bonawitz et al. 2017 for one sum: the participants, all that a server sees, and its bytes."""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fl_lightning.secure.primitives import PRIME, FixedPoint, KeyPair, Ring, mask, opened, recover, sealed, split

Directory = Mapping[int, tuple[bytes, bytes]]  # public keys of each participant: for masks, for sealed shares
Secret = tuple[bytes, bytes, bytes]
KEYS = 2 * 32  # bytes of both public keys of a participant (X25519)
SHARE = (PRIME.bit_length() + 7) // 8  # of one share that is revealed
NUMBER = 4  # of the number of a client
# Two shares under ChaCha20-Poly1305, whose tag has 16 bytes; shares with fewer digits make a shorter message.
SEALED = len(json.dumps({"key": PRIME - 1, "seed": PRIME - 1})) + 16


class Participant:
    """One client's side of a sum. Its keys are of this sum alone.

    They come from the system and not from the seed of a run: a result does not depend on them, for masks cancel.

    Args:
        client: Its number.
        session: Name of the sum, which goes into all derived keys.
        secret: Of the same participant before, where it was put aside between two steps; a new one by default.
    """

    def __init__(self, client: int, session: str, secret: Secret | None = None) -> None:
        self.client = client
        self._session = session
        masking, sealing, seed = secret or (None, None, None)
        self._masking, self._sealing = KeyPair(masking), KeyPair(sealing)
        self._own_seed = seed or secrets.token_bytes(32)

    @property
    def secret(self) -> Secret:
        """What nobody else may ever know: both private keys and the own seed."""
        return self._masking.private, self._sealing.private, self._own_seed

    @property
    def public(self) -> tuple[bytes, bytes]:
        """What everybody may know."""
        return self._masking.public, self._sealing.public

    def shares(self, directory: Directory, threshold: int) -> dict[int, bytes]:
        """Return for each participant, itself included, sealed shares of the masking key and of the own seed."""
        holders = [client + 1 for client in directory]  # a share at 0 would be the secret
        keys = split(int.from_bytes(self._masking.private, "big"), threshold, holders)
        seeds = split(int.from_bytes(self._own_seed, "big"), threshold, holders)
        return {
            client: sealed(
                self._seal_key(client, sealing, self.client), {"key": keys[client + 1], "seed": seeds[client + 1]}
            )
            for client, (_, sealing) in directory.items()
        }

    def _seal_key(self, other: int, public: bytes, sender: int) -> bytes:
        receiver = other if sender == self.client else self.client
        return self._sealing.agree(public, f"{self._session} shares of {sender} for {receiver}")

    def masked(self, values: Ring, directory: Directory) -> Ring:
        """Return a vector under a mask of its own and one for each pair, which cancel in the sum of all."""
        total = values + mask(self._own_seed, len(values), values.dtype)
        for other, (public, _) in directory.items():
            if other != self.client:
                _add_pair(total, self._masking, public, self.client, other, self._session)
        return total

    def reveal(
        self, inbox: Mapping[int, bytes], directory: Directory, survivors: Iterable[int], dropped: Iterable[int]
    ) -> dict[int, int]:
        """Return its shares: of the own seed of each survivor, of the masking key of each that dropped out.

        Both of one participant would uncover its vector: that is refused.
        """
        wanted = dict.fromkeys(survivors, "seed")
        absent = dict.fromkeys(dropped, "key")
        if wanted.keys() & absent.keys():
            raise ValueError("the server asks for both secrets of a participant: refused")
        return {
            sender: opened(self._seal_key(sender, directory[sender][1], sender), inbox[sender])[secret]
            for sender, secret in {**wanted, **absent}.items()
            if sender in inbox
        }


def _add_pair(total: Ring, own: KeyPair, public: bytes, client: int, other: int, session: str) -> None:
    """Add the mask of a pair in place; the two of them add it with opposite signs."""
    low, high = sorted((client, other))
    pair = mask(own.agree(public, f"{session} mask of {low} and {high}"), len(total), total.dtype)
    if client < other:
        total += pair
    else:
        total -= pair


@dataclass(kw_only=True)
class ServerView:
    """Everything that a server receives during one sum."""

    session: str
    threshold: int
    directory: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    sealed: dict[int, dict[int, bytes]] = field(default_factory=dict)  # by receiver and sender
    masked: dict[int, Ring] = field(default_factory=dict)
    shares: dict[int, dict[int, int]] = field(default_factory=dict)  # by owner of the secret and holder

    @property
    def dropped(self) -> list[int]:
        """Who agreed on masks and did not send."""
        return [client for client in self.directory if client not in self.masked]

    def total(self) -> Ring:
        """Return the sum of what arrived, by taking off the masks that did not cancel."""
        first, *others = self.masked.values()
        total = first.copy()
        for vector in others:
            total += vector
        for client in self.masked:
            total -= mask(self._recovered(client), len(total), total.dtype)
        for client in self.dropped:
            key = KeyPair(self._recovered(client))
            if key.public != self.directory[client][0]:
                raise ValueError(f"the shares of the masking key of client {client} do not give the key")
            for survivor in self.masked:  # as the absent one would have done
                _add_pair(total, key, self.directory[survivor][0], client, survivor, self.session)
        return total

    def _recovered(self, client: int) -> bytes:
        secret = recover(self.shares[client])
        if secret >> 256:
            raise ValueError(f"the shares of client {client} give no secret of 32 bytes")
        return secret.to_bytes(32, "big")


def secure_sum(
    vectors: Mapping[int, npt.NDArray[np.float64]],
    participants: Iterable[int],
    ring: FixedPoint,
    threshold: int,
    session: str = "sum",
) -> tuple[npt.NDArray[np.float64] | None, ServerView]:
    """Play all parties of one sum; return it, or None where too few arrived, and all that the server saw.

    Args:
        vectors: Of those whose upload arrives.
        participants: All who agreed on masks; those without a vector drop out.
        ring: How numbers become whole numbers.
        threshold: How many must stay for the sum to be found.
        session: Name of the sum.

    >>> vectors = {0: np.array([0.5, 1.0]), 2: np.array([0.25, -1.0])}
    >>> total, _ = secure_sum(vectors, [0, 1, 2], FixedPoint(2.0, 3), threshold=2)
    >>> total.round(9).tolist()
    [0.75, 0.0]
    """
    parties = {client: Participant(client, session) for client in participants}
    view = ServerView(session=session, threshold=threshold)
    view.directory = {client: party.public for client, party in parties.items()}
    view.sealed = {client: {} for client in parties}
    for sender, party in parties.items():
        for receiver, message in party.shares(view.directory, min(threshold, len(parties))).items():
            view.sealed[receiver][sender] = message
    for client, vector in vectors.items():
        view.masked[client] = parties[client].masked(ring.encode(vector), view.directory)
    if len(view.masked) < threshold:
        return None, view
    view.shares = {client: {} for client in parties}
    for holder in list(view.masked)[:threshold]:
        party = parties[holder]
        for owner, share in party.reveal(view.sealed[holder], view.directory, view.masked, view.dropped).items():
            view.shares[owner][holder + 1] = share
    return ring.decode(view.total()), view


def exchanged_bytes(num_participants: int, num_arrived: int, threshold: int) -> tuple[float, float]:
    r"""Return the bytes up and down of keys and shares in one sum.

    With n participants, each sends its keys, gets those of all, and sends sealed shares for all, which the server hands
    on: :math:`n K + n^2 S` up, :math:`n^2 (K + S)` down. Where at least t vectors arrive, t holders get to know
    who arrived and reveal one share of each participant: :math:`t n` shares up, :math:`t n` numbers down.

    >>> exchanged_bytes(0, 0, 2)
    (0.0, 0.0)
    """
    n, revealed = num_participants, num_participants * threshold if num_arrived >= threshold else 0
    return float(n * KEYS + n**2 * SEALED + revealed * SHARE), float(n**2 * (KEYS + SEALED) + revealed * NUMBER)
