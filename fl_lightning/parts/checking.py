"""Checks of what users hand to parts, with errors that say what was given and what is wanted."""

from fl_lightning.theory.checks import one_of as one_of
