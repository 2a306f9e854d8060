"""Memory from a trace's ``[memory]`` events."""
