"""Budgets: limits on the figures of a report, absolute or relative to a baseline."""
