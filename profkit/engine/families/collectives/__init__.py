"""Collectives: how long each rank waits for them, and which lines start them."""
