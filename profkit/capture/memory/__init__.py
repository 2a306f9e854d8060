"""Watches the memory of a running program: what grows, who made it, and who holds it."""
