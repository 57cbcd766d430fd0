"""An argument parser whose complaints are one line, and the options that several commands have."""

import argparse
from typing import NoReturn

from fl_lightning.cli.configs import ConfigError

TRUST = (
    "let configs name classes of this package too, besides fl_lightning, torch, lightning, torchmetrics and "
    "torchvision; importing a package runs its code, so name only what you would run yourself"
)


class OneLineParser(argparse.ArgumentParser):
    """Raises what it does not understand, so that all commands complain in the same way."""

    def error(self, message: str) -> NoReturn:
        """Raise the message."""
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def add_trust(self) -> None:
        """Add ``--trust PACKAGE``, which may come several times."""
        self.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help=TRUST)
