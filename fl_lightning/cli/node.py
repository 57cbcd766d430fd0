"""``fl-lightning node``: be one client of a deployed federation, with data that stays here."""

from pathlib import Path

from fl_lightning.cli.main import OneLineParser
from fl_lightning.config import compose as configs
from fl_lightning.flower.node_settings import read_node
from fl_lightning.flower.supernode import check_version, serve


def make_parser() -> OneLineParser:
    """Return the parser."""
    parser = OneLineParser(prog="fl-lightning node", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--superlink", required=True, metavar="HOST:PORT", help="the server")
    add(
        "--data",
        required=True,
        metavar="FILE",
        help="config of this node, or a shipped one by name; of its keys only data, seed and node are used",
    )
    add("--client", type=int, help="this client's number, counted from 0 (default: node.client, or as the server says)")
    add("--port", type=int, default=0, help="of this node, for its own processes alone (default: a free one)")
    add(
        "--poll",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two looks for messages (default: 1; Flower's own SuperNode: 3)",
    )
    add("--root_certificates", metavar="FILE", help="of the authority that the server's certificate is of")
    add("--insecure", action="store_true", help="talk without TLS, for tests on one machine")
    add("--private_key", metavar="FILE", help="ECDSA key by which the server knows this node")
    add(
        "--stock",
        action="store_true",
        help="run Flower's own executor: it starts a new process for each message, and runs whatever code the server's "
        "app brings along",
    )
    parser.add_trust()
    return parser


def main(arguments: list[str]) -> int:
    """Check everything that can be checked here, then serve until a signal comes."""
    options = make_parser().parse_args(arguments)
    if options.insecure and (options.root_certificates or options.private_key):
        raise configs.ConfigError("--insecure is without TLS: leave it out, or --root_certificates and --private_key")
    for path in filter(None, (options.root_certificates, options.private_key)):
        if not Path(path).is_file():
            raise configs.ConfigError(f"{path} is not a file")
    if not 0.01 <= options.poll <= 60:
        raise configs.ConfigError(f"--poll {options.poll:g} must be a number of seconds from 0.01 to 60")
    if not 0 <= options.port < 65536:
        raise configs.ConfigError(f"--port {options.port} must be in 0..65535")
    check_version(options.stock)
    files = configs.resolve(options.data)
    config = str(files[0].resolve()) if len(files) == 1 else options.data
    if '"' in config:
        raise configs.ConfigError(f"--data {config} must not have quotes in its name")
    given = {} if options.client is None else {"client": options.client}
    node = read_node({"config": config, "trust": ",".join(options.trust)} | given)
    return serve(options, config, node.client)
