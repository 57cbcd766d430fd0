"""What ``fl-lightning compare`` runs: one job for each algorithm and seed. Imports nothing heavy."""

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from fl_lightning.config import compose as configs
from fl_lightning.config import early
from fl_lightning.config.compose import Settings
from fl_lightning.runs import safe_yaml
from fl_lightning.runs.identity import in_words, is_free

_BUDGETS = ("local_steps", "computation_time", "synchronous_time", "uplink_bytes", "downlink_bytes")
_OURS = ("--seed", "--run_dir", "--print_config", "--config", "--resume")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to make."""

    algorithm: str
    data: str
    seed: int
    configs: list[str]  # merged in order
    run_dir: str
    overrides: list[str] = field(default_factory=list)
    overwrite: bool = False  # whether what is in the folder is replaced
    trusted: list[str] = field(default_factory=list)  # packages whose classes the configs may name
    group: str = ""  # of runs that are compared, where there are several: before its name on the screen
    system: str | None = None  # that clients meet; None: as the configs say

    @property
    def merged(self) -> Settings:
        """Its configuration before the overrides."""
        return configs.compose(self.configs, self.system)

    @property
    def name(self) -> str:
        """How the run is called on the screen."""
        return f"{self.group}{self.algorithm} seed {self.seed}"

    @property
    def num_rounds(self) -> int | None:
        """The rounds its config asks for, as far as they are known without building it."""
        wanted = self.merged.get("loop", {}).get("rounds")
        for key, text in early.settings(self.overrides):
            wanted = text if key == "loop.rounds" else wanted
        return int(wanted) if str(wanted).isdigit() else None


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text names: a range (the end left out), a list, or both.

    >>> parse_seeds("0:3"), parse_seeds("7"), parse_seeds("0:2,5")
    ([0, 1, 2], [7], [0, 1, 5])
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        try:
            seeds += range(int(first or 0), int(last)) if colon else [int(part)]
        except ValueError:
            raise configs.ConfigError(f"--seeds {text!r} is not understood: use 0:5 or 0,1,2") from None
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise configs.ConfigError(f"--seeds {text!r} must name at least one seed, each once and none negative")
    return seeds


def parse_budget(text: str) -> list[str]:
    """Return the settings that give every run the same budget.

    >>> parse_budget("synchronous_time=500")
    ['--loop.budget.synchronous_time=500']
    """
    settings = []
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in _BUDGETS:
            raise configs.ConfigError(f"--budget {text!r} is not understood: use COST=NUMBER, of {', '.join(_BUDGETS)}")
        try:
            is_positive = 0 < float(value) < float("inf")
        except ValueError:
            is_positive = False
        if not is_positive:
            raise configs.ConfigError(f"--budget {name}={value!r} must be a positive number")
        settings.append(f"--loop.budget.{name}={value}")
    return settings


def parse_algorithms(text: str) -> list[str]:
    """Return the config of each algorithm; ``all`` stands for every shipped one, the reference first.

    >>> parse_algorithms("fedacs,fedavg")
    ['fedacs.yaml', 'fedavg.yaml']
    """
    known = configs.names("algorithms")
    if text == "all":
        return [f"{name}.yaml" for name in sorted(known, key=lambda name: (name != "fedacs", name))]
    configs.names_given(text)  # refuses what is unknown
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    return [f"{name}.yaml" if name in known else name for name in wanted]


def _value(text: str) -> object:
    try:
        return safe_yaml.load(text, "a setting")
    except safe_yaml.UnsafeYamlError:
        return text


def plan(
    config: list[str],
    algorithms: list[str],
    whole: list[str],
    seeds: list[int],
    out: str | None,
    overrides: list[str],
    system: str | None = None,
) -> tuple[Path, list[Job]]:
    """Return the folder and the jobs, seed by seed, so that what is done so far is always paired.

    What is compared is given by the configs that all share and one of each algorithm, or by whole ones.
    """
    for text in overrides:
        if text.partition("=")[0] in _OURS:
            raise configs.ConfigError(f"{text} is decided by compare: use --seeds, --out, --configs or --overwrite")
    stacks = [[name] for name in whole] or [[*config, name] for name in algorithms]
    for name in () if whole else chain.from_iterable(stacks):
        if len(configs.resolve(name)) > 1:
            raise configs.ConfigError(f"--config {name} already names an algorithm: give the data alone")
    labels = [Path(stack[-1]).stem for stack in stacks]
    data = "_".join(Path(name).stem for name in config) if not whole else "configs"
    if whole and len({label.partition("_")[0] for label in labels}) == 1 and all("_" in label for label in labels):
        data = labels[0].partition("_")[0]
        labels = [label.partition("_")[2] for label in labels]
    if len(set(labels)) != len(labels):
        raise configs.ConfigError(f"two things to compare are called the same: {', '.join(sorted(labels))}")
    _check_systems(stacks, system)
    changed = configs.other_system(stacks[0], system)
    changed |= {key: _value(text or "") for key, text in early.settings(overrides) if not is_free(key)}
    folder = Path(out or "_".join(filter(None, [f"runs/compare_{data}", in_words(changed)])))
    return folder, [
        Job(
            algorithm=label,
            data=data,
            seed=seed,
            configs=stack,
            run_dir=(folder / label / f"seed_{seed}").as_posix(),
            overrides=overrides,
            system=system,
        )
        for seed in seeds
        for label, stack in zip(labels, stacks, strict=True)
    ]


def _check_systems(stacks: list[list[str]], system: str | None) -> None:
    """Refuse configs that name different systems: their runs would not have met the same conditions."""
    found = [configs.system_of(stack, system) for stack in stacks]
    for stack, own in zip(stacks, found, strict=True):
        if own != found[0]:
            pair = f"{stack[-1]} has the system {own} and {stacks[0][-1]} the system {found[0]}"
            raise configs.ConfigError(f"{pair}, but what is compared must meet the same conditions: give --system")
