"""Checkpoints: what they hold, how they are stored, and which run they belong to."""
