"""Runs the rules over a trace and ranks what they find."""
