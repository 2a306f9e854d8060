"""Readers: files to the model. Checked once; times are integer nanoseconds, sizes bytes."""
