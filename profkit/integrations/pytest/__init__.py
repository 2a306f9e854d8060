"""pytest: records tests, limits their figures, and compares them with those of an earlier run."""
