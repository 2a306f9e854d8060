"""The report in each format: one file per format, found by its name, and nothing else."""
