"""Memory from a CUDA memory snapshot: live blocks, segments, history."""
