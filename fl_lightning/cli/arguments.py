"""An argument parser whose complaints are one line."""

import argparse
from typing import NoReturn

from fl_lightning.cli.configs import ConfigError


class OneLineParser(argparse.ArgumentParser):
    """Raises what it does not understand, so that all commands complain in the same way."""

    def error(self, message: str) -> NoReturn:
        """Raise the message."""
        raise ConfigError(f"{message} (see {self.prog} --help)")
