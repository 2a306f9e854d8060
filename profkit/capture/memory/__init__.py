"""Monitors the memory of a running program: leaks, their allocation sites and their holders."""
