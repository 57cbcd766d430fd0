"""Which objective an algorithm would really optimise, without training: dry run, table, picture."""
