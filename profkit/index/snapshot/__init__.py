"""Memory as a CUDA memory snapshot has it: live blocks, segments, history."""
