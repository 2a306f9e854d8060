"""Memory as a trace's ``[memory]`` events have it."""
