"""The paper's experiment: from folders of runs to committed results, and from these to tables and pictures."""
