"""Samples memory at step boundaries and classifies leaks."""
