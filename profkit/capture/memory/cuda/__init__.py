"""The CUDA caching allocator: history, out-of-memory snapshots, and the driver's figures."""
