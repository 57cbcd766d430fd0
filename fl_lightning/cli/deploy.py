"""``fl-lightning deploy``: make a Flower app of a configuration, for real machines in place of simulated clients."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.cli.main import OneLineParser
from fl_lightning.config import compose as configs
from fl_lightning.output import write_durably

if TYPE_CHECKING:
    from jsonargparse import Namespace

_FILES = ("pyproject.toml", "config.yaml")
_LONGEST_NAME = 32  # of a Flower app
_MARK = "# Written by fl-lightning deploy."
_APP = """{mark} The nodes' own data and settings are not in here.
[project]
name = "{project}"
version = "1.0.0"
description = "{name}, a configuration of fl-lightning"
license = {{ text = "Apache-2.0" }}
dependencies = []  # fl_lightning with its extra flower is installed on the server and on the nodes beforehand

[tool.flwr.app]
publisher = "fl-lightning"

[tool.flwr.app.components]
serverapp = "fl_lightning.flower.server_app:app"
clientapp = "fl_lightning.flower.client_app:app"

# Each can be changed for one run: flwr run APP NAME --run-config "timeout=30.0"
[tool.flwr.app.config]
name = "{name}"
num-clients = {num_clients}
timeout = {timeout}  # seconds; what a client sends later is lost
start-timeout = {start_timeout}  # seconds to wait for all clients before the first round
min-clients = {min_clients}  # enough when that time is up, a number or a share; 0: all, and to resume over half
max-steps = {max_steps}  # clients decide about their local steps themselves, up to this; 0: they do what they are asked
trust = "{trust}"
"""


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning deploy", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--config",
        action="append",
        metavar="FILE",
        help=f"as in fl-lightning train; several are merged (default: {configs.DEMO}); add observed.yaml where links "
        "and work are real",
    )
    add("--out", required=True, help="folder of the app")
    add("--clients", type=int, help="how many there are (default: as many as the config's data has)")
    add("--timeout", type=float, default=60.0, help="seconds of a round (default: 60)")
    add("--start_timeout", type=float, default=600.0, help="seconds to wait for all clients first")
    add("--min_clients", "--min-clients", type=_as_number, default=0, metavar="N",
        help="start with as many when that time is up, a number or a share such as 0.8; others may join later "
        "(default: all)")  # fmt: skip
    add("--max_steps", type=int, default=0, help="let clients decide about their local steps themselves, up to this")
    parser.add_trust()
    return parser


def _as_number(text: str) -> float:
    """Return a number, whole where it is written so: 1 is one client, 1.0 all of them."""
    return float(text) if "." in text else int(text)


def main(arguments: list[str]) -> int:
    """Write the app and say what to do with it."""
    options, overrides = make_parser().parse_known_args(arguments)
    names = options.config or [configs.DEMO]
    out = Path(options.out)
    _refuse_foreign(out)
    merged = _with_steps(configs.compose(names), names)
    from fl_lightning.config import building
    from fl_lightning.flower.options import Options
    from fl_lightning.flower.task import check_deployable  # heavy: torch, lightning

    settings = building.parse(merged, overrides, options.trust)
    num_clients = options.clients
    if num_clients is None:
        num_clients = len(building.instantiate_data(settings).load(settings.seed).sizes)
    if num_clients < 1 or options.timeout <= 0 or options.start_timeout <= 0 or options.max_steps < 0:
        raise configs.ConfigError("--clients, --timeout and --start_timeout must be above 0, and --max_steps not below")
    Options(name="", num_clients=num_clients, min_clients=options.min_clients)  # raises where they do not fit
    check_deployable(building.instantiate_loop(settings), options.max_steps or None)
    name = configs.run_name(names)
    app = _APP.format(
        mark=_MARK,
        project=_project(name),
        name=re.sub(r'["\\\n]', "_", name),
        num_clients=num_clients,
        timeout=float(options.timeout),
        start_timeout=float(options.start_timeout),
        min_clients=options.min_clients,
        max_steps=options.max_steps,
        trust=",".join(options.trust),
    )
    out.mkdir(parents=True, exist_ok=True)
    for file, text in zip(_FILES, (app, building.dump(settings)), strict=True):
        write_durably(out / file, text.encode())
    _say_what_is_asked(settings)
    print(f"{out}: an app for {num_clients} clients. Then, with a SuperLink in $FLWR_HOME/config.toml as NAME:")
    print("  fl-lightning node --superlink HOST:PORT --data mine.yaml    on each client's machine")
    print(f"  flwr run {out} NAME --stream")
    return 0


def _with_steps(merged: configs.Settings, names: list[str]) -> configs.Settings:
    """Let ``num_steps`` of a schedule pass over to the one that observed.yaml puts in its place."""
    before = [name for name in names if Path(name).stem != "observed"]
    old = configs.compose(before)["loop"]["schedule"].get("init_args", {}).get("num_steps")
    new = merged["loop"]["schedule"]
    if len(before) == len(names) or old is None or "num_steps" in new.get("init_args", {}):
        return merged
    if not isinstance(old, int):
        raise configs.ConfigError(
            f"num_steps={old} of the schedule is for simulations: observed.yaml asks all clients for one number of "
            "steps, so add --loop.schedule.num_steps NUMBER"
        )
    schedule = {**new, "init_args": {**new.get("init_args", {}), "num_steps": old}}
    return {**merged, "loop": {**merged["loop"], "schedule": schedule}}


def _say_what_is_asked(settings: "Namespace") -> None:
    """Say how many steps clients are asked for where the schedule is observed, and which Flower is here."""
    from fl_lightning.flower.supernode import version_note

    schedule = settings.loop.schedule
    if schedule.class_path.endswith(".ObservedConditions"):
        print(f"clients are asked for {schedule.init_args.num_steps} local steps first (--loop.schedule.num_steps)")
    if note := version_note():
        print(note)


def _project(name: str) -> str:
    """Return a name that Flower takes for an app: letters, digits and hyphens, a letter first, not too many.

    >>> _project("digits_secaggfedacs_observed_mine"), _project("2_classes")
    ('digits-secaggfedacs-observed-min', 'app-2-classes')
    """
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (words if words[:1].isalpha() else f"app-{words}")[:_LONGEST_NAME].strip("-")


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise configs.ConfigError(f"--out {out} is a file: give a folder")
    there = sorted(path.name for path in out.iterdir()) if out.exists() else []
    file = out / _FILES[0]
    ours = file.is_file() and file.read_text(encoding="utf-8", errors="replace").startswith(_MARK)
    if there and not ours:
        raise configs.ConfigError(
            f"--out {out} has {', '.join(there[:3])}, but not from fl-lightning deploy: give a new folder"
        )
