"""Reads snapshots of the CUDA caching allocator: pickles, unpickled without running code."""
