"""Many runs: a list of jobs, and who works through it (processes, Ray, Slurm)."""
