"""All that a run leaves on disk: written, read, locked, resumed, identified."""
