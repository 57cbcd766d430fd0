"""What is known of every shipped algorithm in words, from ``configs/methods.yaml``: tables, and what to cite."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache

from fl_lightning.config import compose as configs


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What to cite."""

    key: str
    title: str
    authors: str  # as BibTeX wants them
    where: str
    year: int

    @property
    def bibtex(self) -> str:
        """The entry of a BibTeX file."""
        in_journal = "arXiv" in self.where or "IEEE T" in self.where
        kind, place = ("article", "journal") if in_journal else ("inproceedings", "booktitle")
        lines = [f"@{kind}{{{self.key},", f"  title = {{{self.title}}},", f"  author = {{{self.authors}}},"]
        return "\n".join([*lines, f"  {place} = {{{self.where}}},", f"  year = {{{self.year}}}", "}"])


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table; the file says what the columns mean."""

    name: str
    method: str
    corrects: str
    cite: str
    rule: str = ""
    needs: str = ""
    keeps: str = ""
    sends: str = ""
    omega: str = ""
    variance: str = ""
    l1: str = ""
    read: str = ""


@dataclass(frozen=True, kw_only=True)
class Methods:
    """The whole file."""

    groups: dict[str, str]  # what is corrected, in words
    methods: tuple[Method, ...]
    papers: dict[str, Paper]

    def document(self) -> dict[str, object]:
        """Return all of it for programs."""
        return {
            "groups": self.groups,
            "algorithms": [asdict(each) | {"year": self.papers[each.cite].year} for each in self.methods],
            "papers": [asdict(each) | {"bibtex": each.bibtex} for each in self.papers.values()],
        }

    def to_cite(self, names: Iterable[str]) -> str:
        """Return in one line what to cite of some algorithms; nothing of those that are not shipped.

        >>> methods().to_cite(["fedacs", "fedavg", "mine"])
        'cite: weng2025 (fedacs), mcmahan2017 (fedavg); BibTeX: fl-lightning show algorithms --json, or docs/citing.md'
        """
        given, by_paper = set(names), dict[str, list[str]]()
        for each in self.methods:
            if each.name in given:
                by_paper.setdefault(each.cite, []).append(each.name)
        cited = ", ".join(f"{key} ({', '.join(users)})" for key, users in by_paper.items())
        return f"cite: {cited}; BibTeX: fl-lightning show algorithms --json, or docs/citing.md" if cited else ""


@cache
def methods() -> Methods:
    """Return what the file says.

    Raises:
        ConfigError: If an entry lacks something, or names a group or a paper that is not there.
    """
    path = configs.FOLDER / "methods.yaml"
    said = configs.read(path)
    known = {each.name for each in fields(Method)}
    for name, entry in said["methods"].items():
        wrong = [*(entry.keys() - known), *({"method", "corrects", "cite"} - entry.keys())]
        if wrong or entry["corrects"] not in said["groups"] or entry["cite"] not in said["papers"]:
            raise configs.ConfigError(
                f"{path}: {name} must have method, a group of the file as corrects, a paper of the file as cite, and "
                f"none but {', '.join(sorted(known - {'name'}))}; wrong: {', '.join(wrong) or 'corrects or cite'}"
            )
    papers = {key: Paper(key=key, **each) for key, each in said["papers"].items()}
    rows = tuple(Method(name=name, **entry) for name, entry in said["methods"].items())
    return Methods(groups=said["groups"], methods=rows, papers=papers)


def listed(found: Methods, width: int) -> list[str]:
    """Return the methods as lines of a terminal: two for each, what it is and what it asks for."""
    lines: list[str] = []
    for group, title in found.groups.items():
        members = [each for each in found.methods if each.corrects == group]
        lines += ["", title] * bool(members)
        for each in members:
            needs, rule = each.needs or "nothing", each.rule and f": {each.rule}"
            asked = {"needs": needs, "keeps": each.keeps, "sends": each.sends, "Omega ~": each.omega}
            asks = "; ".join(f"{word} {value}" for word, value in asked.items() if value or word == "Omega ~")
            for text in (f"  {each.name:<18}{each.method}{rule} [{each.cite}]", f"  {'':<18}{asks}"):
                lines.append(text if len(text) <= width else text[: width - 3] + "...")
    return lines[1:]
