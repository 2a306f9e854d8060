"""Snapshots of the allocator's memory: pickles, unpickled where they can do no harm."""
