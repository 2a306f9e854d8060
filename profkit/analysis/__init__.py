"""Analyzes one recording (``study``), or many, and joins those of a job's ranks (``several``)."""
