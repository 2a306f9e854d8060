"""The host side: call trees, steps, source lines."""
