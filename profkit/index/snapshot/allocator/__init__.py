"""PyTorch's caching allocator as a model: a history's requests, played again by its rules.

One direction: lengths and settings, then blocks, the allocator, the requests of a history, the
history played again, and what would have been reserved under other settings.
"""
