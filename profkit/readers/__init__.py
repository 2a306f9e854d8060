"""Files to model: read once, check once, integers in nanoseconds and bytes."""
