"""A recording as a dependency graph, its critical path, and its replay with changes."""
