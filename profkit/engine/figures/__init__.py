"""The figures of a report's summary, each by its definition in ``profkit.model``."""
