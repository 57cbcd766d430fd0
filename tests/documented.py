"""Finds the commands and options in the documents, as a reader would copy them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
PROGRAMS = ("fl-lightning", "python", "train.py", "pytest", "pip", "torchrun", "srun", "wandb", "tensorboard")
_SHELLS = ("bash", "sh", "console", "")
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r"<\w|\.\.\.|\b[A-Z]{3,}\b|\b[KN]$")


@dataclass(frozen=True)
class Command:
    """A line to type, cut at ``&&``, without what a shell would take away."""

    document: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments; variables that are set for the command are left out."""
        words = shlex.split(self.text, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        return words


def blocks(path: Path) -> list[tuple[str, str]]:
    """Return language and content of each code block."""
    return [(language.strip(), body) for language, body in _FENCE.findall(path.read_text())]


def prose(path: Path) -> list[str]:
    """Return what stands in backticks outside code blocks."""
    return re.findall(r"`([^`\n]+)`", _FENCE.sub("", path.read_text()))


def _lines(body: str) -> list[str]:
    return [line.strip() for line in body.replace("\\\n", " ").splitlines() if line.strip()]


def block_lines() -> list[Command]:
    """Return every line of every shell block; comments are dropped, unless options stand in them."""
    found = []
    for path in DOCUMENTS:
        for language, body in blocks(path):
            if language not in _SHELLS:
                continue
            for line in _lines(body):
                text = re.sub(r"^#\s+(?=--\w)", "", line)
                found += [Command(path.name, part.strip()) for part in text.split("&&")]
    return [command for command in found if command.words]


def commands() -> list[Command]:
    """Return every command in blocks and in prose, each once."""
    inline = [
        Command(path.name, text)
        for path in DOCUMENTS
        for text in prose(path)
        if text.startswith(PROGRAMS) and " " in text
    ]
    found = [command for command in block_lines() if not command.text.startswith("--")] + inline
    return list({" ".join(command.words): command for command in found}.values())


def options() -> list[Command]:
    """Return every line of options in blocks and every option in prose, each once, without those for any value."""
    inline = [Command(path.name, text) for path in DOCUMENTS for text in prose(path) if text.startswith("--")]
    found = [command for command in block_lines() if command.text.startswith("--")] + inline
    found = [Command(one.document, re.sub(r"\s{3,}.*", "", one.text)) for one in found]
    return list({one.text: one for one in found if not _PLACEHOLDER.search(one.text)}.values())
