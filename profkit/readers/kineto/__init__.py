"""Kineto traces of any age, and the autograd profiler's arrays before them."""
