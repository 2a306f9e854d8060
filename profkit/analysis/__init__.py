"""Analyzes one recording (``study``), or many, and joins the ranks of a job (``several``)."""
