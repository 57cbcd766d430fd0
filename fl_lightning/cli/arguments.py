"""An argument parser whose complaints are one line, and the options that several commands have."""

import argparse
import re
from typing import NoReturn

from fl_lightning.config.compose import ConfigError
from fl_lightning.config.nearest import suggestion

TRUST = (
    "let configs name classes of this package too, besides fl_lightning, torch, lightning, torchmetrics and "
    "torchvision; importing a package runs its code, so name only what you would run yourself"
)


class OneLineParser(argparse.ArgumentParser):
    """Raises what it does not understand, so that all commands complain in the same way."""

    def error(self, message: str) -> NoReturn:
        """Raise the message, with the option that was probably meant."""
        message = re.sub(r"argument (\S+): expected one argument", r"\1 needs a value", message)
        unknown = next((word.split("=")[0] for word in message.split() if word.startswith("--")), "")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        hint = suggestion(unknown, known) if "unrecognized" in message and unknown not in known else ""
        raise ConfigError(f"{message}{hint} (see {self.prog} --help)")

    def add_trust(self) -> None:
        """Add ``--trust PACKAGE``, which may come several times."""
        self.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help=TRUST)
