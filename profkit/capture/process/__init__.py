"""Facts of this process, and what is wrapped or sampled in it."""
