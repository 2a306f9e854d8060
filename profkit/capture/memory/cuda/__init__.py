"""The CUDA caching allocator: history, out-of-memory snapshots, driver figures."""
