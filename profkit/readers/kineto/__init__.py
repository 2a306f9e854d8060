"""Readers for Kineto traces of any version, and for the autograd profiler's arrays."""
