"""Collectives: how long ranks wait for them, and which lines start them."""
