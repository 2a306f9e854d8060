"""A model of PyTorch's caching allocator that simulates requests by its rules.

It does not depend on snapshots: sizes and settings, then blocks, the allocator, requests, and the
simulation of requests under given settings.
"""
