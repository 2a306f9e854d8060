"""Runs the rules over a recording and ranks their findings."""
