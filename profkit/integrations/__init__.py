"""Where other programs show what profkit knows; each room here imports its host lazily."""
