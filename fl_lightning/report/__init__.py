"""Comparisons as a page, figures and tables. Knows run folders alone: no torch, no command line."""
