"""Samples memory at step boundaries, and classifies what grows."""
