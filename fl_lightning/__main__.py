"""``python -m fl_lightning`` is ``fl-lightning``."""

import sys

from fl_lightning.cli.main import main

sys.exit(main())
