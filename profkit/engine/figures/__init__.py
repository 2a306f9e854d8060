"""The figures of a report's summary, as defined in ``profkit.model``."""
