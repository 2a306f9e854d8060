"""Messages on device memory: fragmentation, allocator settings, failed allocations."""
