"""Sentences on device memory: fragmentation, allocator settings, out of memory."""
