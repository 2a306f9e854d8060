"""Waits of the host for a CUDA device, heard of while the program runs."""
