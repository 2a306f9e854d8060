"""pytest: records tests, limits their figures, and compares them with an earlier run."""
