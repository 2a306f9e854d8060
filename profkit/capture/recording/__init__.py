"""One recording: torch's profiler, its steps and its file."""
